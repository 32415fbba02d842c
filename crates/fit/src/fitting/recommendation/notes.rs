//! What readers are told besides figures: of a request and its card, and why a batch is not larger (the peak, and the limit that binds, by name).

use crate::device::sim::{Card, PROCESS_OVERHEAD, RANK_OVERHEAD};
use crate::graph::{Graph, Node};
use crate::model::{DEEPSPEED, Parallel, Request, Workload};
use crate::probe::{ProbeReport, Verdict};
use crate::units::Bytes;
use crate::worker::Ready;
use crate::{Limit, LimitKind, Why};

use crate::fitting::engine::outside;
use crate::fitting::plan::Larger;
use crate::fitting::probing::gpu::Lowered;

/// Ranks that trained together when a job's memory was recorded.
const RECORDED_RANKS: u64 = 2;

/// What others have to hold before it is worth a word: more than a driver keeps for itself.
const WORTH_A_NOTE: Bytes = Bytes::mib(256);

/// What a reader is told whose `chosen_percent` changes nothing.
pub(crate) fn unused(request: &Request, assumptions: &[String]) -> Option<String> {
    let is_chosen = |text: &String| text.contains("`chosen_percent`");
    (request.chosen_percent.is_some() && !assumptions.iter().any(is_chosen)).then(|| {
        "no size in the model depends on the values of a batch, so `chosen_percent` changes nothing"
            .to_owned()
    })
}

/// What a reader is told of an answer for several ranks.
pub(crate) fn data_parallelism(request: &Request, workload: &Workload) -> Vec<String> {
    let ranks = request.world_size;
    if ranks == 1 {
        return Vec::new();
    }
    if let Workload::Recorded(_) = workload {
        return vec![format!(
            "these figures are those of the recorded process; if it did not train with others when it was recorded, \
             each of {ranks} ranks also needs gradient buckets and the buffers of NCCL"
        )];
    }
    if !request.is_parallel() {
        return vec![format!(
            "these figures are those of a single process; ranks that communicate also need the buffers of NCCL, \
             about {}",
            RANK_OVERHEAD.saturating_sub(PROCESS_OVERHEAD)
        )];
    }
    let mut notes = Vec::new();
    if !request.names_strategy {
        notes.push(format!(
            "{ranks} ranks train under DistributedDataParallel, since the request names no strategy: `--parallel ddp,zero1,fsdp2` \
             (`training.parallel`) compares them"
        ));
    }
    let strategies = request.variants.iter().map(|variant| &variant.parallel);
    let strategies: Vec<&Parallel> = strategies.filter(|one| !one.is_none()).collect();
    let most = strategies
        .iter()
        .map(|one| outside(one))
        .max()
        .unwrap_or_default();
    notes.push(format!(
        "each rank keeps {most} outside the allocator, and more with NVLink multicast, several hosts or several process groups: \
         it was measured on two H200s of one host with NCCL_NVLS_ENABLE=0, and NCCL uses NVLink multicast where GPUs share an \
         NVSwitch; take some off the limit there"
    ));
    if ranks != RECORDED_RANKS {
        notes.push(format!(
            "only jobs of {RECORDED_RANKS} ranks were recorded: for {ranks} the same rules are taken to hold, unchecked"
        ));
    }
    if request.trainer_wraps {
        notes.push(
            "DDP is set up as transformers' Trainer does it, with find_unused_parameters unless the model checkpoints itself; your own \
             DistributedDataParallel(model) may need as much more as all gradients take: `--find-unused-parameters false` asks about it"
                .to_owned(),
        );
    }
    if strategies.iter().any(|one| one.replaces_buckets()) {
        notes.push(
            "the first gradient buckets are taken to overlap with those that replace them in the second step, which depends on timing: \
             where they do not, a step needs less"
                .to_owned(),
        );
    }
    let is_zero = |one: &&Parallel| matches!(one, Parallel::Zero1(_));
    if strategies.iter().any(is_zero) {
        notes.push(format!(
            "zero1 is PyTorch's ZeroRedundancyOptimizer around DDP, and not DeepSpeed's ZeRO-1, which is not modelled: {DEEPSPEED}"
        ));
    }
    if let Workload::Graph(graph) = workload
        && let Some(node) = pairs(graph)
    {
        notes.push(format!(
            "the loss pairs samples of a batch with each other ({}): each rank is taken to pair its own alone. One that gathers the \
             outputs of all {ranks} ranks, as contrastive losses do, pairs them with {ranks} times as many and needs more: put the \
             gathering into the module or the loss that is exported, as torch.cat([outputs] * {ranks})",
            node.op.name()
        ));
    }
    notes
}

