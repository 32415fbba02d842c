//! A real card in the hands of this worker: measured before each probe, given up after a fault.

use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use crate::alloc::{CachingAllocator, Settings};
use crate::device::cuda::{
    self, Communicator, CudaLauncher, CudaMemory, Facts, GpuError, Invitation, LauncherOptions,
    Library, Meter,
};
use crate::probe::{Evidence, ProbeReport, Resources, Verdict};
use crate::units::Bytes;

use super::available_memory::{
    AvailableMemory, FreeMemory, Reading, is_lack_of_memory, lowered, no_room,
};
use super::fault::Faulty;
use super::handler::{Refused, Task, described};
use batchfit_fit::worker::protocol::{Ready, Refusal};

/// How often a probe is repeated because other processes took memory while it ran.
const REPEATS: u32 = 2;
/// How often to look whether the memory of a process that has just ended has come back.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How many such looks have to be alike, and how many there are at most.
const SAME_LOOKS_AND_MOST: (u32, u32) = (4, 30);

/// An open card. Belongs to the thread that opened it.
pub(super) struct OpenCard {
    launcher: CudaLauncher,
    gpu: Rc<cuda::Gpu>,
    /// None where the management library does not work; the driver says how much is free anyway.
    meter: Option<Meter>,
    room: FreeMemory,
    /// Whether other ranks run what it runs, at the same time.
    is_one_of_several: bool,
}

/// The cards that CUDA shows, in its order.
pub(super) fn all_facts() -> Result<Vec<Facts>, Refused> {
    let missing = Library::missing();
    if !missing.is_empty() {
        return Err((Refusal::DeviceUnavailable, missing_libraries(&missing)));
    }
    cuda::Gpu::inventory().map_err(|error| unavailable(&error))
}

/// The card of this number among them.
pub(super) fn facts_of(number: u32, cards: Vec<Facts>) -> Result<Facts, Refused> {
    let count = u32::try_from(cards.len()).unwrap_or(u32::MAX);
    let found = cards.into_iter().nth(number as usize);
    found.ok_or_else(|| {
        unavailable(&GpuError::NoSuchDevice {
            index: number,
            count,
        })
    })
}

fn unavailable(error: &GpuError) -> Refused {
    (Refusal::DeviceUnavailable, error.to_string())
}

pub(super) fn missing_libraries(missing: &[Library]) -> String {
    let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
    format!("not found on this machine: {}", names.join(", "))
}

/// Opens a card whose turn is ours. Without a card, `ready` says why other processes leave no room for it.
///
/// `was_in_use` is whether another worker has only just let go of it.
pub(super) fn open(
    number: u32,
    facts: &Facts,
    was_in_use: bool,
    kernel_cache: Option<&Path>,
) -> Result<(Option<OpenCard>, Ready), Refused> {
    let meter = Meter::of(&facts.uuid).ok();
    if let (true, Some(meter)) = (was_in_use, &meter) {
        await_return(meter);
    }
    let read = |meter: &Option<Meter>| Some(meter.as_ref()?.read().ok()?.free);
    let free_before = read(&meter);
    let ready = |left: AvailableMemory, no_room| ready((number, facts), left, no_room);
    let failed = match try_open(number, free_before, meter.as_ref(), kernel_cache) {
        Ok((gpu, room, launcher)) => {
            let ready = ready(room.when_opened(), None);
            let card = OpenCard {
                launcher,
                gpu,
                meter,
                room,
                is_one_of_several: false,
            };
            return Ok((Some(card), ready));
        }
        Err(failed) => failed,
    };
    // Others may have taken memory meanwhile; what we took has gone back.
    let Some(free) = free_before.into_iter().chain(read(&meter)).min() else {
        // Nothing measures the card, so there are no numbers to answer with.
        return Err(failed);
    };
    match no_room(facts.total, free, &failed.1) {
        None => Err(failed),
        Some(why) => {
            let left = AvailableMemory {
                room: Bytes::ZERO,
                used_by_others: facts.total.saturating_sub(free),
            };
            Ok((None, ready(left, Some(why))))
        }
    }
}

/// What is said of a card.
fn ready((number, facts): (u32, &Facts), left: AvailableMemory, no_room: Option<String>) -> Ready {
    let cards = cuda::cards().unwrap_or_default();
    Ready {
        available_bytes: left.room.0,
        used_by_others_bytes: Some(left.used_by_others.0),
        no_room,
        cuda: Some(facts.cuda.clone()),
        cudnn: facts.cudnn.clone(),
        gpu: described(number, facts.clone(), &cards),
    }
}

/// Where other ranks can find this process.
pub(super) fn invite() -> Result<String, Refused> {
    let invitation = Invitation::new().map_err(|error| unreachable(&error))?;
    Ok(invitation.text())
}

/// Ranks that cannot talk: the cards themselves may serve.
fn unreachable(error: &dyn std::fmt::Display) -> Refused {
    let detail = format!("the ranks cannot find each other: {error}");
    (Refusal::DeviceFailed, detail)
}

