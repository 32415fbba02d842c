//! From a request to its [`FitSpec`]: the model as it is run, the card, the memory, and what readers are told.

use std::borrow::Cow;

use crate::alloc::{MemoryLimit, Settings, limit_of_fraction};
use crate::device::sim::workspaces::WorkspaceTable;
use crate::device::sim::{
    Card, CardMemory, PROCESS_OVERHEAD, RANK_OVERHEAD, SHARDED_OVERHEAD, Workspaces,
};
use crate::fitting::Result;
use crate::fitting::devices::{resolve, together};
use crate::fitting::probing::gpu::GpuProber;
use crate::fitting::probing::runner::{Observer, Runner as _};
use crate::fitting::probing::simulator::Simulator;
use crate::fitting::recommendation::notes::{
    data_parallelism, machines, others, ran_together, settings_as_recorded, uneven, unused,
};
use crate::limits::{Cancel, with_cancel};
use crate::model::{
    ASK_BF16, DeviceChoice, Lowered, Parallel, Precision, Request, SearchMode, Variant, Workload,
};
use crate::units::Bytes;
use crate::validate::settings_in_force;
use crate::worker::{Deadlines, Gpu, Ready};
use crate::{EngineError, Environment};

use super::FitEngine;

/// A request with all that its answer follows from.
pub(crate) struct FitSpec<'a> {
    /// Of recordings with as many micro-steps as they have, at least.
    pub(crate) request: Cow<'a, Request>,
    /// What there is for the allocator.
    pub(crate) budget: MemoryBudget,
    /// The largest batch that may be tried: the graph holds for no larger one.
    pub(crate) ceiling: u64,
    pub(crate) environment: Environment,
    /// What the reader should know whatever the answer is.
    pub(crate) notes: Vec<String>,
    /// What was assumed of the model.
    pub(crate) assumptions: Vec<String>,
}

/// What is to be done where a GPU is there and its workers are lost before it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// To answer by simulation, and say why.
    Simulate,
    /// To fail.
    Fail,
}

