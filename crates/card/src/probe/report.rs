//! What a probe found: the document of `probe --json` and `GET /v1/probes/{id}`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::events::MemoryEvents;
use super::peak::{Peak, Shortage};
use crate::program::Category;
use crate::units::Bytes;

batchfit_step::listed! {
    /// How three steps at one batch ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Verdict {
        /// All steps finished and the allocator never had to give back its cache.
        Fits = "fits",
        /// All steps finished, but the allocator had to free cached memory and ask again.
        FitsWithRetries = "fits_with_retries",
        /// A tensor could not be had.
        OutOfMemory = "out_of_memory",
        /// The steps did not run, for another reason than memory.
        Failed = "failed",
    }
}

/// How steps went as far as memory is concerned, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepOutcome {
    /// They finished, and the allocator never had to give back its cache.
    WithoutRetries,
    /// They finished, and the allocator gave back its cache in the first two steps alone. A convolution that is refused its
    /// workspace takes another plan and keeps it, and the second step is the first with optimizer state.
    Steady,
    /// They finished, but later steps may make the allocator give back its cache.
    WithRetries,
    /// They did not finish.
    Stopped,
}

impl From<Verdict> for StepOutcome {
    /// As far as a verdict alone tells.
    fn from(verdict: Verdict) -> StepOutcome {
        match verdict {
            Verdict::Fits => StepOutcome::WithoutRetries,
            Verdict::FitsWithRetries => StepOutcome::WithRetries,
            Verdict::OutOfMemory | Verdict::Failed => StepOutcome::Stopped,
        }
    }
}

/// Steps that may make the allocator retry where later ones do not: the second is the first with optimizer state.
pub const FIRST_STEPS: usize = 2;

/// How such steps went that ended with this verdict.
fn course(verdict: Verdict, steps: &[StepMemory]) -> StepOutcome {
    let never_again = |later: &[StepMemory]| later.iter().all(|step| step.retries == Some(0));
    match steps.get(FIRST_STEPS..) {
        Some(later)
            if verdict == Verdict::FitsWithRetries && !later.is_empty() && never_again(later) =>
        {
            StepOutcome::Steady
        }
        Some(_) | None => StepOutcome::from(verdict),
    }
}

batchfit_step::listed! {
    /// Where numbers come from.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Evidence {
        /// The steps follow from the model's graph; the allocator ran on simulated memory.
        #[default]
        Simulated = "simulated",
        /// The steps follow from recordings of the program itself; the allocator ran on simulated memory.
        Recorded = "recorded",
        /// Real kernels ran on a GPU, in a process of batchfit's own.
        Probed = "probed",
        /// The program itself trained with this batch.
        Trained = "trained",
    }
}

impl Evidence {
    /// Whether steps ran on a real device, and not on simulated memory.
    pub const fn is_real(self) -> bool {
        match self {
            Evidence::Simulated | Evidence::Recorded => false,
            Evidence::Probed | Evidence::Trained => true,
        }
    }
}

batchfit_step::listed! {
    /// Where the time of a step is from.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum SpeedFrom {
        /// Steps ran on the GPU.
        Measured = "measured",
        /// Calculated from the step's kernels, of which thousands were measured on this very card.
        Calibrated = "calibrated",
        /// Calculated from the same kernels and the card's published figures.
        Estimated = "estimated",
    }
}

/// Whether there are no bytes to tell of.
pub fn is_nothing(bytes: &u64) -> bool {
    *bytes == 0
}

/// Memory and work of one step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct StepMemory {
    /// Most bytes allocated at a time.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved at a time.
    pub peak_reserved_bytes: u64,
    /// Bytes still allocated after the step.
    pub allocated_bytes: u64,
    /// Times that the allocator freed its cache and asked again in this step. Missing in reports of versions that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Kernels launched; zero on a simulated device.
    pub launches: u64,
    /// The loss of each micro-step, null where it is not a finite number; empty on a simulated device.
    pub losses: Vec<Option<f64>>,
    /// Milliseconds of the step; null on a simulated device.
    pub elapsed_ms: Option<f64>,
}

/// Bytes allocated for one purpose at the moment of the peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CategoryBytes {
    /// What for.
    pub category: Category,
    /// How much.
    pub bytes: u64,
}

