//! Ranks that are all there: small payloads go from one to another as files beside the session's.
//!
//! Ranks call the collectives of a communicator in the same order, as NCCL demands, so a call is told by its number. A rank waits for the
//! others in each call that exchanges anything; the bytes are small, and a rank that ended is not waited for.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::channel;
use crate::config;
use crate::handle::Lock;

/// NCCL's own limit in PyTorch. A rank may compile, or read data, while the others wait.
const PATIENCE: Duration = Duration::from_mins(10);

/// Of one machine.
const MOST_RANKS: usize = 1 << 10;

/// A payload; `None` where it was never computed.
pub type Payload = Option<Vec<u8>>;

/// Where the ranks of a communicator meet.
#[derive(Debug)]
pub struct Rendezvous {
    folder: PathBuf,
    rank: usize,
    size: usize,
    /// Collectives so far.
    calls: AtomicU64,
    /// Messages so far, sent and received, by the other rank.
    messages: [Lock<BTreeMap<usize, u64>>; 2],
    is_broken: AtomicBool,
}

impl Rendezvous {
    /// Enters the room of this name; `None` where the other ranks are not there.
    pub fn enter(name: &str, rank: usize, size: usize) -> Option<&'static Rendezvous> {
        let is_alone = std::env::var_os("BATCHFIT_VGPU_ALONE").is_some_and(|alone| alone == "1");
        if is_alone || !(2..=MOST_RANKS).contains(&size) {
            return None;
        }
        let session = std::env::var_os(config::VARIABLE)?;
        let folder = Path::new(&session).parent()?.join("ranks").join(name);
        fs::create_dir_all(&folder).ok()?;
        let rendezvous = Rendezvous { folder, rank, size, calls: AtomicU64::new(0), messages: Default::default(), is_broken: AtomicBool::new(false) };
        rendezvous.put(&format!("process-{rank}"), std::process::id().to_string().as_bytes())?;
        // As all that is remembered, it stays.
        Some(Box::leak(Box::new(rendezvous)))
    }

    /// The rank that has come with the same device, where another has: NCCL has one of each.
    pub fn other_on(&self, device: usize) -> Option<String> {
        let (own, taken) = (self.folder.join(format!("device-of-{}", self.rank)), self.folder.join(format!("device-{device}")));
        fs::write(&own, self.rank.to_string()).ok()?;
        let is_first = fs::hard_link(&own, &taken).is_ok();
        fs::read_to_string(taken).ok().filter(|_| !is_first)
    }

    /// The room of those that leave this one together, in the order of their keys: its name, this rank's place there, and how many they are.
    pub fn split(&self, color: i32, key: i32) -> Option<(String, usize, usize)> {
        let call = self.calls.load(Ordering::Relaxed);
        let all = self.exchange(Some([color.to_le_bytes(), key.to_le_bytes()].concat()));
        let mut members = Vec::new();
        for (rank, of_rank) in all.into_iter().enumerate() {
            let of_rank: [u8; 8] = of_rank?.try_into().ok()?;
            let [its_color, its_key] = [0, 4].map(|at| i32::from_le_bytes(std::array::from_fn(|index| of_rank[at + index])));
            if its_color == color {
                members.push((its_key, rank));
            }
        }
        members.sort_unstable();
        let place = members.iter().position(|&(_, rank)| rank == self.rank)?;
        Some((format!("{}-{call}-{color}", self.folder.file_name()?.to_string_lossy()), place, members.len()))
    }

    /// Gives every rank what each has, by rank.
    pub fn exchange(&self, own: Payload) -> Vec<Payload> {
        if self.is_broken.load(Ordering::Relaxed) {
            return vec![None; self.size];
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.post(&format!("{call}-{}", self.rank), own);
        let all = (0..self.size).map(|rank| self.wait(&format!("{call}-{rank}"), rank)).collect();
        // Who wrote for this call has read all of the one before.
        if let Some(before) = call.checked_sub(1) {
            let _ = fs::remove_file(self.folder.join(format!("{before}-{}", self.rank)));
        }
        all
    }

    fn count(&self, is_received: bool, other: usize) -> u64 {
        let mut messages = self.messages[usize::from(is_received)].lock();
        let count = messages.entry(other).or_default();
        *count += 1;
        *count
    }

    /// Sends to one rank, without waiting.
    pub fn send(&self, to: usize, payload: Payload) {
        self.post(&format!("{}-to-{to}-{}", self.rank, self.count(false, to)), payload);
    }

    /// Waits for what one rank sends.
    pub fn receive(&self, from: usize) -> Payload {
        let name = format!("{from}-to-{}-{}", self.rank, self.count(true, from));
        let payload = self.wait(&name, from);
        let _ = fs::remove_file(self.folder.join(name));
        payload
    }

    /// A file is there as a whole, or not at all.
    fn put(&self, name: &str, bytes: &[u8]) -> Option<()> {
        let fresh = self.folder.join(format!("{name}.{}", self.rank));
        fs::write(&fresh, bytes).ok()?;
        fs::rename(fresh, self.folder.join(name)).ok()
    }

    fn post(&self, name: &str, payload: Payload) {
        let bytes = payload.map_or_else(Vec::new, |bytes| [&[1], bytes.as_slice()].concat());
        if self.put(name, &bytes).is_none() {
            self.give_up("the disk is full");
        }
    }

    fn wait(&self, name: &str, from: usize) -> Payload {
        let (path, until) = (self.folder.join(name), Instant::now() + PATIENCE);
        let mut pause = Duration::from_micros(20);
        loop {
            // Before its message is looked for: it may send, and end.
            let process = || fs::read_to_string(self.folder.join(format!("process-{from}")));
            let is_gone = pause > Duration::from_millis(1) && process().is_ok_and(|process| !Path::new("/proc").join(process).exists());
            if let Ok(bytes) = fs::read(&path) {
                return bytes.split_first().map(|(_, payload)| payload.to_vec());
            }
            if self.is_broken.load(Ordering::Relaxed) {
                return None;
            }
            if is_gone || Instant::now() > until {
                self.give_up(&format!("rank {from} {}", if is_gone { "has ended" } else { "does not come" }));
            }
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Nobody is waited for from now on.
    fn give_up(&self, why: &str) {
        if !self.is_broken.swap(true, Ordering::Relaxed) {
            channel::say(&format!("problem\ta collective between ranks was not completed: {why}"));
        }
    }
}

/// `ncclSum`, `ncclProd`, `ncclMax`, `ncclMin`, `ncclAvg`.
pub const SUM: c_int = 0;
const PRODUCT: c_int = 1;
pub const MOST: c_int = 2;
const LEAST: c_int = 3;
pub const MEAN: c_int = 4;

/// What a reduction makes of the numbers of all ranks, where all are known. Half precision is not summed to decide anything.
pub fn combine<'a>(mut all: impl Iterator<Item = Option<&'a [u8]>>, kind: c_int, operation: c_int) -> Payload {
    macro_rules! fold {
        ($kind:ty, $add:path, $times:path, $mean:expr) => {{
            let read = |bytes: &[u8]| -> Vec<$kind> {
                let numbers = bytes.as_chunks().0.iter();
                numbers.map(|one| <$kind>::from_le_bytes(*one)).collect()
            };
            let (mut total, mut ranks) = (read(all.next()??), 1_u16);
            for other in all {
                ranks = ranks.saturating_add(1);
                for (one, other) in total.iter_mut().zip(read(other?)) {
                    *one = match operation {
                        SUM | MEAN => $add(*one, other),
                        PRODUCT => $times(*one, other),
                        MOST => (*one).max(other),
                        LEAST => (*one).min(other),
                        _ => return None,
                    };
                }
            }
            if operation == MEAN {
                for one in &mut total {
                    *one = $mean(*one, ranks);
                }
            }
            Some(total.into_iter().flat_map(<$kind>::to_le_bytes).collect())
        }};
    }
    use std::ops::{Add, Mul};
    match kind {
        0 => fold!(i8, i8::wrapping_add, i8::wrapping_mul, |sum: i8, ranks: u16| (i64::from(sum) / i64::from(ranks)) as i8),
        1 => fold!(u8, u8::wrapping_add, u8::wrapping_mul, |sum: u8, ranks: u16| (i64::from(sum) / i64::from(ranks)) as u8),
        2 => fold!(i32, i32::wrapping_add, i32::wrapping_mul, |sum: i32, ranks: u16| (i64::from(sum) / i64::from(ranks)) as i32),
        3 => fold!(u32, u32::wrapping_add, u32::wrapping_mul, |sum: u32, ranks: u16| (i64::from(sum) / i64::from(ranks)) as u32),
        4 => fold!(i64, i64::wrapping_add, i64::wrapping_mul, |sum: i64, ranks: u16| sum / i64::from(ranks)),
        5 => fold!(u64, u64::wrapping_add, u64::wrapping_mul, |sum: u64, ranks: u16| sum / u64::from(ranks)),
        7 => fold!(f32, f32::add, f32::mul, |sum: f32, ranks: u16| sum / f32::from(ranks)),
        8 => fold!(f64, f64::add, f64::mul, |sum: f64, ranks: u16| sum / f64::from(ranks)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_any_number_of_ranks_is_taken() {
        let ranks = std::iter::repeat_n(Some(&[1_u8, 0, 0, 0][..]), 70_000);
        assert_eq!(combine(ranks.clone(), 2, MEAN), Some(vec![1, 0, 0, 0]));
        assert_eq!(combine(ranks, 3, LEAST), Some(vec![1, 0, 0, 0]));
    }
}
