//! The parent's side: starts a child, waits with deadlines, kills it, starts another once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::probe::ProbeReport;

use super::process::{Activity, Launch, Loss, Running, WorkerError};
use super::protocol::{Answer, Gpu, LONGEST_ANSWER, Order, ProbeOrder, Ready, Refusal, VERSION};

/// How long a worker that was killed may take to end.
const ENDING: Duration = Duration::from_millis(300);

/// What a job's probes have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// `cuda:0`, `sim:h200`; `auto` is any GPU that is free, which [`Ready`] then names.
    pub device: String,
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
    fn launch(&self) -> Launch<'_> {
        Launch {
            who: "worker",
            program: &self.program,
            arguments: &self.arguments,
            environment: &[],
            longest_answer: LONGEST_ANSWER,
            ending: ENDING,
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
}

impl Default for Deadlines {
    /// A cold start of CUDA and cuDNN from a slow disk takes most of a minute; the longest probe of the
    /// models with presets, a few seconds; a fit of many variants, some minutes.
    fn default() -> Deadlines {
        Deadlines {
            start: Duration::from_secs(20),
            open: Duration::from_mins(2),
            probe: Duration::from_mins(3),
            turn: Duration::from_mins(15),
        }
    }
}

/// Whom a supervisor works for.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Becomes true when nobody wants the answer any more.
    pub cancel: &'a AtomicBool,
    /// Is told what takes long and what went wrong, for a person to read.
    pub notice: &'a dyn Fn(&str),
}

/// What a job's workers cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Workers started.
    pub workers: u32,
    /// From the start of the last one until its device was open, without waiting for a turn.
    pub start: Duration,
    /// Spent waiting for other processes' workers.
    pub waited: Duration,
}

/// A device that is ours for as long as this is there.
#[derive(Debug)]
pub struct Hold {
    _running: Running,
}

/// Keeps one worker going for one job. Blocks; dropping it kills the child.
#[derive(Debug)]
pub struct Supervisor {
    launch: WorkerCommand,
    deadlines: Deadlines,
    opening: Opening,
    /// `None` between a loss and the next start.
    running: Option<Running>,
    /// Each job gets one replacement: what kills two workers will kill a third.
    replacements_left: u32,
    account: Account,
}

