//! What each process of a run holds of the devices, which they share: a file beside the session's.
//!
//! A process has a record there: who it is, and what it holds of each device. One at a time takes memory, under the system's lock of the file,
//! which goes with its holder; what a process held that has ended is free again. Where the file cannot be had each is alone with its devices.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process;

use super::MOST_DEVICES;
use crate::config;
use crate::handle::Lock;

const WORDS: usize = 2 + MOST_DEVICES;
const RECORD: usize = 8 * WORDS;

/// The process, when it began, and what it holds of each device of the machine.
type Record = [u64; WORDS];

/// Whose record was found, which is not that of a fork, and where it begins.
static OWN: Lock<Option<(u32, u64)>> = Lock::new(None);

/// When a process began, unless it has ended and only its parent has not heard so.
fn began(process: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name may have spaces and parentheses.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !has_ended)
}

fn is_there(record: &Record) -> bool {
    began(record[0]) == Some(record[1])
}

/// Any process may write any number.
fn sum(all: impl Iterator<Item = u64>) -> u64 {
    all.fold(0, u64::saturating_add)
}

struct Ledger(File);

impl Ledger {
    fn open() -> Option<Ledger> {
        let session = std::env::var_os(config::VARIABLE)?;
        let path = Path::new(&session).with_file_name("held");
        File::options().read(true).write(true).create(true).truncate(false).open(path).ok().map(Ledger)
    }

    /// Does something while no other process takes memory.
    fn alone<T>(&self, act: impl FnOnce(&Ledger) -> T) -> Option<T> {
        while let Err(error) = self.0.lock() {
            if error.kind() != ErrorKind::Interrupted {
                return None;
            }
        }
        let done = act(self);
        // A fork of this moment has the same open file: closing it here would not be enough.
        let _ = self.0.unlock();
        Some(done)
    }

    fn records(&self) -> Vec<Record> {
        let bytes = self.0.metadata().map_or(0, |found| found.len() as usize / RECORD * RECORD);
        let mut all = vec![0; bytes];
        if self.0.read_exact_at(&mut all, 0).is_err() {
            return Vec::new();
        }
        let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        all.as_chunks::<RECORD>().0.iter().map(|record| std::array::from_fn(|at| word(&record.as_chunks().0[at]))).collect()
    }

    /// Where this process's record begins: in the place of one that has ended, or behind all. Under the lock.
    fn own(&self) -> Option<u64> {
        let mut own = OWN.lock();
        if let Some((process, at)) = *own
            && process == process::id()
        {
            return Some(at);
        }
        let records = self.records();
        let id = u64::from(process::id());
        // Of this number was what this process was before `exec`, or one that has ended.
        let before = records.iter().position(|record| record[0] == id);
        let place = before.or_else(|| records.iter().position(|record| !is_there(record))).unwrap_or(records.len());
        let mut fresh: Record = [0; WORDS];
        (fresh[0], fresh[1]) = (id, began(id)?);
        let at = (place * RECORD) as u64;
        let bytes: Vec<u8> = fresh.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.write_all_at(&bytes, at).ok()?;
        *own = Some((process::id(), at));
        Some(at)
    }

    fn write(&self, device: usize, held: u64) {
        if let Some(at) = self.own() {
            let _ = self.0.write_all_at(&held.to_le_bytes(), at + 8 * (2 + device) as u64);
        }
    }

    /// What others hold of a device; those that have ended count only where `is_quick`.
    fn of_others(&self, device: usize, is_quick: bool) -> u64 {
        let id = u64::from(process::id());
        let holds = |record: &&Record| record[0] != id && record[2 + device] > 0 && (is_quick || is_there(record));
        sum(self.records().iter().filter(holds).map(|record| record[2 + device]))
    }
}

/// Holds so much of a device, if others hold at most `room` of it; else what they hold is the error.
pub fn take(device: usize, held: u64, room: u64) -> Result<(), u64> {
    let taken = Ledger::open().and_then(|ledger| {
        ledger.alone(|ledger| {
            // Whether a process has ended matters only where it would be in the way.
            if ledger.of_others(device, true) > room {
                let others = ledger.of_others(device, false);
                if others > room {
                    return Err(others);
                }
            }
            ledger.write(device, held);
            Ok(())
        })
    });
    taken.unwrap_or(Ok(()))
}

/// Holds so much of a device from now on: less than before, or what nobody can refuse.
pub fn tell(device: usize, held: u64) {
    let _ = Ledger::open().and_then(|ledger| ledger.alone(|ledger| ledger.write(device, held)));
}

/// The processes that hold anything of a device, and what.
pub fn holders(device: usize) -> Vec<(u32, u64)> {
    let records = Ledger::open().map_or_else(Vec::new, |ledger| ledger.records());
    let holds = |record: &&Record| record[2 + device] > 0 && is_there(record);
    records.iter().filter(holds).map(|record| (record[0] as u32, record[2 + device])).collect()
}

/// What all of them hold together, but for one.
pub fn held(device: usize, other_than: u32) -> u64 {
    sum(holders(device).into_iter().filter(|(process, _)| *process != other_than).map(|(_, held)| held))
}
