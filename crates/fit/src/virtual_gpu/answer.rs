//! What came of a script: the document of `run --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::probe::Verdict;
use crate::replay::Findings;

/// What came of a script on a virtual GPU.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = RunAnswer)]
pub struct Answer {
    /// What was run.
    pub command: Vec<String>,
    /// The card, as `--on` names it.
    pub card: &'static str,
    /// How many of them the machine had.
    pub gpus: u64,
    /// Always `virtual`: the program itself ran, on a GPU that is not there.
    pub evidence: &'static str,
    /// Whether it fits.
    pub verdict: Verdict,
    /// The exit code that the script ended with; null where it was ended.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it was ended because it took too long or too much of the host's memory, or was interrupted.
    pub is_incomplete: bool,
    /// Optimizer steps.
    pub steps: u64,
    /// What PyTorch could reserve.
    pub limit_bytes: u64,
    /// The share of the card that the script itself allowed PyTorch by `torch.cuda.set_per_process_memory_fraction`; null where it did not, and
    /// where PyTorch is too old to be asked.
    pub memory_fraction: Option<f64>,
    /// Most that was allocated at a time, in the process and on the device that reserved most; null where it was no PyTorch.
    pub peak_allocated_bytes: Option<u64>,
    /// Most that was reserved.
    pub peak_reserved_bytes: u64,
    /// What of the most that was reserved was not allocated at the highest.
    pub fragmentation_bytes: Option<u64>,
    /// Times that the allocator gave back its cache and asked again.
    pub retries: u64,
    /// What is left after each step more than after the one before it, from the second; null below four steps, or where it does not grow
    /// each time.
    pub growth_bytes_per_step: Option<u64>,
    /// What asked for the last of the most that was allocated; null before PyTorch 2.9, and where a script was ended.
    pub at_peak: Option<AtPeak>,
    /// The phases of that process on that device.
    pub phases: Vec<Phase>,
    /// Each process and device.
    pub peaks: Vec<Peak>,
    /// Why it does not fit, or what was refused that the script went on without.
    pub out_of_memory: Option<Shortage>,
    /// Pinned and managed memory of the host.
    pub host: HostMemory,
    /// How much was guessed.
    pub certainty: Certainty,
    /// Where the script read what was never computed, and may have taken another turn than on a card.
    pub doubts: Vec<UncomputedRead>,
    /// What was assumed of numbers that were never computed.
    pub assumptions: Vec<Assumption>,
    /// Entry points that have no real answer.
    pub unanswered: Vec<NamedCount>,
    /// How the scratch memory of convolutions is known.
    pub convolutions: Convolutions,
    /// What the program was made of.
    pub versions: Option<Versions>,
    /// What its allocator's history says, where that was asked for.
    pub findings: Option<Findings>,
    /// What else to know.
    pub notes: Vec<String>,
}

/// How far to trust an answer, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RunCertainty)]
pub enum Certainty {
    /// Nothing was guessed, on a card that was measured.
    Exact,
    /// As a run whose random choices fell so.
    Chosen,
    /// Some sizes are estimates: of a card that was not measured, of convolutions that were not recorded, of libraries.
    Estimated,
    /// The script may have gone another way.
    Doubtful,
}

/// A part of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunPhase)]
pub struct Phase {
    /// `start`, `step 1`, `evaluation`, ...
    pub name: String,
    /// Most that was allocated in it.
    pub peak_allocated_bytes: u64,
    /// Most that was reserved in it.
    pub peak_reserved_bytes: u64,
    /// What was allocated at its end.
    pub allocated_bytes: u64,
    /// What was reserved at its end.
    pub reserved_bytes: u64,
}

/// What was at work when most was allocated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunAtPeak)]
pub struct AtPeak {
    /// The phase.
    pub phase: String,
    /// The module whose forward pass it was, `layers.3.mlp`, or whose gradients, `backward of layers.3.mlp`; null where that is not known.
    pub module: Option<String>,
    /// The lines of the script, the innermost first.
    pub stack: Vec<String>,
}

/// What one process took of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunPeak)]
pub struct Peak {
    /// The rank that its environment named.
    pub rank: Option<u64>,
    /// The process.
    pub process: u32,
    /// The device.
    pub device: u32,
    /// Most that was allocated.
    pub peak_allocated_bytes: Option<u64>,
    /// Most that was reserved.
    pub peak_reserved_bytes: u64,
}

/// A request that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunShortage)]
pub struct Shortage {
    /// How often something was refused.
    pub times: u64,
    /// Whether the script ended by it.
    pub is_fatal: bool,
    /// The rank that asked.
    pub rank: Option<u64>,
    /// The device that it asked.
    pub device: Option<u32>,
    /// The phase.
    pub phase: Option<String>,
    /// What was asked for.
    pub requested_bytes: Option<u64>,
    /// What was allocated then.
    pub allocated_bytes: Option<u64>,
    /// What was reserved then.
    pub reserved_bytes: Option<u64>,
    /// What other processes held of the device then, contexts too, where it did not fit beside them; null where none did.
    pub others_bytes: Option<u64>,
    /// The lines of the script that asked, the innermost first.
    pub stack: Vec<String>,
    /// The module whose forward pass asked, `layers.3.mlp`, or whose gradients, `backward of layers.3.mlp`; null where that is not known.
    pub module: Option<String>,
    /// What PyTorch said.
    pub message: Option<String>,
}

/// Memory of the host, which a virtual GPU takes for real.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunHostMemory)]
pub struct HostMemory {
    /// Most pinned and managed bytes of a process.
    pub peak_bytes: u64,
    /// What it could take, and all of its processes together of any host memory.
    pub limit_bytes: u64,
    /// Whether it asked for more.
    pub was_refused: bool,
}

/// A place in the script that read what was never computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunDoubt)]
pub struct UncomputedRead {
    /// `train.py:12 if mask.any():`.
    pub line: String,
    /// How often.
    pub times: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What was assumed and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunAssumption)]
pub struct Assumption {
    /// What.
    pub what: String,
    /// How often.
    pub times: u64,
    /// The environment variable and its value that give the other bound, such as `BATCHFIT_VGPU_FOUND=1`; null where there is none.
    pub other_bound: Option<String>,
}

/// Something and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = RunCounted)]
pub struct NamedCount {
    /// What.
    pub what: String,
    /// How often.
    pub times: u64,
}

/// Questions about convolutions, by how they were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[schema(as = RunConvolutions)]
pub struct Convolutions {
    /// As recorded on the card, at this batch or on either side of it.
    pub recorded: u64,
    /// As cuDNN's heuristics say without the card.
    pub asked: u64,
    /// As similar ones, or by cuDNN of the script alone.
    pub estimated: u64,
}

/// What a program is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = RunVersions)]
pub struct Versions {
    /// Python's.
    pub python: String,
    /// PyTorch's.
    pub torch: String,
    /// That of its CUDA.
    pub cuda: String,
    /// cuDNN's, such as 91900.
    pub cudnn: Option<u64>,
    /// The allocator's settings.
    pub allocator: String,
    /// Of frameworks that were imported.
    pub modules: BTreeMap<String, String>,
}