impl FitEngine {
    /// Opens the device of a request that was resolved.
    pub(crate) fn open<'a>(
        &self,
        request: &'a Request,
        deadlines: Deadlines,
        fallback: Fallback,
        observer: &'a Observer<'a>,
    ) -> Result<(FitSpec<'a>, Simulator, Option<GpuProber<'a>>)> {
        let cancel = observer.cancel();
        let lowered = lowered(request, cancel)?;
        let workload = &lowered.workload;
        let settings = settings_in_force(request, workload)?;
        let mut notes = lowered.notes.clone();
        notes.extend(settings_as_recorded(request, workload));
        let assumptions = lowered.assumptions.clone();
        notes.extend(unused(request, &assumptions));
        if let Some(card) = card(request) {
            request.fits_on(card.total_memory)?;
            notes.extend(data_parallelism(request, workload));
            let found = (notes, assumptions);
            let (spec, simulator) = simulated(request, workload, card, settings, found, cancel);
            return Ok((spec, simulator, None));
        }
        let mut listed = Vec::new();
        let inventory = || {
            let inventory = self.catalogue.inventory();
            listed.clone_from(&inventory.gpus);
            inventory
        };
        let (name, gpu) = resolve(&request.device, inventory)?;
        request.fits_on(Bytes(gpu.total_bytes))?;
        let place = (name, listed.as_slice(), gpu);
        let with = (deadlines, fallback, observer);
        let (gpu, ready) = self.open_gpu(request, workload, place, with, &mut notes)?;
        let device = match &gpu {
            Some(gpu) => gpu.device().name.to_owned(),
            None => format!("cuda:{}", ready.gpu.ordinal),
        };
        notes.extend(of_generation(ready.gpu.capability.compute, request));
        let available = Bytes(ready.available_bytes);
        let memory = CardMemory {
            total: Bytes(ready.gpu.total_bytes),
            available,
        };
        notes.extend(match &gpu {
            Some(_) if request.is_parallel() => {
                vec![ran_together(request.world_size, &device)]
            }
            Some(_) | None => data_parallelism(request, workload),
        });
        let asked = requested_limit(request, &settings, memory);
        match &ready.no_room {
            Some(why) => notes.push(why.clone()),
            None if asked.is_none_or(|asked| asked > memory.available) => {
                notes.extend(others(&ready));
            }
            None => {}
        }
        let budget = MemoryBudget {
            asked,
            available: memory.available,
            // What ranks need to talk was measured where they do.
            is_of_rank: gpu.is_some(),
        };
        notes.extend(budget.note(strategies(request)));
        let simulator = Simulator::new(
            device.clone(),
            workload.clone(),
            ready.gpu.capability,
            settings,
            memory,
            cancel,
        )
        .of_card(Card::of_product(&ready.gpu.name));
        let spec = FitSpec {
            request: Cow::Borrowed(request),
            budget,
            ceiling: simulator.ceiling(),
            environment: Environment {
                driver: ready.gpu.driver,
                cuda: ready.cuda,
                cudnn: ready.cudnn,
                ..Environment::new(device, ready.gpu.name)
            },
            notes,
            assumptions,
        };
        // Without room for a process on the card, only simulation can say how much is missing.
        let gpu = gpu.filter(|_| ready.no_room.is_none());
        Ok((spec, simulator, gpu))
    }

    /// Opens the GPU of this name, or one for each rank, where what is asked can run there; tells why not where it cannot.
    fn open_gpu<'a>(
        &self,
        request: &Request,
        workload: &Workload,
        (name, listed, gpu): (String, &[Gpu], Gpu),
        (deadlines, fallback, observer): (Deadlines, Fallback, &'a Observer<'a>),
        notes: &mut Vec<String>,
    ) -> Result<(Option<GpuProber<'a>>, Ready)> {
        let devices = if request.is_parallel() {
            together(&request.device, listed, request.world_size)
        } else {
            Ok(vec![name])
        };
        let opened = match (workload, &devices) {
            (Workload::Graph(graph), Ok(devices)) => {
                let question = (request, &**graph);
                GpuProber::open(&self.program, deadlines, devices, question, observer).map(Some)
            }
            (Workload::Graph(_), Err(why)) => {
                notes.push(why.clone());
                Ok(None)
            }
            // What was recorded cannot be run here.
            (Workload::Recorded(_), _) => Ok(None),
        };
        match opened {
            Ok(Some((prober, ready))) => Ok((Some(prober), ready)),
            Ok(None) => Ok((None, unopened(gpu))),
            Err(EngineError::DeviceFailed { cause, .. }) if fallback == Fallback::Simulate => {
                notes.push(format!(
                    "simulated, because no worker could open the GPU: {cause}"
                ));
                Ok((None, unopened(gpu)))
            }
            Err(error) => Err(error),
        }
    }
}

/// What is known of a GPU that no worker could open.
fn unopened(gpu: Gpu) -> Ready {
    Ready {
        available_bytes: Bytes(gpu.free_bytes).saturating_sub(PROCESS_OVERHEAD).0,
        used_by_others_bytes: Some(gpu.total_bytes.saturating_sub(gpu.free_bytes)),
        cuda: None,
        cudnn: None,
        no_room: None,
        gpu,
    }
}

/// The request's graph, unless `cancel` becomes true while it is read.
pub(crate) fn lowered<'a>(request: &'a Request, cancel: &Cancel) -> Result<&'a Lowered> {
    let read = with_cancel(cancel, || request.lower()).ok_or(EngineError::Cancelled)?;
    Ok(read?)
}

/// Whether steps have to be recorded, unless `cancel` becomes true while the graph is read.
pub(crate) fn is_to_be_recorded(request: &Request, cancel: &Cancel) -> Result<bool> {
    if request.search == SearchMode::Recorded {
        return Ok(true);
    }
    Ok(lowered(request, cancel)?.not_understood.is_some())
}