/// The operation that pairs samples of the batch with each other: the batch is two of its result's dimensions, and one of its
/// operands'.
fn pairs(graph: &Graph) -> Option<&Node> {
    let of_batch = |id| {
        let lengths = graph.value(id).shape.iter();
        lengths.filter(|one| one.as_fixed().is_none()).count()
    };
    graph.nodes.iter().find(|node| {
        let operands = || node.inputs.iter().map(|id| of_batch(*id));
        node.outputs.iter().any(|id| of_batch(*id) > 1)
            && operands().filter(|dimensions| *dimensions == 1).count() > 1
            && operands().all(|dimensions| dimensions < 2)
    })
}

/// What a reader is told who named machines of a cloud: which cards were taken, and how many ranks where not all are used once.
pub(crate) fn machines(request: &Request) -> Vec<String> {
    let machines = &request.machines;
    let cards: u64 = machines.iter().map(|machine| machine.count).sum();
    let mut notes: Vec<String> = machines.iter().map(ToString::to_string).collect();
    if let (Some(last), false) = (notes.last_mut(), cards == request.world_size) {
        let ranks = request.world_size;
        *last = format!("{last}; the request has {ranks} ranks (`world_size`)");
    }
    notes
}

/// What a reader is told where ranks have different cards.
pub(crate) fn uneven(request: &Request, binding: &Card) -> Option<String> {
    let others: Vec<&str> = request
        .cards
        .iter()
        .map(String::as_str)
        .filter(|name| *name != binding.name)
        .collect();
    (!others.is_empty()).then(|| {
        format!(
            "of the cards in this job, {} leaves PyTorch the least memory and decides for all ranks, since each has the same batch; \
             the other: {}",
            binding.name,
            others.join(", ")
        )
    })
}

/// What a reader is told of ranks that ran on GPUs of their own.
pub(crate) fn ran_together(ranks: u64, devices: &str) -> String {
    format!(
        "{ranks} ranks ran together on {devices}, a process each, with batches of their own; the limit is what NCCL and \
         CUDA left on the one that has least"
    )
}

/// What a reader is told where the recordings say the allocator's settings, and the request does not.
pub(crate) fn settings_as_recorded(request: &Request, workload: &Workload) -> Option<String> {
    let Workload::Recorded(steps) = workload else {
        return None;
    };
    let settings = steps.allocator.as_deref();
    let settings = settings.filter(|_| request.allocator.is_empty())?;
    Some(format!(
        "the allocator's settings are those that were recorded: {settings}"
    ))
}

/// What a reader is told of memory that other processes hold.
pub(crate) fn others(ready: &Ready) -> Option<String> {
    let used = Bytes(ready.used_by_others_bytes?);
    (used >= WORTH_A_NOTE).then(|| {
        format!(
            "other processes use {used} of the GPU's {}; the limit is what they leave",
            Bytes(ready.gpu.total_bytes)
        )
    })
}

/// What a reader is told of a fit whose limit did not last.
pub(crate) fn restarted(limit: Bytes, lowered: &Lowered) -> String {
    format!(
        "other processes took memory of the GPU during the fit and use {} now; it was started again with a limit of \
         {} instead of {limit}",
        lowered.used_by_others, lowered.limit
    )
}

/// Where the allocator's limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitSource {
    /// The request names it.
    Asked,
    /// It is all that the device has for the allocator.
    Device,
}

/// What is known around an answer.
pub(crate) struct Around<'a> {
    /// The probe of the recommended batch, or of a batch of one where nothing fits.
    pub(crate) at: &'a ProbeReport,
    /// The probe above the largest batch without retries, where there is one.
    pub(crate) above: Option<&'a ProbeReport>,
    /// The largest batch without retries.
    pub(crate) largest: u64,
    /// Whether larger batches are not tried, whatever they need.
    pub(crate) at_ceiling: bool,
    /// The headroom.
    pub(crate) headroom: Bytes,
    /// The larger batch that is hardly faster, where a fast one was asked for.
    pub(crate) objective: Option<&'a Larger>,
    /// Whether a number of samples for each optimizer step was asked for.
    pub(crate) has_target: bool,
    /// Where the limit comes from.
    pub(crate) source: LimitSource,
}

