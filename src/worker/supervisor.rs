//! The parent's side: starts a child, waits with deadlines, kills it, starts another once.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use crate::bounded::shorten;
use crate::probe::ProbeReport;

use super::line::{self, Line};
use super::loss::{Activity, Loss, WorkerError};
use super::protocol::{Answer, Gpu, LONGEST_ANSWER, Order, ProbeOrder, Ready, Refusal, VERSION};

/// How often a wait looks whether somebody asked to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a child that closed its stdout, or was told to exit, may take to end.
const EXIT_GRACE: Duration = Duration::from_secs(1);
/// How long a child that was killed, and the threads at its pipes, are waited for. A child that hangs in a driver dies only
/// when the driver lets it, and whoever inherited its pipes may hold them open.
const ENDING: Duration = Duration::from_millis(300);
/// How often that wait looks.
const MOMENT: Duration = Duration::from_millis(1);
/// How many lines of a child's stderr are kept for an error message.
const LAST_WORDS: usize = 8;
/// How long such a line may be; the rest is dropped.
const LONGEST_WORD: usize = 4096;

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
            match running.ask(&order, activity, deadline, caller.cancel)? {
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
        let mut running = Running::start(launch)?;
        running.greet(deadlines.start, cancel)?;
        let activity = Activity::Listing;
        match running.ask(&Order::List, activity, deadlines.open, cancel)? {
            Answer::Inventory { gpus, missing } => Ok((gpus, missing)),
            other => Err(running.out_of_turn(&other, activity)),
        }
    }

    /// Starts a worker, which opens the device as soon as it is its turn.
    fn start(&mut self, caller: Caller<'_>) -> Result<Ready, WorkerError> {
        let began = Instant::now();
        self.account.workers += 1;
        let mut running = Running::start(&self.launch)?;
        running.greet(self.deadlines.start, caller.cancel)?;
        let waited = self.take_turn(&mut running, caller)?;
        let order = Order::Open {
            request: self.opening.request.clone(),
        };
        let activity = Activity::Opening;
        match running.ask(&order, activity, self.deadlines.open, caller.cancel)? {
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

    /// Waits until the device is the worker's, and says for how long it had to.
    fn take_turn(
        &mut self,
        running: &mut Running,
        caller: Caller<'_>,
    ) -> Result<Duration, WorkerError> {
        let order = Order::Take {
            device: self.opening.device.clone(),
        };
        let activity = Activity::Opening;
        let mut waited = Duration::ZERO;
        loop {
            let asked = Instant::now();
            match running.ask(&order, activity, self.deadlines.open, caller.cancel)? {
                Answer::Taken => return Ok(waited),
                Answer::Busy { detail } => {
                    (caller.notice)(&format!("waiting: {detail}"));
                    let took = asked.elapsed();
                    waited += took;
                    self.account.waited += took;
                    if waited >= self.deadlines.turn {
                        return Err(WorkerError::Busy { detail, waited });
                    }
                }
                other => return Err(running.out_of_turn(&other, activity)),
            }
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
            if self.replacements_left == 0 || matches!(loss, Loss::Version(_)) {
                return Err(error);
            }
            self.replacements_left -= 1;
            warn!("{error}; starting another worker");
            (caller.notice)(&format!("{error}; starting another worker"));
        }
    }
}

/// One child with its pipes and the threads that serve them.
#[derive(Debug)]
struct Running {
    /// `None` once it was ended.
    child: Option<Child>,
    /// Lines for its stdin. A thread writes them, so that a child that does not read cannot block us.
    orders: Option<Sender<Vec<u8>>>,
    answers: Receiver<Line>,
    last_words: Arc<Mutex<VecDeque<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(launch: &WorkerCommand) -> Result<Running, WorkerError> {
        let mut child = Command::new(&launch.program)
            .args(&launch.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| WorkerError::Spawn {
                program: launch.program.clone(),
                source,
            })?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let (orders, to_write) = channel();
        // Every order has one answer, so one slot never blocks a child that keeps to the protocol.
        let (read, answers) = sync_channel(1);
        let last_words = Arc::new(Mutex::new(VecDeque::new()));
        let words = Arc::clone(&last_words);
        let threads = vec![
            thread::spawn(move || write_orders(stdin, &to_write)),
            thread::spawn(move || read_answers(stdout, &read)),
            thread::spawn(move || keep_last_words(stderr, &words)),
        ];
        Ok(Running {
            child: Some(child),
            orders: Some(orders),
            answers,
            last_words,
            threads,
        })
    }

    /// Waits for the `hello` of a child that speaks our version.
    fn greet(&mut self, within: Duration, cancel: &AtomicBool) -> Result<(), WorkerError> {
        let activity = Activity::Starting;
        match self.wait(activity, within, cancel)? {
            Answer::Hello { version: VERSION } => Ok(()),
            Answer::Hello { version } => Err(self.lost(activity, Loss::Version(version))),
            other => Err(self.out_of_turn(&other, activity)),
        }
    }

    fn ask(
        &mut self,
        order: &Order,
        activity: Activity,
        within: Duration,
        cancel: &AtomicBool,
    ) -> Result<Answer, WorkerError> {
        let mut line = serde_json::to_vec(order).expect("orders have string keys only");
        line.push(b'\n');
        if let Some(orders) = &self.orders {
            // A failed write means that the child is gone; its stdout tells how.
            let _ = orders.send(line);
        }
        match self.wait(activity, within, cancel)? {
            Answer::Refused {
                refusal: Refusal::Lost,
                detail,
            } => Err(self.lost(activity, Loss::GaveUp(detail))),
            Answer::Refused { refusal, detail } => Err(WorkerError::Refused { refusal, detail }),
            answer => Ok(answer),
        }
    }

    fn wait(
        &mut self,
        activity: Activity,
        within: Duration,
        cancel: &AtomicBool,
    ) -> Result<Answer, WorkerError> {
        let deadline = Instant::now() + within;
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(WorkerError::Cancelled);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.lost(activity, Loss::TimedOut(within)));
            }
            let loss = match self.answers.recv_timeout(left.min(POLL_INTERVAL)) {
                Err(RecvTimeoutError::Timeout) => continue,
                Ok(Line::Whole(line)) => match serde_json::from_str(&line) {
                    Ok(answer) => return Ok(answer),
                    Err(_) => Loss::Garbage(shorten(&line)),
                },
                Ok(Line::TooLong) => Loss::LineTooLong,
                Ok(Line::Half(_)) => self.await_exit().map_or(Loss::Mute, Loss::HalfLine),
                Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => {
                    self.await_exit().map_or(Loss::Mute, Loss::Exited)
                }
            };
            return Err(self.lost(activity, loss));
        }
    }

    /// How the child ended, if it does so soon.
    fn await_exit(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + EXIT_GRACE;
        reap(self.child.as_mut()?, deadline, POLL_INTERVAL)
    }

    fn out_of_turn(&mut self, answer: &Answer, activity: Activity) -> WorkerError {
        let line = serde_json::to_string(answer).expect("answers have string keys only");
        self.lost(activity, Loss::OutOfTurn(shorten(&line)))
    }

    /// Ends the child and takes down what happened.
    fn lost(&mut self, activity: Activity, loss: Loss) -> WorkerError {
        self.end();
        let words = self
            .last_words
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        WorkerError::Lost {
            activity,
            loss,
            stderr: words.iter().cloned().collect(),
        }
    }

    /// Kills the child, and waits for it and for the threads at its pipes, which end with it, but not for ever. What is
    /// left then goes on by itself, and holds nothing of the next worker's.
    fn end(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        self.orders = None;
        let deadline = Instant::now() + ENDING;
        // An error here means that it has ended by itself.
        let _ = child.kill();
        if reap(&mut child, deadline, MOMENT).is_none() {
            warn!("worker {} was killed and does not end", child.id());
            // Somebody has to take its status, or the system keeps it in its table.
            thread::spawn(move || child.wait());
        }
        // The reader may be handing over a line that nobody wants any more.
        let left = || deadline.saturating_duration_since(Instant::now());
        while self.answers.recv_timeout(left()).is_ok() {}
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && !left().is_zero() {
                thread::sleep(MOMENT);
            }
            if !thread.is_finished() {
                debug!("somebody holds a worker's pipe open");
            } else if thread.join().is_err() {
                debug!("a thread at a worker's pipe panicked");
            }
        }
    }
}

/// How a child ended, if it does so by the deadline.
fn reap(child: &mut Child, deadline: Instant, interval: Duration) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(interval),
            Ok(None) | Err(_) => return None,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn write_orders(mut stdin: ChildStdin, orders: &Receiver<Vec<u8>>) {
    for line in orders {
        if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_answers(stdout: impl Read, answers: &SyncSender<Line>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let line = line::read(&mut stdout, LONGEST_ANSWER).unwrap_or(Line::End);
        let is_last = !matches!(line, Line::Whole(_));
        if answers.send(line).is_err() || is_last {
            return;
        }
    }
}

fn keep_last_words(stderr: impl Read, words: &Mutex<VecDeque<String>>) {
    let mut stderr = BufReader::new(stderr);
    loop {
        let line = match line::read(&mut stderr, LONGEST_WORD) {
            Ok(Line::Whole(line) | Line::Half(line)) => line,
            Ok(Line::TooLong) => continue,
            Ok(Line::End) | Err(_) => return,
        };
        debug!("worker: {line}");
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.len() == LAST_WORDS {
            words.pop_front();
        }
        words.push_back(line);
    }
}
