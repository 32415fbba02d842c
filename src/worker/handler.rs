//! The workbench of a real worker: a device, compiled programs, probes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::alloc::Settings;
use crate::device::cuda::plan::Target;
use crate::device::cuda::{self, Facts, Library};
use crate::device::sim::{Card, Estimates, SimulatedLauncher};
use crate::device::{Capability, LaunchError};
use crate::limits::Cancel;
use crate::model::{DeviceChoice, Request, RequestDocument, Variant};
use crate::probe::{Detail, Evidence, Probe, ProbeReport, STEPS, SimulatedProcess};
use crate::program::Program;
use crate::units::Bytes;

use super::card::{self, OpenCard, all_facts, facts_of, missing_libraries};
use super::child::Handler;
use super::choice::{Candidate, by_preference, take_free};
use super::fault::{FaultPlan, Faulty};
use super::gpu_lock::{GpuLock, GpuLockError, for_at_most};
use batchfit_fit::worker::programs::Programs;
use batchfit_fit::worker::protocol::{Answer, Gpu, ProbeOrder, Ready, Refusal};

/// How long a `take` waits for its turn before it is answered with `busy`.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Opens devices and runs probes on them.
pub struct GpuHandler {
    work: Option<Work>,
    /// After `work`: what it holds on the GPU goes before the turn does.
    taken: Option<OpenedDevice>,
    /// Whether a `take` was answered with `busy`: the memory of the process that was waited for may still be on its
    /// way back when the turn comes.
    has_waited: bool,
    locks: PathBuf,
    kernel_cache: Option<PathBuf>,
    fault: Option<FaultPlan>,
}

/// What a `take` leaves.
enum OpenedDevice {
    Simulated(&'static Card),
    Cuda {
        number: u32,
        facts: Facts,
        lock: GpuLock,
    },
}

/// What an `open` leaves.
struct Work {
    /// Which of the ranks that train together this is.
    rank: u32,
    programs: Programs,
    settings: Settings,
    device: Device,
}

enum Device {
    Simulated {
        card: &'static Card,
        launcher: SimulatedLauncher,
    },
    Cuda(Box<OpenCard>),
}

/// The batch at which a program is looked at before a card is opened: more than one sample, so that no dimension
/// of a batch is one by chance.
const BATCH_OF_A_PLAN: u64 = 2;

pub(super) type Refused = (Refusal, String);

/// One batch of a program, perhaps with a planned fault.
pub(super) struct Task<'a> {
    program: &'a Program,
    batch: u64,
    pub(super) fault: Option<&'a FaultPlan>,
}

impl Task<'_> {
    pub(super) fn probe(&self) -> Probe<'_> {
        Probe {
            program: self.program,
            batch: self.batch,
            steps: STEPS,
            detail: Detail::Full,
        }
    }
}

impl GpuHandler {
    /// Nothing is open yet. Workers that share GPUs share the directory of `locks`; `kernel_cache` is where compiled
    /// kernels are kept for the next worker.
    pub fn new(
        locks: PathBuf,
        kernel_cache: Option<PathBuf>,
        fault: Option<FaultPlan>,
    ) -> GpuHandler {
        GpuHandler {
            work: None,
            taken: None,
            has_waited: false,
            locks,
            kernel_cache,
            fault,
        }
    }

    /// Takes a GPU, of this number or any, or says whose turn it is.
    fn take_gpu(&mut self, number: Option<u32>) -> Result<Answer, Refused> {
        let cards = all_facts()?;
        let taken = if let Some(number) = number {
            let facts = facts_of(number, cards.clone())?;
            GpuLock::take(&self.locks, &facts.uuid, PATIENCE).map(|lock| (number, lock))
        } else {
            let candidates = by_preference(candidates(&cards));
            take_free(&self.locks, &candidates, for_at_most(PATIENCE))
        };
        let (number, lock) = match taken {
            Ok(taken) => taken,
            Err(busy @ GpuLockError::Busy(_)) => {
                self.has_waited = true;
                let detail = busy.to_string();
                return Ok(Answer::Busy { detail });
            }
            Err(error @ GpuLockError::Unusable { .. }) => {
                return Err((Refusal::DeviceUnavailable, error.to_string()));
            }
        };
        let facts = facts_of(number, cards)?;
        self.taken = Some(OpenedDevice::Cuda {
            number,
            facts,
            lock,
        });
        Ok(Answer::Taken)
    }

