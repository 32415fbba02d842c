//! Cards whose convolutions were recorded by `batchfit calibrate`, on this machine or brought from another.
//!
//! A calibration is a table of workspaces with the card's own numbers in its head. It comes before the tables that batchfit brings;
//! the newest of a real card is `sim:local`.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use crate::device::Capability;
use crate::units::Bytes;

use super::workspaces::{CardTraits, WorkspaceTable};
use super::{CARDS, Card, CardSpec, Workspaces};

/// What follows `sim:` for the card that was calibrated last.
pub const LOCAL: &str = "local";

/// More calibrations than this are not looked at: a machine has a few kinds of cards.
const MOST: usize = 64;

/// A larger file is none: that of all known layers has 3 MiB.
const LARGEST: u64 = 64 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();
static KNOWN: RwLock<Option<Arc<Known>>> = RwLock::new(None);

/// Says where calibrations are kept, before they are needed; later it changes nothing.
pub fn look_in(folder: PathBuf) {
    FOLDER.get_or_init(|| folder);
}

/// What is known of a card of this name, the newest first.
pub(super) fn tables_of(product: &str) -> Vec<&'static WorkspaceTable> {
    let known = known();
    known.of(product).map(|one| one.table).collect()
}

/// Digests of the calibrations that simulations of a card are made with, by what the driver calls it.
pub fn calibrations_of(product: &str) -> Vec<String> {
    let known = known();
    known.of(product).map(|one| one.digest.clone()).collect()
}

/// Whether there are calibrations, which are not read for that.
pub(super) fn is_calibrated() -> bool {
    let entries = FOLDER.get().and_then(|folder| fs::read_dir(folder).ok());
    entries
        .is_some_and(|mut entries| entries.any(|entry| entry.is_ok_and(|one| is_calibration(&one))))
}

fn is_calibration(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().ends_with(".txt.gz")
}

/// Another number whenever calibrations changed: answers that were given before may be others.
pub fn calibration_turn() -> u64 {
    known().turn
}

/// The card that was calibrated last; `None` where none was.
pub fn local() -> Option<&'static Card> {
    known().local
}

/// The card that a calibration describes: none where it was asked without one.
fn card(table: &'static WorkspaceTable) -> Option<Card> {
    if table.is_asked() {
        return None;
    }
    let product = table.card()?;
    let traits = CardTraits::of(table)?;
    let known = Card::of_product(product);
    let alike = known.unwrap_or_else(|| {
        let is_as_old = |card: &&Card| card.capability.compute <= traits.compute;
        let newest = |card: &&Card| Reverse(card.capability.compute);
        let found = CARDS.iter().filter(is_as_old).min_by_key(newest);
        found.unwrap_or(&CARDS[0])
    });
    let doubtful = match known {
        Some(known) => known.sheet.doubtful,
        None => Some("how fast it is, which is taken from a card of its architecture"),
    };
    Some(Card {
        name: LOCAL,
        product,
        total_memory: Bytes(traits.memory),
        source: "its calibration",
        capability: Capability {
            compute: traits.compute,
            multiprocessors: traits.multiprocessors,
            threads_per_multiprocessor: traits.threads_per_multiprocessor,
        },
        workspaces: Workspaces::Recorded,
        ceilings: alike.ceilings,
        sheet: CardSpec {
            doubtful,
            ..alike.sheet
        },
    })
}

/// A file as it is found: when it was written, how long it is, and where. A calibration is replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    written: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// A calibration that was read.
#[derive(Debug, Clone)]
struct Calibration {
    found: Found,
    table: &'static WorkspaceTable,
    digest: String,
}

/// What is in the folder.
#[derive(Debug, Default)]
struct Known {
    found: Vec<Found>,
    /// The newest first.
    all: Vec<Calibration>,
    local: Option<&'static Card>,
    /// How often it was read.
    turn: u64,
}

impl Known {
    fn of(&self, product: &str) -> impl Iterator<Item = &Calibration> {
        let is_of = move |one: &&Calibration| one.table.card() == Some(product);
        self.all.iter().filter(is_of)
    }

    /// All calibrations of a folder, of which some may have been read `before`. What cannot be read is left out, and said.
    fn read(found: Vec<Found>, before: &Known) -> Known {
        let read = |found: &Found| {
            let known = before.all.iter().find(|one| one.found == *found);
            known.cloned().or_else(|| calibration(found))
        };
        let all: Vec<Calibration> = found.iter().filter_map(read).collect();
        let described = all.iter().find_map(|one| card(one.table));
        // Cards and tables are for as long as the process: there are as many as are calibrated meanwhile.
        let local = match (described, before.local) {
            (Some(described), Some(local)) if *local == described => Some(local),
            (described, _) => described.map(|card| &*Box::leak(Box::new(card))),
        };
        let turn = before.turn + 1;
        Known {
            found,
            all,
            local,
            turn,
        }
    }
}

