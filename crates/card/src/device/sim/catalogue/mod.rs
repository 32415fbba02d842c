//! The cards that can be simulated.
//!
//! Memory is what the driver gives PyTorch as `total_memory`, not what the box says: the driver keeps a
//! few hundred MiB, and error correction up to a sixteenth. Drivers differ by a few tens of MiB; where
//! several figures are in circulation, the smaller one is here, because a batch that is a little too
//! small still trains.
//!
//! The cards are in `cards.json`: of servers first, and of those the one that was measured; then those of workstations, for games, and of
//! laptops. Each kind begins with the newest; of cards that differ in how they are mounted, the usual one (SXM) is first.
//!
//! - Workstations: error correction is off when their cards are shipped; switched on, it takes a sixteenth of the memory.
//! - Games and laptops: tensor cores add up in float32 half as fast as those of the other cards. Under Windows, `PyTorch` reports a few
//!   hundred MiB more than is here. The maker of a laptop sets how much power its card may take, and with it the clock: those of the pages
//!   are here.
//! - H20: NVIDIA's data sheet says 44 TFLOPS in float32; 78 multiprocessors at 1.98 GHz come to the 39.5 that are here.

mod card_spec;

pub use card_spec::{CardSpec, Chip};

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use crate::device::Capability;
use crate::units::Bytes;

use super::CardMemory;
use super::calibrated::{LOCAL, is_calibrated, local};
use super::workspaces::WorkspaceTable;

/// What a PyTorch process holds outside its allocator after training steps with cuBLAS and cuDNN.
///
/// Measured on an H200 (PyTorch 2.11, CUDA 13, cuDNN 9.19): 527 MiB once the context exists, 750 to
/// 780 MiB after steps. 60 runs of scripts of the usual libraries took 630 to 772 MiB of an H100, and 822
/// with bitsandbytes' int8 layers, whose models are refused.
pub const PROCESS_OVERHEAD: Bytes = Bytes::mib(780);

/// What a process holds outside its allocator that trains with others under DDP, ZeRO-1 too: NCCL's communicator takes 936 MiB.
///
/// Measured on two H200s of one host (`PyTorch` 2.11, NCCL 2.28.9, without `NVLink` multicast): 1,613 MiB after training steps.
pub const RANK_OVERHEAD: Bytes = Bytes::mib(1613);

/// The same under `fully_shard`: 1,608.9 MiB.
pub const SHARDED_OVERHEAD: Bytes = Bytes::mib(1609);

/// How much of [`PROCESS_OVERHEAD`] is there as soon as a process has a context.
pub const CONTEXT_OVERHEAD: Bytes = Bytes::mib(527);

/// What stands between the claim of [`Card::notes`] and its reasons.
pub const UNMEASURED: &str = " was measured:";

/// Where the scratch memory of library calls is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workspaces {
    /// Recorded on this very card.
    Recorded,
    /// Recorded on an H200 and assumed to be alike here.
    #[default]
    Transferred,
}

/// A card that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// What follows `sim:` in a request.
    pub name: &'static str,
    /// The name that the driver reports.
    pub product: &'static str,
    /// What PyTorch shows as `total_memory`.
    pub total_memory: Bytes,
    /// Where `total_memory` is from.
    pub source: &'static str,
    /// What the rules for scratch memory depend on.
    #[serde(deserialize_with = "capability")]
    pub capability: Capability,
    /// Where the scratch memory of library calls is known from.
    #[serde(default)]
    pub workspaces: Workspaces,
    /// How fast it is by its data sheet.
    pub ceilings: Ceilings,
    /// What it is made of, and where that and how fast it is are known from.
    pub sheet: CardSpec,
}