impl Around<'_> {
    /// The peak of the recommended batch and the limit that binds.
    pub(crate) fn why(&self) -> Why {
        Why {
            at_peak: self.at.at_peak.clone(),
            peak: self.at.peak.clone(),
            limit: self.limit(),
        }
    }

    fn limit(&self) -> Limit {
        if let Some(larger) = self.objective {
            let (largest, explanation) = larger.explained();
            return Limit::new(LimitKind::Objective, Some(largest), explanation);
        }
        if self.at.verdict == Verdict::Fits && self.at.batch < self.largest {
            let largest = self.largest;
            let (kind, explanation) = if self.has_target {
                let text = format!("batches up to {largest} run; `target_batch` needs no larger");
                (LimitKind::TargetBatch, text)
            } else {
                let free = self.headroom;
                let text = format!(
                    "batches up to {largest} run, but leave less than {free} of the limit free"
                );
                (LimitKind::Headroom, text)
            };
            return Limit::new(kind, Some(largest), explanation);
        }
        if self.at_ceiling {
            let explanation = format!("batches above {} are not tried", self.largest);
            return Limit::new(LimitKind::LargestTried, None, explanation);
        }
        match self.above {
            Some(above) if above.verdict != Verdict::Fits => self.refused(above),
            Some(_) | None => {
                let kind = self.memory(self.at, 0);
                let explanation = format!("no larger batch was tried beside {}", self.named(kind));
                Limit::new(kind, None, explanation)
            }
        }
    }

    /// What binds where a batch was refused memory, or had to ask twice.
    fn refused(&self, above: &ProbeReport) -> Limit {
        let (batch, limit) = (above.batch, Bytes(above.limit_bytes));
        let Some(shortage) = above.shortage else {
            let peak = Bytes(above.peak_allocated_bytes);
            let text = format!(
                "the tensors of batch {batch} take at most {peak} of {limit}, but the free blocks that the allocator keeps do \
                 not fit them, and it has to return some to the driver in the middle of a step"
            );
            return Limit::new(LimitKind::Fragmentation, Some(batch), text);
        };
        let requested = shortage.requested_bytes.unwrap_or(0);
        let needed = shortage.allocated_bytes.saturating_add(requested);
        let (asked, free) = (Bytes(requested), Bytes(shortage.free_bytes));
        let (kind, explanation) = if needed <= limit.0 {
            let largest = Bytes(shortage.largest_free_bytes);
            let pieces = shortage.free_pieces;
            let text = format!(
                "batch {batch} asks for {asked} where {} of {limit} are allocated; {free} lie free in {pieces} pieces, \
                 the largest of them {largest}",
                Bytes(shortage.allocated_bytes)
            );
            (LimitKind::Fragmentation, text)
        } else {
            let kind = self.memory(above, needed - limit.0);
            let text = format!(
                "batch {batch} asks for {asked} on top of {} of tensors: {} more than {}",
                Bytes(shortage.allocated_bytes),
                Bytes(needed - limit.0),
                self.named(kind)
            );
            (kind, text)
        };
        Limit {
            kind,
            batch: Some(batch),
            explanation,
            shortage: Some(shortage),
        }
    }

    /// Whose limit it is where `missing` bytes more would do.
    fn memory(&self, report: &ProbeReport, missing: u64) -> LimitKind {
        let others = self.others(report);
        match self.source {
            LimitSource::Asked => LimitKind::MemoryLimit,
            LimitSource::Device if others > 0 && missing <= others => LimitKind::OtherProcesses,
            LimitSource::Device => LimitKind::Device,
        }
    }

    /// Bytes that other processes held on the device.
    fn others(&self, report: &ProbeReport) -> u64 {
        let told = report.used_by_others_bytes.or(self.at.used_by_others_bytes);
        told.unwrap_or(0)
    }

    fn named(&self, kind: LimitKind) -> String {
        let limit = Bytes(self.at.limit_bytes);
        match kind {
            LimitKind::MemoryLimit => format!("the memory limit of {limit} that was asked for"),
            LimitKind::OtherProcesses => format!(
                "the {limit} that other processes leave, which hold {}",
                Bytes(self.others(self.at))
            ),
            LimitKind::Device
            | LimitKind::Fragmentation
            | LimitKind::Headroom
            | LimitKind::Objective
            | LimitKind::TargetBatch
            | LimitKind::Host
            | LimitKind::LargestTried => format!("the {limit} that the device has for PyTorch"),
        }
    }
}
