//! The parent's side: starts a child, waits with deadlines, kills it, starts another once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::limits::Cancel;
use crate::probe::ProbeReport;

use super::process::{Activity, Launch, Loss, Running, WorkerError};
use super::protocol::{Answer, Gpu, LONGEST_ANSWER, Order, ProbeOrder, Ready, Refusal};
use super::rank_group::{RankGroup, ask, await_all, greet, stops_others, take_turn};

/// What a job's probes have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// For each rank `cuda:0`, `sim:h200`; `auto`, for one alone, is any GPU that is free, which [`Ready`] then names.
    pub devices: Vec<String>,
    /// Whether the ranks train together, and so have to find each other.
    pub together: bool,
    /// The JSON text of the request, with its model in place.
    pub request: String,
}

/// How a worker is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The batchfit binary.
    pub program: PathBuf,
    /// Its arguments: `worker`, and a planned failure in tests.
    pub arguments: Vec<OsString>,
}

impl WorkerCommand {
    /// The worker that this binary contains.
    pub fn this_binary(program: PathBuf) -> WorkerCommand {
        WorkerCommand {
            program,
            arguments: vec!["worker".into()],
        }
    }
}

impl WorkerCommand {
    /// `of_several`: which of the ranks that train together it is for.
    fn launch(&self, of_several: Option<usize>, deadlines: Deadlines) -> Launch<'_> {
        Launch {
            who: match of_several {
                Some(rank) => format!("worker of rank {rank}").into(),
                None => "worker".into(),
            },
            program: &self.program,
            arguments: &self.arguments,
            environment: &[],
            starts_others: false,
            shares_stderr: false,
            longest_answer: LONGEST_ANSWER,
            ending: deadlines.end,
        }
    }
}

/// How long a worker may take for each kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// To say `hello`.
    pub start: Duration,
    /// To open a device, read the request and compile kernels; to list GPUs.
    pub open: Duration,
    /// To run three steps.
    pub probe: Duration,
    /// How long other processes' workers may use the GPU before ours is given up. Counted apart: no other
    /// deadline runs meanwhile.
    pub turn: Duration,
    /// To end, once it was killed.
    pub end: Duration,
    /// Of ranks once one of them could not go on: they may be about to say the same, and otherwise wait for it on their GPUs for
    /// ever.
    pub left_alone: Duration,
}

impl Deadlines {
    /// A cold start of CUDA and cuDNN from a slow disk takes most of a minute; the longest probe of the
    /// models with presets, a few seconds; a fit of many variants, some minutes.
    pub const USUAL: Deadlines = Deadlines {
        start: Duration::from_secs(20),
        open: Duration::from_mins(2),
        probe: Duration::from_mins(3),
        turn: Duration::from_mins(15),
        end: Duration::from_millis(300),
        left_alone: Duration::from_secs(3),
    };
}

/// Whom a supervisor works for.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Becomes true when the answer is not wanted any more.
    pub cancel: &'a Cancel,
    /// Is told what takes long and what went wrong, for a person to read.
    pub notice: &'a dyn Fn(&str),
}

/// What a job's workers cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerStats {
    /// Workers started.
    pub workers: u32,
    /// From the start of the last one until its device was open, without waiting for a turn.
    pub start: Duration,
    /// Spent waiting for other processes' workers.
    pub waited: Duration,
}

/// A device that is ours for as long as this is there.
#[derive(Debug)]
pub struct GpuLease {
    _running: Running,
}

/// Keeps one worker going for one job, or one for each of the ranks that train together. Blocks; dropping it kills them.
#[derive(Debug)]
pub struct Supervisor {
    launch: WorkerCommand,
    deadlines: Deadlines,
    opening: Opening,
    /// By rank; none between a loss and the next start.
    running: Vec<Running>,
    /// Each job gets one replacement: what kills two workers will kill a third.
    replacements_left: u32,
    account: WorkerStats,
}

impl Supervisor {
    /// Starts a worker for each rank and has it open its device. Of several ranks, `Ready` is what holds for all: the least that
    /// any of them has.
    pub fn open(
        launch: WorkerCommand,
        opening: Opening,
        deadlines: Deadlines,
        caller: Caller<'_>,
    ) -> Result<(Supervisor, Ready), WorkerError> {
        let mut supervisor = Supervisor {
            launch,
            deadlines,
            opening,
            running: Vec::new(),
            replacements_left: 1,
            account: WorkerStats::default(),
        };
        let start = |supervisor: &mut Supervisor| supervisor.start(caller);
        let ready = supervisor.with_replacement(caller, start)?;
        Ok((supervisor, ready))
    }

