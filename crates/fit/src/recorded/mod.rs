//! Step programs learnt from what PyTorch's allocator was recorded to do at a few small batches.
//!
//! The events of a step come in nearly the same order at every batch, and nearly all sizes are a constant, so much a
//! sample, or both. So: align recordings of several batches, solve each size in whole bytes, and the result is an
//! ordinary [`Program`](crate::program::Program), of which no operator need be known. What could not be solved is
//! counted as uncertain.
//!
//! Pure: no I/O, no clock.
#![doc = include_str!("NOTES.md")]

mod align;
mod check;
mod convolutions;
mod form;
mod format;
mod matching;
mod merge;
mod reductions;
mod scratch;
mod sequence;
mod start;
mod steps;

pub use check::{Alignment, Border, Check, Kind, Predicted, RecordingCheck, UncertainSize};
pub use form::{Evidence, Form};
pub use format::{GZIP, LARGEST_BATCH, LONGEST_GPU, ReadError, is_recording, read};
pub use sequence::{MOST_EVENTS, Sequence};
pub use steps::Steps;

/// Why recordings make no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordedError {
    /// There are none.
    #[error("there are no recordings; expected at least one, and three for good answers")]
    None,
    /// Two of one batch.
    #[error("two recordings are of batch {batch}; give one of each batch")]
    Twice {
        /// The batch.
        batch: u64,
    },
    /// More events than are read.
    #[error(
        "the recording of batch {batch} has more than {MOST_EVENTS} allocations and frees; record fewer steps"
    )]
    TooLong {
        /// Its batch.
        batch: u64,
    },
    /// More blocks at the start than are read.
    #[error(
        "what is there when a recording starts is more than {MOST_EVENTS} blocks and gaps; start it earlier, or after \
         torch.cuda.empty_cache()"
    )]
    StartsWithTooMuch,
    /// More streams than are read.
    #[error("a recording uses more than {most} CUDA streams")]
    Streams {
        /// How many are read.
        most: usize,
    },
    /// The program did not finish.
    #[error("the recording of batch {batch} ran out of memory at {place}; record a smaller batch")]
    OutOfMemory {
        /// Its batch.
        batch: u64,
        /// Where in its file.
        place: String,
    },
    /// Steps of different numbers of micro-steps.
    #[error(
        "the recordings of batches {batches:?} have steps of {micro_steps:?} micro-steps; record the same number for each"
    )]
    Accumulation {
        /// The smaller and the larger batch.
        batches: [u64; 2],
        /// Their micro-steps.
        micro_steps: [u32; 2],
    },
    /// Made on different cards, or under different settings of the allocator.
    #[error(
        "the recordings of batches {batches:?} were made with {made:?}; record all on one card, with the same settings of the allocator"
    )]
    Elsewhere {
        /// The smaller and the larger batch.
        batches: [u64; 2],
        /// What the GPU is called, or the settings.
        made: [String; 2],
    },
    /// They are not of one program.
    #[error(
        "the recordings of batches {batches:?} are not of the same program: they part at {places:?}; record the same \
         steps at each batch, from the same start"
    )]
    Divergence {
        /// The smaller and the larger batch.
        batches: [u64; 2],
        /// Where in their files.
        places: [String; 2],
    },
}