/// A moment of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelinePoint {
    /// Allocations and frees since the start.
    pub event: u64,
    /// The step it belongs to; 0 is construction.
    pub step: u32,
    /// Bytes allocated then.
    pub allocated_bytes: u64,
    /// Bytes reserved then.
    pub reserved_bytes: u64,
    /// Bytes allocated then by purpose: parameters, gradients, optimizer state, optimizer scratch, batch, activations, activation
    /// gradients, workspace, communication.
    #[serde(default)]
    pub by_category: Vec<u64>,
}

/// What one of several ranks found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RankReport {
    /// Which, from 0.
    pub rank: u32,
    /// The ranks that need what this one does, or less, as in `0-3, 6`; missing where each ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_for: Option<String>,
    /// How its steps ended.
    pub verdict: Verdict,
    /// Most bytes allocated in any step.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved in any step.
    pub peak_reserved_bytes: u64,
    /// What its process held on the GPU beside the allocator after the steps; null on a simulated device.
    pub outside_bytes: Option<u64>,
    /// Each finished step.
    #[serde(default)]
    pub steps: Vec<StepMemory>,
}

/// Most memory of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PeakMemory {
    /// Most bytes allocated in any step.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved in any step.
    pub peak_reserved_bytes: u64,
}

/// What one probe found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeReport {
    /// Samples per micro-step.
    pub batch: u64,
    /// How it ended.
    pub verdict: Verdict,
    /// Where the numbers come from.
    pub evidence: Evidence,
    /// What the allocator was allowed to reserve.
    pub limit_bytes: u64,
    /// What other processes held on the GPU just before; null on a simulated device.
    pub used_by_others_bytes: Option<u64>,
    /// What the process held on the GPU beside the allocator after the steps: CUDA's context, kernels, libraries, and of several
    /// ranks NCCL's buffers. Missing on a simulated device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside_bytes: Option<u64>,
    /// What a process keeps in the host's memory for as long as it trains, because it is offloaded there: parameters, gradients and
    /// moments. Missing where nothing is.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub host_bytes: u64,
    /// Most bytes allocated in any step.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved in any step.
    pub peak_reserved_bytes: u64,
    /// Peak reserved as simulated for the same batch and limit, beside a real probe.
    pub simulated_peak_reserved_bytes: Option<u64>,
    /// Times the allocator freed its cache and asked again, construction included.
    pub retries: u64,
    /// Allocations refused for good, convolution workspaces included.
    pub ooms: u64,
    /// Bytes allocated once the model was on the device.
    pub model_allocated_bytes: u64,
    /// Each finished step.
    pub steps: Vec<StepMemory>,
    /// How many micro-steps of each step ran, where that is less than asked for: on a GPU, a few are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_steps_run: Option<u32>,
    /// What was allocated at the peak, by purpose.
    pub at_peak: Vec<CategoryBytes>,
    /// When the peak was, and which modules held the memory. Missing where no step began, and in what only asks for a verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    /// For `out_of_memory`: what was free when the last request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortage: Option<Shortage>,
    /// Allocated and reserved memory over the whole run, thinned to at most a few hundred points.
    pub timeline: Vec<TimelinePoint>,
    /// Each allocation and free of construction and steps, simulated, also where the steps ran on a GPU. Missing where they were not
    /// asked for, and in what is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Box<MemoryEvents>>,
    /// What each rank found, where several ran together. The report's other figures are those of the one that needed most, or
    /// that ended worst. Missing where one process ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankReport>,
    /// The rank whose figures the report's other ones are: it needs most. Missing where one process ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding_rank: Option<u32>,
    /// The peaks where DDP's first buckets are gone before those that replace them in a later step are made, which depends on
    /// timing; the report's other figures take them to overlap. Missing where there is no such race.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_overlap: Option<PeakMemory>,
    /// Bytes that a rank sends to others in a step, as a ring of all ranks moves them. Missing where one process ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communicated_bytes: Option<u64>,
    /// Milliseconds of a later step, all its micro-steps together. Missing where it does not fit or is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_step_ms: Option<f64>,
    /// Where that is from. Missing where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_from: Option<SpeedFrom>,
    /// For `out_of_memory` and `failed`: what happened where.
    pub cause: Option<String>,
    /// What was assumed of the model, a sentence each; the answer is as good as these are. Missing where nothing was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// What the reader should know of the rules used: transferred, estimated.
    pub notes: Vec<String>,
}