/// What simulates a request about a simulated card, and what there is for the allocator.
pub(crate) fn simulation(
    request: &Request,
    card: &'static Card,
    cancel: &Cancel,
) -> Result<(Simulator, MemoryBudget)> {
    let workload = &lowered(request, cancel)?.workload;
    let settings = settings_in_force(request, workload)?;
    let untold = (Vec::new(), Vec::new());
    let (spec, simulator) = simulated(request, workload, card, settings, untold, cancel);
    Ok((simulator, spec.budget))
}

/// What a request about a simulated card is answered with.
fn simulated<'a>(
    request: &'a Request,
    workload: &Workload,
    card: &'static Card,
    settings: Settings,
    (mut notes, assumptions): (Vec<String>, Vec<String>),
    cancel: &Cancel,
) -> (FitSpec<'a>, Simulator) {
    let device = format!("sim:{}", card.name);
    if card.capability.compute < WITH_BF16 {
        notes.retain(|note| !note.ends_with(ASK_BF16));
    }
    notes.extend(of_generation(card.capability.compute, request));
    notes.extend(card.notes());
    notes.extend(machines(request));
    notes.extend(uneven(request, card));
    if request.search == SearchMode::Probes {
        notes.push(format!(
            "{device} is a simulated device: `search` set to \"probes\" changes nothing there"
        ));
    }
    let memory = card.memory();
    let budget = room_on(request, &settings, memory);
    notes.extend(budget.note(strategies(request)));
    let simulator = Simulator::new(
        device.clone(),
        workload.clone(),
        card.capability,
        settings,
        memory,
        cancel,
    )
    .of_card(Some(card));
    let is_other = other_card(workload, memory, &mut notes);
    let simulator = match (card.workspaces, workload) {
        (Workspaces::Recorded, Workload::Graph(_)) => simulator,
        (_, Workload::Recorded(_)) if !is_other => simulator,
        (Workspaces::Recorded | Workspaces::Transferred, _) => simulator.transferred(),
    };
    let spec = FitSpec {
        request: Cow::Borrowed(request),
        budget,
        ceiling: simulator.ceiling(),
        environment: Environment {
            cudnn: WorkspaceTable::h200().cudnn().map(ToOwned::to_owned),
            ..Environment::new(device, card.product)
        },
        notes,
        assumptions,
    };
    (spec, simulator)
}

/// The simulated card that a request names; `None` where that is a real one.
pub(crate) fn card(request: &Request) -> Option<&'static Card> {
    match &request.device {
        DeviceChoice::Sim(name) => Card::find(name),
        DeviceChoice::Auto
        | DeviceChoice::Cuda(_)
        | DeviceChoice::Kind(_)
        | DeviceChoice::Host(..) => None,
    }
}

/// Whether recordings are of another card than the one asked about, as far as its memory tells; then that is noted.
fn other_card(workload: &Workload, memory: CardMemory, notes: &mut Vec<String>) -> bool {
    /// Cards of one name differ by less, with what firmware keeps.
    const ALIKE: f64 = 0.02;
    let Workload::Recorded(steps) = workload else {
        return false;
    };
    let Some(total) = steps.total else {
        notes.push(
            "the recordings do not say on which GPU they were made; on another one, PyTorch's libraries may take \
             other scratch memory"
                .to_owned(),
        );
        return false;
    };
    let apart = (total.0 as f64 - memory.total.0 as f64).abs();
    let is_other = apart > ALIKE * memory.total.0 as f64;
    if is_other {
        notes.push(format!(
            "recorded on a GPU with {total}, and asked for one with {}: PyTorch's libraries may take other scratch \
             memory there",
            memory.total
        ));
    }
    is_other
}

/// What a request leaves its allocator of a card that it has alone.
pub(crate) fn room_on(request: &Request, settings: &Settings, memory: CardMemory) -> MemoryBudget {
    MemoryBudget {
        asked: requested_limit(request, settings, memory),
        available: memory.available,
        is_of_rank: false,
    }
}

