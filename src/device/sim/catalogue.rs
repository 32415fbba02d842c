//! The cards that can be simulated.
//!
//! Memory is what the driver gives PyTorch as `total_memory`, not what the box says: the driver keeps a
//! few hundred MiB, and error correction up to a sixteenth. Drivers differ by a few tens of MiB; where
//! several figures are in circulation, the smaller one is here, because a batch that is a little too
//! small still trains.

use crate::device::Capability;
use crate::units::Bytes;

use super::CardMemory;
use super::calibrated::{LOCAL, is_calibrated, local};

/// What a PyTorch process holds outside its allocator after training steps with cuBLAS and cuDNN.
///
/// Measured on an H200 (PyTorch 2.11, CUDA 13, cuDNN 9.19): 527 MiB once the context exists, 750 to
/// 780 MiB after steps.
pub const PROCESS_OVERHEAD: Bytes = Bytes::mib(780);

/// What a process holds outside its allocator that trains with others under DDP, ZeRO-1 too: NCCL's communicator takes 936 MiB.
///
/// Measured on two H200s of one host (`PyTorch` 2.11, NCCL 2.28.9, without `NVLink` multicast): 1,613 MiB after training steps.
pub const RANK_OVERHEAD: Bytes = Bytes::mib(1613);

/// The same under `fully_shard`: 1,608.9 MiB.
pub const SHARDED_OVERHEAD: Bytes = Bytes::mib(1609);

/// How much of [`PROCESS_OVERHEAD`] is there as soon as a process has a context.
pub const CONTEXT_OVERHEAD: Bytes = Bytes::mib(527);

/// Where the scratch memory of library calls is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workspaces {
    /// Recorded on this very card.
    Recorded,
    /// Recorded on an H200 and assumed to be alike here.
    Transferred,
}

/// A card that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    pub capability: Capability,
    /// Where the scratch memory of library calls is known from.
    pub workspaces: Workspaces,
    /// How fast it is by its data sheet.
    pub ceilings: Ceilings,
}

/// The most that a card does in a second, by NVIDIA's data sheets and architecture white papers: without sparsity, and with sums in
/// float32. Held on 2026-11-23 against public copies of the data sheets (of H200, H100 SXM, A100 SXM, L40S, L4, A10, T4 and V100 SXM2;
/// those of Hopper and L4 state figures with sparsity, twice those here), and against multiprocessors and clocks, which is all that
/// was found of the two `GeForce` cards: see the tests.
#[derive(Debug, Clone, Copy, PartialEq)]
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

/// Gigabytes a second, and trillions of operations a second in float32, TF32, float16 and bfloat16.
const fn ceilings(bandwidth: f64, fp32: f64, tf32: f64, fp16: f64, bf16: f64) -> Ceilings {
    Ceilings {
        bandwidth: bandwidth * 1e9,
        fp32: fp32 * 1e12,
        tf32: tf32 * 1e12,
        fp16: fp16 * 1e12,
        bf16: bf16 * 1e12,
    }
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

    /// The card whose memory is nearest to this.
    pub fn nearest(total: Bytes) -> &'static Card {
        let apart = |card: &&Card| card.total_memory.0.abs_diff(total.0);
        CARDS.iter().min_by_key(apart).unwrap_or(&CARDS[0])
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
        match self.workspaces {
            Workspaces::Recorded => Vec::new(),
            Workspaces::Transferred => vec![format!(
                "batchfit was not measured on a real {}: its memory size is from {}; what convolutions need as scratch \
                 memory, and the {} that a process holds outside PyTorch's allocator, are those of an H200",
                self.product, self.source, PROCESS_OVERHEAD
            )],
        }
    }
}