/// The most that a card does in a second: without sparsity, and with sums in float32. Where each figure is from, [`CardSpec`] says.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(from = "[f64; 5]")]
pub struct Ceilings {
    /// Bytes read from memory or written to it.
    pub bandwidth: f64,
    /// Operations in float32.
    pub fp32: f64,
    /// Operations of convolutions in float32, which PyTorch lets round to TF32; those in float32 where a card has no TF32.
    pub tf32: f64,
    /// Operations in float16.
    pub fp16: f64,
    /// Operations in bfloat16; those in float32 where a card has none.
    pub bf16: f64,
}

impl From<[f64; 5]> for Ceilings {
    /// Of gigabytes a second, and trillions of operations a second in float32, TF32, float16 and bfloat16.
    fn from([bandwidth, fp32, tf32, fp16, bf16]: [f64; 5]) -> Ceilings {
        Ceilings {
            bandwidth: bandwidth * 1e9,
            fp32: fp32 * 1e12,
            tf32: tf32 * 1e12,
            fp16: fp16 * 1e12,
            bf16: bf16 * 1e12,
        }
    }
}

/// A compute capability, major and minor, and multiprocessors.
fn capability<'de, D: Deserializer<'de>>(row: D) -> Result<Capability, D::Error> {
    let (major, minor, multiprocessors) = Deserialize::deserialize(row)?;
    Ok(Capability::of((major, minor), multiprocessors))
}

impl Card {
    /// The card of this name.
    pub fn find(name: &str) -> Option<&'static Card> {
        let known = CARDS.iter().find(|card| card.name == name);
        known.or_else(|| if name == LOCAL { local() } else { None })
    }

    /// The card that the driver calls this.
    pub fn of_product(product: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| card.product == product)
    }

    /// The card on which something was recorded: of those that the driver calls so, or of all where it calls none so, the one
    /// whose memory is nearest. Without either, the first in the catalogue.
    pub fn recorded_on(product: Option<&str>, total: Option<Bytes>) -> &'static Card {
        let apart = |card: &&Card| total.map(|total| card.total_memory.0.abs_diff(total.0));
        let is_called_so = |card: &&Card| Some(card.product) == product;
        let called_so = CARDS.iter().filter(is_called_so).min_by_key(apart);
        let nearest = || CARDS.iter().min_by_key(apart);
        called_so.or_else(nearest).unwrap_or(&CARDS[0])
    }

    /// What is left for the allocator: the limit where a request gives none.
    pub fn available(&self) -> Bytes {
        self.total_memory.saturating_sub(PROCESS_OVERHEAD)
    }

    /// Its memory.
    pub fn memory(&self) -> CardMemory {
        CardMemory {
            total: self.total_memory,
            available: self.available(),
        }
    }

    /// What a reader of an answer for this card should know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = match self.workspaces {
            Workspaces::Recorded => Vec::new(),
            Workspaces::Transferred => {
                let tables = WorkspaceTable::of_architecture(self.capability.compute);
                // What is known of convolutions is said of each answer that has some.
                let (convolutions, comma) = if tables.iter().any(|table| table.is_asked()) {
                    ("; the", "")
                } else {
                    ("; what convolutions need as scratch memory, and the", ",")
                };
                vec![format!(
                    "no {}{UNMEASURED} its memory size is from {}{convolutions} {} outside PyTorch's allocator{comma} are those of \
                     an H200",
                    self.product, self.source, PROCESS_OVERHEAD
                )]
            }
        };
        notes.extend(self.unverified());
        notes
    }

    /// What of its figures could not be held against a public source, or contradicts one.
    pub fn unverified(&self) -> Option<String> {
        let doubtful = self.sheet.doubtful?;
        Some(format!("not verified of the {}: {doubtful}", self.product))
    }
}

/// All cards.
///
/// Multiprocessors are those of the page that [`CardSpec`] names, or what PyTorch reports where that differs; threads of one are those of the
/// architecture.
pub static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("cards.json")).expect("tests read the file")
});

/// What may follow `sim:` in a request.
pub fn names() -> Vec<&'static str> {
    let local = is_calibrated().then_some(LOCAL);
    CARDS.iter().map(|card| card.name).chain(local).collect()
}

#[cfg(test)]
mod tests;