/// The limit that a request names: its own, or the fraction in its allocator settings.
pub(crate) fn requested_limit(
    request: &Request,
    settings: &Settings,
    memory: CardMemory,
) -> Option<Bytes> {
    match request.memory_limit {
        Some(MemoryLimit::Bytes(bytes)) => Some(bytes),
        Some(MemoryLimit::Fraction(fraction)) => limit_of_fraction(fraction, memory.total),
        None => settings.limit(memory.total),
    }
}

/// The first compute capability with bfloat16 (NVIDIA's CUDA C++ Programming Guide, "Arithmetic Instructions").
pub(crate) const WITH_BF16: (u32, u32) = (8, 0);

/// What a reader should know of a card's compute capability.
fn of_generation(compute: (u32, u32), request: &Request) -> Vec<String> {
    /// The first that PyTorch 2.11's wheels for CUDA 12.8 and 13.0 have kernels for (RELEASE.md, "CUDA Support Matrix").
    const IN_WHEELS: (u32, u32) = (7, 5);
    let (major, minor) = compute;
    let is_bf16 =
        |variant: &Variant| matches!(variant.precision, Precision::AmpBf16 | Precision::Bf16);
    let mut notes = Vec::new();
    if compute < WITH_BF16 && request.variants.iter().any(is_bf16) {
        notes.push(format!(
            "this card has no bfloat16 (compute capability {major}.{minor}; it takes 8.0): PyTorch runs it, products no faster than in \
             float32 and convolutions without cuDNN, so that steps may take longer and other scratch memory than is said; `amp_fp16` (--amp \
             fp16) is what this card is fast in"
        ));
    }
    if compute < IN_WHEELS {
        notes.push(format!(
            "PyTorch 2.11's wheels for CUDA 12.8 and 13.0 have no kernels for compute capability {major}.{minor}: this card takes the wheel \
             for CUDA 12.6"
        ));
    }
    notes
}

/// How the variants of a request train with others.
fn strategies(request: &Request) -> impl Iterator<Item = &Parallel> {
    request.variants.iter().map(|variant| &variant.parallel)
}

/// What is on a card for PyTorch's allocator, and how much of it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// The limit that the request names, if it does.
    pub(crate) asked: Option<Bytes>,
    /// What a process has that trains alone; of ranks that were measured, what each has.
    pub(crate) available: Bytes,
    /// Whether what ranks need to talk to each other is off it already.
    pub(crate) is_of_rank: bool,
}

/// What a process holds outside its allocator, by how it trains with others.
pub(crate) fn outside(parallel: &Parallel) -> Bytes {
    match parallel {
        // One rank communicates with no other.
        one if one.world_size() == 1 => PROCESS_OVERHEAD,
        Parallel::None => PROCESS_OVERHEAD,
        Parallel::Ddp(_) | Parallel::Zero1(_) => RANK_OVERHEAD,
        Parallel::Fsdp2(_) => SHARDED_OVERHEAD,
    }
}

/// How much of that is for talking to others.
pub(crate) fn for_others(parallel: &Parallel) -> Bytes {
    outside(parallel).saturating_sub(PROCESS_OVERHEAD)
}

impl MemoryBudget {
    /// What each of several processes that train so has.
    pub(crate) fn available(&self, parallel: &Parallel) -> Bytes {
        if self.is_of_rank {
            return self.available;
        }
        self.available.saturating_sub(for_others(parallel))
    }

    /// What its allocator may reserve: what was asked for, or all there is.
    pub(crate) fn limit(&self, parallel: &Parallel) -> Bytes {
        let available = self.available(parallel);
        self.asked.map_or(available, |asked| asked.min(available))
    }

    /// What a reader is told where more is asked for than there is.
    pub(crate) fn note<'a>(
        &self,
        strategies: impl Iterator<Item = &'a Parallel>,
    ) -> Option<String> {
        let asked = self.asked?;
        let least = strategies.map(|parallel| self.available(parallel)).min()?;
        (asked > least).then(|| {
            format!(
                "the memory limit of {asked} is more than the {least} that the device has for PyTorch's allocator; \
                 the answer is for {least}"
            )
        })
    }
}