impl Supervisor {
    /// Starts a worker and has it open a device.
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
            running: None,
            replacements_left: 1,
            account: Account::default(),
        };
        let start = |supervisor: &mut Supervisor| supervisor.start(caller);
        let ready = supervisor.with_replacement(caller, start)?;
        Ok((supervisor, ready))
    }

    /// Runs one batch.
    pub fn probe(
        &mut self,
        order: &ProbeOrder,
        caller: Caller<'_>,
    ) -> Result<ProbeReport, WorkerError> {
        self.with_replacement(caller, |supervisor| {
            if supervisor.running.is_none() {
                let ready = supervisor.start(caller)?;
                if let Some(detail) = ready.no_room {
                    let refusal = Refusal::DeviceUnavailable;
                    return Err(WorkerError::Refused { refusal, detail });
                }
            }
            let activity = Activity::Probing(order.batch);
            let deadline = supervisor.deadlines.probe;
            let running = supervisor.running.as_mut().expect("it was just started");
            let order = Order::Probe(order.clone());
            match ask(running, &order, activity, deadline, caller.cancel)? {
                Answer::Report(report) => Ok(*report),
                other => Err(running.out_of_turn(&other, activity)),
            }
        })
    }

    /// What the workers cost so far.
    pub fn account(&self) -> Account {
        self.account
    }

    /// The GPUs of this machine, or what is missing. Starts a worker for this question alone.
    pub fn list(
        launch: &WorkerCommand,
        deadlines: Deadlines,
        cancel: &AtomicBool,
    ) -> Result<(Vec<Gpu>, Option<String>), WorkerError> {
        let mut running = Running::start(&launch.launch())?;
        greet(&mut running, deadlines.start, cancel)?;
        let activity = Activity::Listing;
        match ask(&mut running, &Order::List, activity, deadlines.open, cancel)? {
            Answer::Inventory { gpus, missing } => Ok((gpus, missing)),
            other => Err(running.out_of_turn(&other, activity)),
        }
    }

    /// Takes a device for as long as the child that is given lives, whoever uses the device meanwhile. Starts a worker for
    /// this alone.
    pub fn hold(
        launch: &WorkerCommand,
        device: &str,
        deadlines: Deadlines,
        caller: Caller<'_>,
    ) -> Result<Hold, WorkerError> {
        let mut running = Running::start(&launch.launch())?;
        greet(&mut running, deadlines.start, caller.cancel)?;
        take_turn(&mut running, device, deadlines, caller)?;
        Ok(Hold { _running: running })
    }

    /// Starts a worker, which opens the device as soon as it is its turn.
    fn start(&mut self, caller: Caller<'_>) -> Result<Ready, WorkerError> {
        let began = Instant::now();
        self.account.workers += 1;
        let mut running = Running::start(&self.launch.launch())?;
        greet(&mut running, self.deadlines.start, caller.cancel)?;
        let device = &self.opening.device;
        let waited = take_turn(&mut running, device, self.deadlines, caller)?;
        self.account.waited += waited;
        let order = Order::Open {
            request: self.opening.request.clone(),
        };
        let activity = Activity::Opening;
        match ask(
            &mut running,
            &order,
            activity,
            self.deadlines.open,
            caller.cancel,
        )? {
            Answer::Ready(ready) => {
                if self.opening.device == "auto" {
                    // The one that takes its place is to have the same GPU.
                    self.opening.device = format!("cuda:{}", ready.gpu.ordinal);
                }
                self.account.start = began.elapsed().saturating_sub(waited);
                self.running = Some(running);
                Ok(ready)
            }
            other => Err(running.out_of_turn(&other, activity)),
        }
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
            let WorkerError::Lost { loss, .. } = &error else {
                if matches!(error, WorkerError::Cancelled) {
                    self.running = None;
                }
                return Err(error);
            };
            self.running = None;
            if self.replacements_left == 0 || matches!(loss, Loss::Version(..)) {
                return Err(error);
            }
            self.replacements_left -= 1;
            warn!("{error}; starting another worker");
            (caller.notice)(&format!("{error}; starting another worker"));
        }
    }
}

/// Waits until a device is a worker's, and says for how long it had to.
fn take_turn(
    running: &mut Running,
    device: &str,
    deadlines: Deadlines,
    caller: Caller<'_>,
) -> Result<Duration, WorkerError> {
    let order = Order::Take {
        device: device.to_owned(),
    };
    let activity = Activity::Opening;
    let mut waited = Duration::ZERO;
    loop {
        let asked = Instant::now();
        match ask(running, &order, activity, deadlines.open, caller.cancel)? {
            Answer::Taken => return Ok(waited),
            Answer::Busy { detail } => {
                (caller.notice)(&format!("waiting: {detail}"));
                waited += asked.elapsed();
                if waited >= deadlines.turn {
                    return Err(WorkerError::Busy { detail, waited });
                }
            }
            other => return Err(running.out_of_turn(&other, activity)),
        }
    }
}

/// Waits for the `hello` of a worker that speaks our version.
fn greet(running: &mut Running, within: Duration, cancel: &AtomicBool) -> Result<(), WorkerError> {
    let activity = Activity::Starting;
    match running.wait(activity, within, cancel)? {
        Answer::Hello { version: VERSION } => Ok(()),
        Answer::Hello { version } => Err(running.lost(activity, Loss::Version(version, VERSION))),
        other => Err(running.out_of_turn(&other, activity)),
    }
}

fn ask(
    running: &mut Running,
    order: &Order,
    activity: Activity,
    within: Duration,
    cancel: &AtomicBool,
) -> Result<Answer, WorkerError> {
    match running.ask(order, activity, within, cancel)? {
        Answer::Refused {
            refusal: Refusal::Lost,
            detail,
        } => Err(running.lost(activity, Loss::GaveUp(detail))),
        Answer::Refused { refusal, detail } => Err(WorkerError::Refused { refusal, detail }),
        answer => Ok(answer),
    }
}