fn try_open(
    number: u32,
    free_before: Option<Bytes>,
    meter: Option<&Meter>,
    kernel_cache: Option<&Path>,
) -> Result<(Rc<cuda::Gpu>, FreeMemory, CudaLauncher), Refused> {
    let gpu = cuda::Gpu::open(number).map_err(|error| unavailable(&error))?;
    // Before the libraries are opened: what they take is part of the growth that is taken off.
    let opened = reading(&gpu, meter)?;
    let room = FreeMemory::new(gpu.facts().total, free_before, opened);
    let options = LauncherOptions {
        kernel_cache: kernel_cache.map(Path::to_owned),
        ..LauncherOptions::default()
    };
    let launcher = CudaLauncher::open(&gpu, options)
        .map_err(|error| (Refusal::DeviceFailed, error.to_string()))?;
    Ok((gpu, room, launcher))
}

/// The system gives a lock back a moment before the driver gives back the memory of the process that held it.
fn await_return(meter: &Meter) {
    let (alike, most) = SAME_LOOKS_AND_MOST;
    let free = || meter.read().ok().map(|usage| usage.free);
    let (mut before, mut same) = (free(), 1);
    for _ in 1..most {
        thread::sleep(POLL_INTERVAL);
        let now = free();
        same = if now <= before { same + 1 } else { 1 };
        if same == alike {
            return;
        }
        before = now;
    }
}

/// The card's memory as the driver and the management library see it at this moment.
fn reading(gpu: &cuda::Gpu, meter: Option<&Meter>) -> Result<Reading, Refused> {
    let (free, _) = gpu
        .free_and_total()
        .map_err(|error| (Refusal::Lost, error.to_string()))?;
    let own = meter.and_then(|meter| meter.read().ok()?.own);
    Ok(Reading { free, own })
}

impl OpenCard {
    /// Finds the other ranks, for all probes that come, and measures what is left then.
    pub(super) fn join(
        &mut self,
        invitation: &str,
        (rank, ranks): (u32, u32),
        card: (u32, &Facts),
    ) -> Result<Ready, Refused> {
        let invitation: Invitation = invitation.parse().map_err(|error| unreachable(&error))?;
        let communicator = Communicator::join(&self.gpu, &invitation, rank, ranks);
        let communicator = communicator.map_err(|error| unreachable(&error))?;
        let joined = self.launcher.join(communicator);
        joined.map_err(|error| unreachable(&error))?;
        let now = reading(&self.gpu, self.meter.as_ref())?;
        self.room.settle(now);
        self.is_one_of_several = true;
        Ok(ready(card, self.room.left(now), None))
    }

    /// Runs one batch within what other processes leave, and again if they take more meanwhile.
    ///
    /// The error says that the card is lost to this process.
    pub(super) fn probe(
        &mut self,
        task: &Task<'_>,
        settings: &Settings,
        asked: Bytes,
    ) -> Result<ProbeReport, Refused> {
        let mut repeated = 0;
        loop {
            let left = self.measure()?;
            let limit = asked.min(left.room);
            let (report, was_refused) = self.run(task, settings, limit)?;
            let suffered = matches!(
                report.verdict,
                Verdict::OutOfMemory | Verdict::FitsWithRetries | Verdict::Failed
            );
            // Others would not run it again with this rank.
            let may_repeat = repeated < REPEATS && !self.is_one_of_several;
            if was_refused && suffered && may_repeat {
                repeated += 1;
                continue;
            }
            let mut notes = report.notes;
            notes.extend(lowered(asked, limit, left, self.room.total()));
            if repeated > 0 {
                notes.push(format!(
                    "ran {} times, because the GPU's memory ran out below the limit: other processes took some \
                     meanwhile",
                    repeated + 1
                ));
            }
            return Ok(ProbeReport {
                used_by_others_bytes: Some(left.used_by_others.0),
                notes,
                ..report
            });
        }
    }

    fn measure(&mut self) -> Result<AvailableMemory, Refused> {
        self.launcher.reset();
        let now = reading(&self.gpu, self.meter.as_ref())?;
        Ok(self.room.left(now))
    }

    /// A report, and whether the driver refused memory below the limit.
    fn run(
        &mut self,
        task: &Task<'_>,
        settings: &Settings,
        limit: Bytes,
    ) -> Result<(ProbeReport, bool), Refused> {
        let memory = CudaMemory::of(&self.gpu);
        let mut allocator = CachingAllocator::new(memory, settings.clone(), Some(limit));
        let mut report = task.probe().run(&mut Resources {
            allocator: &mut allocator,
            launcher: &mut Faulty::new(&mut self.launcher, task.fault),
            evidence: Evidence::Probed,
        });
        if let Some(trouble) = allocator.source().trouble() {
            report.verdict = Verdict::Failed;
            report.cause = Some(trouble.to_string());
        }
        let was_refused = allocator.source().was_refused();
        drop(allocator);
        report.outside_bytes = reading(&self.gpu, self.meter.as_ref())
            .ok()
            .map(|now| self.room.outside(now).0);
        if report.verdict != Verdict::Failed {
            return Ok((report, was_refused));
        }
        let cause = report.cause.as_deref().unwrap_or("the steps did not run");
        // After a fault in a kernel every call fails, this one too; after a mere refusal it does not.
        match self.gpu.synchronize() {
            Ok(()) => {
                let was_refused = was_refused || is_lack_of_memory(cause);
                Ok((report, was_refused))
            }
            Err(error) => Err((
                Refusal::Lost,
                format!("batch {}: {cause}; now {error}", report.batch),
            )),
        }
    }
}
