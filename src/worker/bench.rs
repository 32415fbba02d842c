//! The workbench of a real worker: a device, compiled programs, probes.

use std::rc::Rc;

use crate::alloc::{CachingAllocator, SegmentSource, Settings, SimulatedMemory};
use crate::device::Launcher;
use crate::device::cuda::{self, CudaLauncher, CudaMemory, Facts, LauncherOptions, Library};
use crate::device::sim::{self, CONTEXT_OVERHEAD, Card, PROCESS_OVERHEAD, SimulatedLauncher};
use crate::model::{DeviceChoice, Request, RequestDocument};
use crate::probe::{Detail, Evidence, Probe, ProbeReport, Resources, STEPS, Verdict};
use crate::program::Program;
use crate::units::Bytes;

use super::child::Workbench;
use super::programs::Programs;
use super::protocol::{Answer, Gpu, Opening, ProbeOrder, Ready, Refusal};

/// Opens devices and runs probes on them.
#[derive(Default)]
pub struct Bench {
    work: Option<Work>,
}

/// What an `open` leaves on the bench.
struct Work {
    programs: Programs,
    settings: Settings,
    device: Device,
}

enum Device {
    Simulated {
        card: &'static Card,
        launcher: SimulatedLauncher,
    },
    Cuda {
        gpu: Rc<cuda::Gpu>,
        launcher: Box<CudaLauncher>,
    },
}

type Refused = (Refusal, String);

impl Workbench for Bench {
    fn open(&mut self, opening: Opening) -> Result<Answer, Refused> {
        let invalid = |error: &dyn std::fmt::Display| (Refusal::Invalid, error.to_string());
        let request = Request::parse(RequestDocument(opening.request), &sim::names())
            .map_err(|error| invalid(&error))?;
        let settings = request.allocator.parse().map_err(|error| invalid(&error))?;
        let choice = DeviceChoice::parse(&opening.device, "/device", &sim::names())
            .map_err(|error| invalid(&error))?;
        let graph = request.graph().map_err(|error| invalid(&error))?;
        let (device, ready) = open(&choice)?;
        let capability = crate::device::Capability {
            compute: ready.gpu.compute,
            multiprocessors: ready.gpu.multiprocessors,
            threads_per_multiprocessor: ready.gpu.threads_per_multiprocessor,
        };
        self.work = Some(Work {
            programs: Programs::new(graph, capability),
            settings,
            device,
        });
        Ok(Answer::Ready(ready))
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
            .of(&order.variant)
            .map_err(|error| (Refusal::Invalid, error.to_string()))?;
        let limit = Bytes(order.limit_bytes);
        let settings = work.settings.clone();
        let report = match &mut work.device {
            Device::Simulated { card, launcher } => {
                let memory = SimulatedMemory::new(card.available().max(limit))
                    .on_device_of(card.total_memory);
                let mut allocator = CachingAllocator::new(memory, settings, Some(limit));
                let report = run(program, order.batch, &mut allocator, launcher);
                let notes = launcher.take_notes();
                ProbeReport { notes, ..report }
            }
            Device::Cuda { gpu, launcher } => {
                launcher.reset();
                let memory = CudaMemory::of(gpu);
                let mut allocator = CachingAllocator::new(memory, settings, Some(limit));
                let report = run(program, order.batch, &mut allocator, &mut **launcher);
                match allocator.source().trouble() {
                    None => report,
                    Some(trouble) => ProbeReport {
                        verdict: Verdict::Failed,
                        cause: Some(trouble.to_string()),
                        ..report
                    },
                }
            }
        };
        Ok(Answer::Report(Box::new(report)))
    }
}

fn run<S: SegmentSource, L: Launcher + Evident>(
    program: &Program,
    batch: u64,
    allocator: &mut CachingAllocator<S>,
    launcher: &mut L,
) -> ProbeReport {
    let probe = Probe {
        program,
        batch,
        steps: STEPS,
        detail: Detail::Full,
    };
    probe.run(&mut Resources {
        allocator,
        launcher,
        evidence: L::EVIDENCE,
    })
}

/// What a launcher's reports rest on.
trait Evident {
    const EVIDENCE: Evidence;
}

impl Evident for SimulatedLauncher {
    const EVIDENCE: Evidence = Evidence::Simulated;
}

impl Evident for CudaLauncher {
    const EVIDENCE: Evidence = Evidence::Probed;
}

fn open(choice: &DeviceChoice) -> Result<(Device, Ready), Refused> {
    let number = match choice {
        DeviceChoice::Sim(name) => {
            let absent = || (Refusal::Invalid, format!("there is no card `{name}`"));
            let card = Card::find(name).ok_or_else(absent)?;
            return Ok((
                Device::Simulated {
                    card,
                    launcher: SimulatedLauncher::default(),
                },
                simulated(card),
            ));
        }
        DeviceChoice::Auto => 0,
        DeviceChoice::Cuda(number) => *number,
    };
    let missing = Library::missing();
    if !missing.is_empty() {
        return Err((Refusal::DeviceUnavailable, missing_libraries(&missing)));
    }
    let unavailable =
        |error: &dyn std::fmt::Display| (Refusal::DeviceUnavailable, error.to_string());
    let gpu = cuda::Gpu::open(number).map_err(|error| unavailable(&error))?;
    // Before the libraries are opened: what they take is part of the overhead that is taken off below.
    let (free, _) = gpu.free_and_total().map_err(|error| unavailable(&error))?;
    let launcher = CudaLauncher::open(&gpu, LauncherOptions::default())
        .map_err(|error| (Refusal::DeviceFailed, error.to_string()))?;
    let facts = gpu.facts().clone();
    let ready = Ready {
        available_bytes: free.saturating_sub(PROCESS_OVERHEAD - CONTEXT_OVERHEAD).0,
        cuda: Some(facts.cuda.clone()),
        cudnn: facts.cudnn.clone(),
        gpu: described(number, facts, &cuda::cards().unwrap_or_default()),
    };
    let launcher = Box::new(launcher);
    Ok((Device::Cuda { gpu, launcher }, ready))
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

fn missing_libraries(missing: &[Library]) -> String {
    let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
    format!("not found on this machine: {}", names.join(", "))
}

/// A card in the words of the protocol; `cards` are those that the management library sees.
fn described(ordinal: u32, facts: Facts, cards: &[cuda::Card]) -> Gpu {
    let managed = cards.iter().find(|card| card.uuid == facts.uuid);
    Gpu {
        ordinal,
        total_bytes: facts.total.0,
        free_bytes: managed.map_or(facts.total, |card| card.free).0,
        compute: facts.capability.compute,
        multiprocessors: facts.capability.multiprocessors,
        threads_per_multiprocessor: facts.capability.threads_per_multiprocessor,
        driver: managed.map(|card| card.driver.clone()),
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
            compute: card.capability.compute,
            multiprocessors: card.capability.multiprocessors,
            threads_per_multiprocessor: card.capability.threads_per_multiprocessor,
            driver: None,
        },
        cuda: None,
        cudnn: None,
        available_bytes: card.available().0,
    }
}