impl Verdict {
    /// From what is fine to what is worst.
    pub(crate) const fn severity(self) -> u8 {
        match self {
            Verdict::Fits => 0,
            Verdict::FitsWithRetries => 1,
            Verdict::OutOfMemory => 2,
            Verdict::Failed => 3,
        }
    }
}

impl ProbeReport {
    /// One that says nothing else.
    pub fn new(batch: u64, verdict: Verdict, evidence: Evidence, limit: Bytes) -> ProbeReport {
        ProbeReport {
            batch,
            verdict,
            evidence,
            limit_bytes: limit.0,
            used_by_others_bytes: None,
            outside_bytes: None,
            host_bytes: 0,
            peak_allocated_bytes: 0,
            peak_reserved_bytes: 0,
            simulated_peak_reserved_bytes: None,
            retries: 0,
            ooms: 0,
            model_allocated_bytes: 0,
            steps: Vec::new(),
            micro_steps_run: None,
            at_peak: Vec::new(),
            peak: None,
            shortage: None,
            timeline: Vec::new(),
            events: None,
            ranks: Vec::new(),
            binding_rank: None,
            without_overlap: None,
            communicated_bytes: None,
            optimizer_step_ms: None,
            speed_from: None,
            cause: None,
            assumptions: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// How the steps went, all ranks together.
    pub fn course(&self) -> StepOutcome {
        let ranks = self
            .ranks
            .iter()
            .map(|rank| course(rank.verdict, &rank.steps));
        ranks.fold(course(self.verdict, &self.steps), Ord::max)
    }

    /// When the allocator gave back its cache, as in `4 times in step 1 and once in step 2, then never`; nothing where it never
    /// did, or where the report does not say when.
    pub fn retries_by_step(&self) -> Option<String> {
        let times = |retries: u64| match retries {
            1 => "once".to_owned(),
            retries => format!("{retries} times"),
        };
        let steps = (1..).zip(&self.steps);
        let parts: Vec<String> = steps
            .filter_map(|(number, step)| match step.retries? {
                0 => None,
                retries => Some(format!("{} in step {number}", times(retries))),
            })
            .collect();
        let never = match self.course() {
            StepOutcome::Steady => ", then never",
            StepOutcome::WithoutRetries | StepOutcome::WithRetries | StepOutcome::Stopped => "",
        };
        let (last, first) = parts.split_last()?;
        let and = if first.is_empty() { "" } else { " and " };
        Some(format!("{}{and}{last}{never}", first.join(", ")))
    }

    /// The report of ranks that ran together, from theirs by rank: one that fails or runs out of memory ends all. Ranks that
    /// gave none were ended for that. Nothing where no rank gave one.
    pub fn of_ranks(reports: Vec<(u32, ProbeReport)>) -> Option<ProbeReport> {
        let row = |(rank, report): &(u32, ProbeReport)| RankReport {
            rank: *rank,
            verdict: report.verdict,
            peak_allocated_bytes: report.peak_allocated_bytes,
            peak_reserved_bytes: report.peak_reserved_bytes,
            outside_bytes: report.outside_bytes,
            stands_for: None,
            steps: report.steps.clone(),
        };
        let ranks: Vec<RankReport> = reports.iter().map(row).collect();
        let most = |of: fn(&ProbeReport) -> Option<u64>| {
            let mut all: Vec<u64> = reports.iter().filter_map(|(_, one)| of(one)).collect();
            all.sort_unstable();
            all.pop()
        };
        let used_by_others_bytes = most(|report| report.used_by_others_bytes);
        let outside_bytes = most(|report| report.outside_bytes);
        let limit_bytes = reports.iter().map(|(_, one)| one.limit_bytes).min()?;
        let mut notes: Vec<String> = Vec::new();
        for note in reports.iter().flat_map(|(_, one)| &one.notes) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        // The first of those that are alike.
        let worst = reports.into_iter().rev().max_by_key(|(_, report)| {
            let severity = (report.verdict.severity(), report.course());
            (severity, report.peak_reserved_bytes)
        })?;
        let (rank, worst) = worst;
        Some(ProbeReport {
            limit_bytes,
            used_by_others_bytes,
            outside_bytes,
            binding_rank: Some(rank),
            cause: worst.cause.map(|cause| format!("rank {rank}: {cause}")),
            notes,
            ranks,
            ..worst
        })
    }
}