    /// Opens what was taken: the device, unless it has no room, and what is said of it.
    fn open_device(&self) -> Result<(Option<Device>, Ready), Refused> {
        match &self.taken {
            None => Err((Refusal::OutOfTurn, "no device was taken".to_owned())),
            Some(OpenedDevice::Simulated(card)) => {
                let launcher = SimulatedLauncher::of(Some(card));
                Ok((Some(Device::Simulated { card, launcher }), simulated(card)))
            }
            Some(OpenedDevice::Cuda {
                number,
                facts,
                lock,
            }) => {
                let was_in_use = self.has_waited || lock.has_waited;
                let kernel_cache = self.kernel_cache.as_deref();
                let (card, ready) = card::open(*number, facts, was_in_use, kernel_cache)?;
                Ok((card.map(|card| Device::Cuda(Box::new(card))), ready))
            }
        }
    }
}

/// What `auto` may take.
fn candidates(facts: &[Facts]) -> Vec<Candidate> {
    let cards = cuda::cards().unwrap_or_default();
    let candidate = |(number, facts): (u32, &Facts)| {
        let Gpu {
            total_bytes,
            free_bytes,
            ..
        } = described(number, facts.clone(), &cards);
        Candidate {
            number,
            uuid: facts.uuid.clone(),
            total: Bytes(total_bytes),
            free: Bytes(free_bytes),
        }
    };
    (0..).zip(facts).map(candidate).collect()
}

impl Handler for GpuHandler {
    fn take(&mut self, device: &str) -> Result<Answer, Refused> {
        self.work = None;
        self.taken = None;
        match DeviceChoice::parse(device, "/device").map_err(|it| invalid(&it))? {
            DeviceChoice::Sim(name) => {
                let absent = || (Refusal::Invalid, format!("there is no card `{name}`"));
                let card = Card::find(&name).ok_or_else(absent)?;
                self.taken = Some(OpenedDevice::Simulated(card));
                Ok(Answer::Taken)
            }
            DeviceChoice::Auto => self.take_gpu(None),
            DeviceChoice::Cuda(number) => self.take_gpu(Some(number)),
            // The parent says which card it is.
            other @ (DeviceChoice::Kind(_) | DeviceChoice::Host(..)) => Err((
                Refusal::Invalid,
                format!("{other} is no card of this machine"),
            )),
        }
    }

    fn open(&mut self, request: &str, rank: u32) -> Result<Answer, Refused> {
        self.work = None;
        let request = RequestDocument::from_json(request.as_bytes())
            .and_then(Request::parse)
            .map_err(|error| invalid(&error))?;
        let settings = request.allocator.parse().map_err(|error| invalid(&error))?;
        let graph = request.graph().map_err(|error| invalid(&error))?;
        let capability = match &self.taken {
            None => return Err((Refusal::OutOfTurn, "no device was taken".to_owned())),
            Some(OpenedDevice::Simulated(card)) => card.capability,
            Some(OpenedDevice::Cuda { facts, .. }) => facts.capability,
        };
        let mut programs = Programs::new(graph, capability).of_rank(rank);
        if let (Some(OpenedDevice::Cuda { .. }), [variant, ..]) = (&self.taken, &*request.variants)
        {
            expect_no_gaps(&mut programs, variant, capability)?;
        }
        let (device, ready) = self.open_device()?;
        self.work = device.map(|device| Work {
            rank,
            programs,
            settings,
            device,
        });
        Ok(Answer::Ready(ready))
    }

    fn invite(&mut self) -> Result<Answer, Refused> {
        let invitation = match &self.taken {
            None => return Err((Refusal::OutOfTurn, "no device was taken".to_owned())),
            Some(OpenedDevice::Simulated(_)) => String::new(),
            Some(OpenedDevice::Cuda { .. }) => card::invite()?,
        };
        Ok(Answer::Invitation { invitation })
    }

    fn join(&mut self, invitation: &str, ranks: u32) -> Result<Answer, Refused> {
        let Some(work) = &mut self.work else {
            return Err((Refusal::OutOfTurn, "no device is open".to_owned()));
        };
        Ok(Answer::Ready(match (&mut work.device, &self.taken) {
            (Device::Cuda(card), Some(OpenedDevice::Cuda { number, facts, .. })) => {
                card.join(invitation, (work.rank, ranks), (*number, facts))?
            }
            (Device::Simulated { card, .. }, _) => simulated(card),
            (Device::Cuda(_), _) => {
                return Err((Refusal::OutOfTurn, "no device was taken".to_owned()));
            }
        }))
    }

