//! Cards whose convolutions were recorded by `batchfit calibrate`, on this machine or brought from another.
//!
//! A calibration is a table of workspaces with the card's own numbers in its head. It comes before the tables that batchfit brings;
//! the newest of a real card is `sim:local`.

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::device::Capability;
use crate::units::Bytes;

use super::workspaces::{Traits, WorkspaceTable};
use super::{CARDS, Card, Sheet, Workspaces};

/// What follows `sim:` for the card that was calibrated last.
pub const LOCAL: &str = "local";

/// More calibrations than this are not looked at: a machine has a few kinds of cards.
const MOST: usize = 64;

/// A larger file is none: that of all known layers has 3 MiB.
const LARGEST: u64 = 64 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();
static TABLES: OnceLock<Vec<&'static WorkspaceTable>> = OnceLock::new();

/// Says where calibrations are kept, before anybody asks for them; later it changes nothing.
pub fn look_in(folder: PathBuf) {
    FOLDER.get_or_init(|| folder);
}

/// What is known of a card of this name, the newest first.
pub(super) fn tables_of(product: &str) -> impl Iterator<Item = &'static WorkspaceTable> {
    let tables = tables().iter().copied();
    tables.filter(move |table| table.card() == Some(product))
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

/// The card that was calibrated last; `None` where none was.
pub fn local() -> Option<&'static Card> {
    static CARD: OnceLock<Option<Card>> = OnceLock::new();
    let found = || tables().iter().find_map(|table| card(table));
    CARD.get_or_init(found).as_ref()
}

/// The card that a calibration describes: none where it was asked without one.
fn card(table: &'static WorkspaceTable) -> Option<Card> {
    if table.is_asked() {
        return None;
    }
    let product = table.card()?;
    let traits = Traits::of(table)?;
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
        sheet: Sheet {
            doubtful,
            ..alike.sheet
        },
    })
}

fn tables() -> &'static [&'static WorkspaceTable] {
    TABLES.get_or_init(|| FOLDER.get().map_or_else(Vec::new, |folder| read(folder)))
}

/// All calibrations of a folder, the newest first. What cannot be read is left out, and said.
fn read(folder: &Path) -> Vec<&'static WorkspaceTable> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(is_calibration)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    let newest = files.into_iter().rev().take(MOST);
    newest
        .filter_map(|(_, path)| match table(&path) {
            Ok(table) => Some(&*Box::leak(Box::new(table))),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a calibration is left out");
                None
            }
        })
        .collect()
}

fn table(path: &Path) -> io::Result<WorkspaceTable> {
    if fs::metadata(path)?.len() > LARGEST {
        return Err(io::Error::other("it is larger than 64 MiB"));
    }
    // Read once for all simulations of the process.
    let file = Box::leak(fs::read(path)?.into_boxed_slice());
    WorkspaceTable::packed(file).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
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

        let tables = read(folder.path());

        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].card(), Some("NVIDIA Test"));
        let card = card(tables[0]).unwrap();
        assert_eq!(card.capability.multiprocessors, 84);
        assert_eq!(card.total_memory, Bytes(25_000_000_000));
        assert!(read(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn what_was_asked_without_a_card_is_no_card_of_this_machine() {
        let text = TABLE.replace("driver 600.1", "driver none: asked without a device");
        let file = Box::leak(pack(&text).unwrap().into_boxed_slice());
        let table = Box::leak(Box::new(WorkspaceTable::packed(file).unwrap()));

        assert_eq!(card(table), None);
    }
}