/// What is in the folder now. It is looked at each time, and read where something changed: a service goes on with what was
/// calibrated meanwhile.
fn known() -> Arc<Known> {
    let found = FOLDER.get().map_or_else(Vec::new, |folder| look(folder));
    let read = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = read.as_ref().filter(|known| known.found == found) {
        return Arc::clone(known);
    }
    let before = read.clone().unwrap_or_default();
    drop(read);
    let known = Arc::new(Known::read(found, &before));
    *KNOWN.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&known));
    known
}

/// The newest calibrations of a folder, the newest first.
fn look(folder: &Path) -> Vec<Found> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let found = entries
        .flatten()
        .filter(is_calibration)
        .filter_map(|entry| {
            let path = entry.path();
            let metadata = fs::metadata(&path).ok()?;
            let written = metadata.modified().ok()?;
            let bytes = metadata.len();
            Some(Found {
                written,
                bytes,
                path,
            })
        });
    let mut found: Vec<Found> = found.collect();
    crate::order::by(&mut found, |a, b| b.cmp(a));
    found.truncate(MOST);
    found
}

fn calibration(found: &Found) -> Option<Calibration> {
    match table(&found.path) {
        Ok((table, digest)) => Some(Calibration {
            found: found.clone(),
            table: Box::leak(Box::new(table)),
            digest,
        }),
        Err(error) => {
            tracing::warn!(path = %found.path.display(), %error, "a calibration is left out");
            None
        }
    }
}

/// A table and the digest of its file.
fn table(path: &Path) -> io::Result<(WorkspaceTable, String)> {
    // Others may never end, or never begin.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    let mut file = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut file)?;
    if file.len() as u64 > LARGEST {
        return Err(io::Error::other("it is larger than 64 MiB"));
    }
    let digest = format!("{:x}", Sha256::digest(&file));
    // Read once for all simulations of the process.
    let file = Box::leak(file.into_boxed_slice());
    let table = WorkspaceTable::packed(file).map_err(io::Error::other)?;
    Ok((table, digest))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::sim::workspaces::pack;

    const TABLE: &str = "batchfit workspaces 1\ncard NVIDIA Test\ndriver 600.1\ncudnn 9.19.0\nrecorded 2026-11-23\n\
        command batchfit calibrate\ncompute 8.6\nmultiprocessors 84\nthreads_per_multiprocessor 1536\nmemory 25000000000\n\
        grid 1 2 4\nlayer 8,8,1,4,4,3,3,1,1,1,1,1,1,0\njob forward f32 0 |100+10|0|0*3\n";

    #[test]
    fn a_folder_is_read_and_what_is_broken_in_it_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("good.txt.gz"), pack(TABLE).unwrap()).unwrap();
        fs::write(folder.path().join("broken.txt.gz"), b"no gzip").unwrap();
        fs::write(folder.path().join("else"), b"").unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("endless.txt.gz")).unwrap();
        let head = format!("batchfit workspaces 1\ncard {}\n", "a".repeat(17 << 20));
        fs::write(folder.path().join("bomb.txt.gz"), pack(&head).unwrap()).unwrap();

        let known = Known::read(look(folder.path()), &Known::default());

        assert_eq!(known.all.len(), 1);
        assert_eq!(known.of("NVIDIA Test").count(), 1);
        let card = known.local.unwrap();
        assert_eq!(card.capability.multiprocessors, 84);
        assert_eq!(card.total_memory, Bytes(25_000_000_000));
        assert!(look(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn what_is_replaced_is_read_again_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, seconds, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, pack(text).unwrap()).unwrap();
            let written = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(written).unwrap();
        };
        write("one.txt.gz", 1, TABLE);
        write(
            "two.txt.gz",
            2,
            &TABLE.replace("NVIDIA Test", "NVIDIA Other"),
        );
        let before = Known::read(look(folder.path()), &Known::default());
        write("one.txt.gz", 3, &TABLE.replace("100+10", "1000+100"));
        let after = Known::read(look(folder.path()), &before);

        let of = |known: &Known, product: &str| known.of(product).next().unwrap().clone();
        let (old, new) = (of(&before, "NVIDIA Test"), of(&after, "NVIDIA Test"));
        assert_ne!(old.digest, new.digest);
        let (old, new) = (of(&before, "NVIDIA Other"), of(&after, "NVIDIA Other"));
        assert!(std::ptr::eq(old.table, new.table));
        assert_eq!(after.local.unwrap().product, "NVIDIA Test");
    }

    #[test]
    fn what_was_asked_without_a_card_is_no_card_of_this_machine() {
        let text = TABLE.replace("driver 600.1", "driver none: asked without a device");
        let file = Box::leak(pack(&text).unwrap().into_boxed_slice());
        let table = Box::leak(Box::new(WorkspaceTable::packed(file).unwrap()));

        assert_eq!(card(table), None);
    }
}
