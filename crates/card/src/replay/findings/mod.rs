//! What a recording says of its program: who holds the memory at the peak, what grows from round to round, and what is to be done.

mod lifetimes;
mod rounds;
mod verdict;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub(super) use lifetimes::Lifetimes;
pub(super) use rounds::begin_rounds;
pub(super) use verdict::{Memory, find};

/// What is wrong with a program, if anything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// Nothing that a recording shows.
    #[default]
    NothingWrong,
    /// What is allocated grows from round to round, and is kept; where memory ran out, it would not have without that.
    Growth,
    /// Memory ran out, or was given back in the middle, though the free pieces together would have been enough.
    Fragmentation,
    /// Memory was refused that the GPU once had, or has by the limit that was asked about: something outside of PyTorch's
    /// allocator holds it.
    AnotherProcess,
    /// Memory ran out, and what was allocated and asked for is more than there is.
    BatchTooLarge,
}

/// What one line of Python holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LineBytes {
    /// The innermost line of the person's own code, such as `train.py:12 forward`; null for what has none, as what autograd's threads
    /// and what came before the recording allocate.
    #[schema(example = "train.py:12 forward")]
    pub line: Option<String>,
    /// Bytes, as the allocator rounds them.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
}

/// What grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrowthReport {
    /// How often something was left behind, as far as rounds were compared: not in the first, which makes the optimizer's state, nor in
    /// those at the end, which may still free it.
    pub times: u64,
    /// How many rounds there are from one time to the next: 1 where each leaves something.
    pub every_rounds: u64,
    /// Bytes that were left behind each time, on average.
    pub bytes_each_time: u64,
    /// What those lines had left behind at the end of the recording, in bytes.
    pub kept_bytes: u64,
    /// The lines that allocated what is left behind each time, on average, those with most first; at most 12.
    pub lines: Vec<LineBytes>,
}

/// What a recording says of its program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Findings {
    /// What is wrong.
    pub finding: Finding,
    /// What shows it, a sentence each, with its figures.
    pub evidence: Vec<String>,
    /// What to change; null where nothing is wrong.
    pub advice: Option<String>,
    /// Whether stacks were recorded, so that lines are known.
    pub has_stacks: bool,
    /// The line that begins each round of the program, a step in most; null where no line comes around six times or more, and where no
    /// stacks were recorded.
    pub round_begins: Option<String>,
    /// How often it came around; 0 where nothing does.
    pub rounds: u64,
    /// Who holds the memory when most is allocated, those that hold most first; at most 12.
    pub at_peak: Vec<LineBytes>,
    /// What other lines hold then.
    pub others_at_peak: LineBytes,
    /// What grows from round to round; null where nothing does.
    pub growth: Option<GrowthReport>,
}