    fn list(&mut self) -> Answer {
        let (gpus, missing) = inventory();
        Answer::Inventory { gpus, missing }
    }

    fn probe(&mut self, order: &ProbeOrder) -> Result<Answer, Refused> {
        let Some(work) = &mut self.work else {
            return Err((Refusal::OutOfTurn, "no device is open".to_owned()));
        };
        let program = work
            .programs
            .of(&order.variant, &Cancel::NEVER)
            .map_err(|error| (Refusal::Invalid, error.to_string()))?;
        let task = Task {
            program,
            batch: order.batch,
            fault: self.fault.as_ref(),
        };
        let limit = Bytes(order.limit_bytes);
        let report = match &mut work.device {
            Device::Simulated { card, launcher } => {
                let mut process = SimulatedProcess {
                    memory: card.memory(),
                    settings: &work.settings,
                    limit,
                    launcher: &mut Faulty::new(launcher, task.fault),
                    evidence: Evidence::Simulated,
                    cancel: &Cancel::NEVER,
                };
                let report = process.probe(&task.probe());
                let report = report.expect("nothing else can cancel it");
                let estimates = launcher.take_estimates();
                let notes = estimates.iter().map(Estimates::note).collect();
                ProbeReport { notes, ..report }
            }
            Device::Cuda(card) => card.probe(&task, &work.settings, limit)?,
        };
        Ok(Answer::Report(Box::new(report)))
    }
}

/// Refuses a model that the card cannot run before anything is opened on it. Of several variants the first is looked
/// at, which stands for the others: each probe looks at its own before it allocates.
fn expect_no_gaps(
    programs: &mut Programs,
    variant: &Variant,
    capability: Capability,
) -> Result<(), Refused> {
    let program = programs.of(variant, &Cancel::NEVER);
    let program = program.map_err(|error| (Refusal::Invalid, error.to_string()))?;
    let gaps = cuda::plan::survey(program, BATCH_OF_A_PLAN, Target::of(&capability)).gaps;
    if gaps.is_empty() {
        return Ok(());
    }
    let operation = cuda::plan::listed(&gaps);
    Err((
        Refusal::DeviceFailed,
        LaunchError::Unsupported { operation }.to_string(),
    ))
}

fn invalid(error: &dyn fmt::Display) -> Refused {
    (Refusal::Invalid, error.to_string())
}

/// The GPUs in CUDA's order, and why they cannot be used.
fn inventory() -> (Vec<Gpu>, Option<String>) {
    let missing = Library::missing();
    let facts = match cuda::Gpu::inventory() {
        Ok(facts) => facts,
        Err(_) if !missing.is_empty() => return (Vec::new(), Some(missing_libraries(&missing))),
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let cards = cuda::cards().unwrap_or_default();
    let gpus: Vec<_> = (0..)
        .zip(facts)
        .map(|(ordinal, facts)| described(ordinal, facts, &cards))
        .collect();
    let missing = if gpus.is_empty() {
        Some("this machine has no NVIDIA GPU".to_owned())
    } else {
        (!missing.is_empty()).then(|| missing_libraries(&missing))
    };
    (gpus, missing)
}

/// A card in the words of the protocol; `cards` are those that the management library sees.
pub(super) fn described(ordinal: u32, facts: Facts, cards: &[cuda::Card]) -> Gpu {
    let managed = cards.iter().find(|card| card.uuid == facts.uuid);
    Gpu {
        ordinal,
        total_bytes: facts.total.0,
        free_bytes: managed.map_or(facts.total, |card| card.free).0,
        capability: facts.capability,
        driver: managed.map(|card| card.driver.clone()),
        cudnn: facts.cudnn.clone(),
        name: facts.name,
    }
}

fn simulated(card: &Card) -> Ready {
    Ready {
        gpu: Gpu {
            ordinal: 0,
            name: card.product.to_owned(),
            total_bytes: card.total_memory.0,
            free_bytes: card.total_memory.0,
            capability: card.capability,
            driver: None,
            cudnn: None,
        },
        cuda: None,
        cudnn: None,
        available_bytes: card.available().0,
        used_by_others_bytes: None,
        no_room: None,
    }
}