/// All cards, newest data-centre cards first.
///
/// Multiprocessors and threads per multiprocessor are from NVIDIA's architecture white papers and the
/// table of compute capabilities in the CUDA programming guide.
pub const CARDS: &[Card] = &[
    Card {
        name: "h200",
        product: "NVIDIA H200",
        total_memory: Bytes(150_109_880_320),
        source: "a measurement (driver of CUDA 13)",
        capability: capability((9, 0), 132, 2048),
        workspaces: Workspaces::Recorded,
        ceilings: ceilings(4800.0, 67.0, 494.7, 989.4, 989.4),
    },
    Card {
        name: "h100-80g",
        product: "NVIDIA H100 80GB HBM3",
        total_memory: Bytes::mib(81_089),
        source: "PyTorch 2.7's device properties as published (81,089 MiB)",
        capability: capability((9, 0), 132, 2048),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(3350.0, 67.0, 494.7, 989.4, 989.4),
    },
    Card {
        name: "a100-80g",
        product: "NVIDIA A100-SXM4-80GB",
        total_memory: Bytes::mib(81_152),
        source: "PyTorch's published out-of-memory messages (79.25 GiB)",
        capability: capability((8, 0), 108, 2048),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(2039.0, 19.5, 156.0, 312.0, 312.0),
    },
    Card {
        name: "a100-40g",
        product: "NVIDIA A100-SXM4-40GB",
        total_memory: Bytes(42_298_834_944),
        source: "deviceQuery's published output (CUDA 12.2)",
        capability: capability((8, 0), 108, 2048),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(1555.0, 19.5, 156.0, 312.0, 312.0),
    },
    Card {
        name: "l40s",
        product: "NVIDIA L40S",
        total_memory: Bytes::mib(45_465),
        source: "PyTorch's published out-of-memory messages for the same board (44.40 GiB)",
        capability: capability((8, 9), 142, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(864.0, 91.6, 183.0, 362.0, 362.0),
    },
    Card {
        name: "l4",
        product: "NVIDIA L4",
        total_memory: Bytes::mib(22_558),
        source: "PyTorch's published out-of-memory messages (22.03 GiB)",
        capability: capability((8, 9), 58, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(300.0, 30.3, 60.5, 121.0, 121.0),
    },
    Card {
        name: "a10",
        product: "NVIDIA A10",
        total_memory: Bytes::mib(22_517),
        source: "PyTorch's published out-of-memory messages (21.99 GiB)",
        capability: capability((8, 6), 72, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(600.0, 31.2, 62.5, 125.0, 125.0),
    },
    Card {
        name: "rtx4090",
        product: "NVIDIA GeForce RTX 4090",
        total_memory: Bytes::mib(24_207),
        source: "PyTorch's published out-of-memory messages (23.64 GiB)",
        capability: capability((8, 9), 128, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(1008.0, 82.6, 82.6, 165.2, 165.2),
    },
    Card {
        name: "rtx3090",
        product: "NVIDIA GeForce RTX 3090",
        total_memory: Bytes::mib(24_259),
        source: "PyTorch's device properties as published (24,259 MiB)",
        capability: capability((8, 6), 82, 1536),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(936.0, 35.6, 35.6, 71.0, 71.0),
    },
    Card {
        name: "t4",
        product: "Tesla T4",
        total_memory: Bytes::mib(15_095),
        source: "PyTorch's device properties as published (15,095 MiB)",
        capability: capability((7, 5), 40, 1024),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(320.0, 8.1, 8.1, 65.0, 8.1),
    },
    Card {
        name: "v100-32g",
        product: "Tesla V100-SXM2-32GB",
        total_memory: Bytes::mib(32_494),
        source: "PyTorch's device properties as published (32,494 MiB)",
        capability: capability((7, 0), 80, 2048),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(900.0, 15.7, 15.7, 125.0, 15.7),
    },
    Card {
        name: "v100-16g",
        product: "Tesla V100-SXM2-16GB",
        total_memory: Bytes::mib(16_130),
        source: "PyTorch's device properties as published (16,130 MiB)",
        capability: capability((7, 0), 80, 2048),
        workspaces: Workspaces::Transferred,
        ceilings: ceilings(900.0, 15.7, 15.7, 125.0, 15.7),
    },
];

/// What may follow `sim:` in a request.
pub fn names() -> Vec<&'static str> {
    let local = is_calibrated().then_some(LOCAL);
    CARDS.iter().map(|card| card.name).chain(local).collect()
}

const fn capability(compute: (u32, u32), multiprocessors: u64, threads: u64) -> Capability {
    Capability {
        compute,
        multiprocessors,
        threads_per_multiprocessor: threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_lower_case() {
        let mut names: Vec<_> = CARDS.iter().map(|card| card.name).collect();
        names.sort_unstable();
        names.dedup();

        assert_eq!(names.len(), CARDS.len());
        assert!(names.iter().all(|name| *name == name.to_lowercase()));
    }

    /// What a multiprocessor does in a clock by its architecture's white paper: multiplications with additions in float32, and in
    /// float16 with sums in float32, of which `GeForce` cards do half as many. And the published boost clocks, in GHz.
    #[test]
    fn ceilings_are_what_multiprocessors_and_clocks_give() {
        let boost = [
            // Tensor cores of Hopper run at 1.83 GHz, the others at 1.98 (<https://glennklockwood.com/garden/processors/h100>).
            ("h200", 1.98, 1.83),
            ("h100-80g", 1.98, 1.83),
            ("a100-80g", 1.41, 1.41),
            ("a100-40g", 1.41, 1.41),
            ("l40s", 2.52, 2.49),
            ("l4", 2.04, 2.04),
            ("a10", 1.695, 1.695),
            ("rtx4090", 2.52, 2.52),
            ("rtx3090", 1.695, 1.695),
            ("t4", 1.59, 1.59),
            ("v100-32g", 1.53, 1.53),
            ("v100-16g", 1.53, 1.53),
        ];
        assert_eq!(boost.len(), CARDS.len());
        for (name, clock, clock_of_tensors) in boost {
            let card = Card::find(name).unwrap();
            let (plain, tensors) = match card.capability.compute {
                (9, 0) => (128.0, 2048.0),
                (8, 0) => (64.0, 1024.0),
                (8, _) if name.starts_with("rtx") => (128.0, 256.0),
                (8, _) => (128.0, 512.0),
                _ => (64.0, 512.0),
            };
            let per_clock =
                2e9 * f64::from(u32::try_from(card.capability.multiprocessors).unwrap());
            let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.04;
            let ceilings = card.ceilings;

            assert!(near(ceilings.fp32, plain * per_clock * clock), "{name}");
            let half = tensors * per_clock * clock_of_tensors;
            assert!(near(ceilings.fp16, half), "{name}: {half}");
            if card.capability.compute >= (8, 0) {
                assert!(near(ceilings.tf32, half / 2.0), "{name}");
                assert!(near(ceilings.bf16, half), "{name}");
            } else {
                let fp32 = plain * per_clock * clock;
                assert!(near(ceilings.tf32, fp32), "{name}");
                assert!(near(ceilings.bf16, fp32), "{name}");
            }
        }
    }

    #[test]
    fn only_the_card_that_was_measured_answers_without_a_note() {
        let silent: Vec<_> = CARDS
            .iter()
            .filter(|card| card.notes().is_empty())
            .map(|card| card.name)
            .collect();

        assert_eq!(silent, ["h200"]);
    }

    #[test]
    fn the_whole_h200_is_its_memory_less_what_a_process_holds() {
        let h200 = Card::find("h200").unwrap();

        assert_eq!(h200.available(), Bytes(149_291_991_040));
    }
}