    /// Runs one batch, on all ranks at once. A rank that fails or runs out of memory leaves the others waiting for it: they are
    /// ended, and the next probe starts all again.
    pub fn probe(
        &mut self,
        order: &ProbeOrder,
        caller: Caller<'_>,
    ) -> Result<ProbeReport, WorkerError> {
        self.with_replacement(caller, |supervisor| {
            if supervisor.running.is_empty() {
                let ready = supervisor.start(caller)?;
                if let Some(detail) = ready.no_room {
                    let refusal = Refusal::DeviceUnavailable;
                    return Err(WorkerError::Refused { refusal, detail });
                }
            }
            let activity = Activity::Probing(order.batch);
            let Deadlines {
                probe: within,
                left_alone,
                ..
            } = supervisor.deadlines;
            let running = &mut supervisor.running;
            for worker in &mut *running {
                worker.tell(&Order::Probe(order.clone()));
            }
            let left = |answer: &Answer| stops_others(answer).then_some(left_alone);
            let answers = await_all(running, activity, within, caller.cancel, left)?;
            if answers.iter().any(Option::is_none) {
                // They wait for a rank that does not go on.
                running.clear();
            }
            let mut reports = Vec::new();
            for (rank, answer) in answers.into_iter().enumerate() {
                match answer {
                    None => {}
                    Some(Answer::Report(report)) => {
                        reports.push((u32::try_from(rank).unwrap_or(u32::MAX), *report));
                    }
                    Some(other) => return Err(running[rank].out_of_turn(&other, activity)),
                }
            }
            let alone = !supervisor.opening.together && reports.len() == 1;
            let report = if alone {
                reports.pop().map(|(_, report)| report)
            } else {
                ProbeReport::of_ranks(reports)
            };
            Ok(report.expect("a wait that ends well has an answer"))
        })
    }

    /// What the workers cost so far.
    pub fn account(&self) -> WorkerStats {
        self.account
    }

    /// The GPUs of this machine, or what is missing. Starts a worker for this question alone, and another one where that is
    /// lost.
    pub fn list(
        launch: &WorkerCommand,
        deadlines: Deadlines,
        cancel: &Cancel,
    ) -> Result<(Vec<Gpu>, Option<String>), WorkerError> {
        let list = || {
            let mut running = Running::start(&launch.launch(None, deadlines))?;
            greet(&mut running, deadlines.start, cancel)?;
            let activity = Activity::Listing;
            match ask(&mut running, &Order::List, activity, deadlines.open, cancel)? {
                Answer::Inventory { gpus, missing } => Ok((gpus, missing)),
                other => Err(running.out_of_turn(&other, activity)),
            }
        };
        match list() {
            Err(error) if may_do_better(&error) => {
                warn!("{error}; starting another worker");
                list()
            }
            listed => listed,
        }
    }

    /// Takes a device for as long as the given child lives, whichever process uses the device meanwhile. Starts a worker for
    /// this alone.
    pub fn hold(
        launch: &WorkerCommand,
        device: &str,
        deadlines: Deadlines,
        caller: Caller<'_>,
    ) -> Result<GpuLease, WorkerError> {
        let mut running = Running::start(&launch.launch(None, deadlines))?;
        greet(&mut running, deadlines.start, caller.cancel)?;
        take_turn(&mut running, device, deadlines, caller)?;
        Ok(GpuLease { _running: running })
    }

    /// Starts the workers, which open their devices as soon as it is their turn, and find each other. Where a device has no room
    /// they do not.
    fn start(&mut self, caller: Caller<'_>) -> Result<Ready, WorkerError> {
        let began = Instant::now();
        let several = self.opening.together;
        let mut running = Vec::new();
        for rank in 0..self.opening.devices.len() {
            self.account.workers += 1;
            let rank = several.then_some(rank);
            let launch = self.launch.launch(rank, self.deadlines);
            running.push(Running::start(&launch)?);
        }
        for worker in &mut running {
            greet(worker, self.deadlines.start, caller.cancel)?;
        }
        let mut waited = Duration::ZERO;
        // In the order of their numbers, so that jobs of several GPUs do not wait for each other in a circle.
        for (worker, device) in running.iter_mut().zip(&self.opening.devices) {
            waited += take_turn(worker, device, self.deadlines, caller)?;
        }
        self.account.waited += waited;
        let mut all = RankGroup {
            running: &mut running,
            within: self.deadlines.open,
            cancel: caller.cancel,
        };
        let mut ready = all.open(&self.opening.request)?;
        if several && ready.no_room.is_none() {
            ready = all.meet()?;
        }
        if let [device] = &mut *self.opening.devices
            && device == "auto"
        {
            // The one that takes its place is to have the same GPU.
            *device = format!("cuda:{}", ready.gpu.ordinal);
        }
        self.account.start = began.elapsed().saturating_sub(waited);
        self.running = running;
        Ok(ready)
    }

    /// Tries once more when the worker was lost in a way that another worker may not be.
    fn with_replacement<T>(
        &mut self,
        caller: Caller<'_>,
        attempt: impl Fn(&mut Supervisor) -> Result<T, WorkerError>,
    ) -> Result<T, WorkerError> {
        loop {
            let error = match attempt(self) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let WorkerError::Lost { .. } = &error else {
                if matches!(error, WorkerError::Cancelled) || self.running.len() > 1 {
                    // Of several, others may be at work still.
                    self.running.clear();
                }
                return Err(error);
            };
            self.running.clear();
            if self.replacements_left == 0 || !may_do_better(&error) {
                return Err(error);
            }
            self.replacements_left -= 1;
            warn!("{error}; starting another worker");
            (caller.notice)(&format!("{error}; starting another worker"));
        }
    }
}

/// Whether the worker was lost in a way that another one may not be.
fn may_do_better(error: &WorkerError) -> bool {
    match error {
        WorkerError::Lost { loss, .. } => !matches!(loss, Loss::Version(..)),
        _others => false,
    }
}
