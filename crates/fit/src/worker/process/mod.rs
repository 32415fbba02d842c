//! A child with its pipes: lines there, lines back, deadlines, and an end that leaves nothing behind.

mod deadline;
mod line;
mod loss;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use batchfit_platform::own_group;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use super::supervised;
use crate::limits::{Cancel, shorten};

pub use deadline::SuspendAwareDeadline;
pub use line::{Line, read};
pub use loss::{Activity, Loss, WorkerError};

/// How often a wait looks whether it was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a child that closed its stdout, or was told to exit, may take to end.
const EXIT_GRACE: Duration = Duration::from_secs(1);
/// How often that wait looks.
const MOMENT: Duration = Duration::from_millis(1);
/// How many lines of a child's stderr are kept for an error message.
const LAST_WORDS: usize = 8;
/// How long such a line may be; the rest is dropped.
const LONGEST_WORD: usize = 4096;

/// How a child is started.
pub(crate) struct Launch<'a> {
    /// What it is called in errors.
    pub(crate) who: Cow<'static, str>,
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [OsString],
    /// Variables besides those of this process.
    pub(crate) environment: &'a [(OsString, OsString)],
    /// Whether it may start processes of its own, which end with it.
    pub(crate) starts_others: bool,
    /// Whether what it writes to its stderr is ours, and not kept for errors.
    pub(crate) shares_stderr: bool,
    /// The longest line that it may write.
    pub(crate) longest_answer: usize,
    /// How long it and the threads at its pipes are waited for once it was killed. A child that hangs in a driver dies only when
    /// the driver lets it, and a process that inherited its pipes may hold them open.
    pub(crate) ending: Duration,
}

/// One child with its pipes and the threads that serve them.
#[derive(Debug)]
pub(crate) struct Running {
    /// What the child is called.
    who: Cow<'static, str>,
    /// The longest line that it may write.
    longest: usize,
    /// How long its end is waited for.
    ending: Duration,
    /// `None` once it was ended.
    child: Option<Child>,
    /// Lines for its stdin. A thread writes them, so that a child that does not read cannot block us.
    orders: Option<Sender<Vec<u8>>>,
    answers: Receiver<Line>,
    last_words: Arc<Mutex<VecDeque<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Starts a child, which has a process group of its own: what it starts ends with it.
    pub(crate) fn start(launch: &Launch<'_>) -> Result<Running, WorkerError> {
        let environment = launch.environment.iter().map(|(name, value)| (name, value));
        let command = if launch.starts_others {
            supervised::command(launch.program.as_os_str(), launch.arguments)
        } else {
            let mut command = Command::new(launch.program);
            command.args(launch.arguments);
            Ok(command)
        };
        let spawned = command.and_then(|mut command| {
            own_group(&mut command)
                .envs(environment)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(if launch.shares_stderr {
                    Stdio::inherit()
                } else {
                    Stdio::piped()
                })
                .spawn()
        });
        let mut child = spawned.map_err(|source| WorkerError::Spawn {
            who: launch.who.clone(),
            program: launch.program.to_owned(),
            source,
        })?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take();
        let (orders, to_write) = channel();
        // Every order has one answer, so one slot never blocks a child that keeps to the protocol.
        let (read, answers) = sync_channel(1);
        let last_words = Arc::new(Mutex::new(VecDeque::new()));
        let words = Arc::clone(&last_words);
        let (who, longest) = (launch.who.clone(), launch.longest_answer);
        // What the child says is logged as said of the job that it works for.
        let span = tracing::Span::current();
        let mut threads = vec![
            thread::spawn(move || write_orders(stdin, &to_write)),
            thread::spawn(move || read_answers(stdout, &read, longest)),
        ];
        threads.extend(stderr.map(|stderr| {
            thread::spawn(move || span.in_scope(|| keep_last_words(stderr, &words, &who)))
        }));
        Ok(Running {
            who: launch.who.clone(),
            longest,
            ending: launch.ending,
            child: Some(child),
            orders: Some(orders),
            answers,
            last_words,
            threads,
        })
    }

    /// Gives an order and waits for its answer.
    pub(super) fn ask<A: DeserializeOwned>(
        &mut self,
        order: &impl Serialize,
        activity: Activity,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<A, WorkerError> {
        self.tell(order);
        self.wait(activity, within, cancel)
    }

    /// Gives an order, whose answer is waited for afterwards.
    pub(crate) fn tell(&mut self, order: &impl Serialize) {
        let mut line = serde_json::to_vec(order).expect("orders have string keys only");
        line.push(b'\n');
        if let Some(orders) = &self.orders {
            // A failed write means that the child is gone; its stdout tells how.
            let _ = orders.send(line);
        }
    }

    /// Waits for an answer.
    pub(crate) fn wait<A: DeserializeOwned>(
        &mut self,
        activity: Activity,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<A, WorkerError> {
        let mut deadline = SuspendAwareDeadline::of(within);
        loop {
            if cancel.is_cancelled() {
                return Err(WorkerError::Cancelled);
            }
            let is_late = deadline.is_over();
            let answer = deadline.look(POLL_INTERVAL, |within| self.poll(activity, within))?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if is_late {
                return Err(self.crashed(activity, Loss::TimedOut(within)));
            }
        }
    }

    /// An answer, if there is one within so short a time.
    pub(super) fn poll<A: DeserializeOwned>(
        &mut self,
        activity: Activity,
        within: Duration,
    ) -> Result<Option<A>, WorkerError> {
        let loss = match self.answers.recv_timeout(within) {
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Ok(Line::Whole(line)) => match serde_json::from_str(&line) {
                Ok(answer) => return Ok(Some(answer)),
                Err(_) => Loss::Garbage(shorten(&line)),
            },
            Ok(Line::TooLong) => Loss::LineTooLong(self.longest),
            Ok(Line::Half(_)) => self.await_exit().map_or(Loss::Mute, Loss::HalfLine),
            Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => {
                self.await_exit().map_or(Loss::Mute, Loss::Exited)
            }
        };
        Err(self.crashed(activity, loss))
    }

    /// How the child ended, if it does so soon.
    fn await_exit(&mut self) -> Option<ExitStatus> {
        let mut deadline = SuspendAwareDeadline::of(EXIT_GRACE);
        reap(self.child.as_mut()?, &mut deadline, POLL_INTERVAL)
    }

    /// The error of an answer to another question.
    pub(super) fn out_of_turn(
        &mut self,
        answer: &impl Serialize,
        activity: Activity,
    ) -> WorkerError {
        let line = serde_json::to_string(answer).expect("answers have string keys only");
        self.crashed(activity, Loss::OutOfTurn(shorten(&line)))
    }

    /// Ends the child and takes down what happened.
    pub(super) fn crashed(&mut self, activity: Activity, loss: Loss) -> WorkerError {
        self.end();
        let words = self
            .last_words
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        WorkerError::Lost {
            who: self.who.clone(),
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
        let mut deadline = SuspendAwareDeadline::of(self.ending);
        supervised::end(&mut child);
        let _ = child.kill();
        if reap(&mut child, &mut deadline, MOMENT).is_none() {
            warn!("{} {} was killed and does not end", self.who, child.id());
            // Its status has to be read, or the system keeps it in its table.
            thread::spawn(move || child.wait());
        }
        // The reader may be handing over a line that is not wanted any more.
        self.answers = sync_channel(0).1;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && !deadline.is_over() {
                deadline.look(MOMENT, thread::sleep);
            }
            if !thread.is_finished() {
                debug!("another process holds a pipe of the {} open", self.who);
            } else if thread.join().is_err() {
                debug!("a thread at a pipe of the {} panicked", self.who);
            }
        }
    }
}

/// How a child ended, if it does so before the patience is over.
pub fn reap(
    child: &mut Child,
    deadline: &mut SuspendAwareDeadline,
    interval: Duration,
) -> Option<ExitStatus> {
    loop {
        let is_late = deadline.is_over();
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if !is_late => deadline.look(interval, thread::sleep),
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

fn read_answers(stdout: impl Read, answers: &SyncSender<Line>, longest: usize) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let line = read(&mut stdout, longest).unwrap_or(Line::End);
        let is_last = !matches!(line, Line::Whole(_));
        if answers.send(line).is_err() || is_last {
            return;
        }
    }
}

fn keep_last_words(stderr: impl Read, words: &Mutex<VecDeque<String>>, who: &str) {
    let mut stderr = BufReader::new(stderr);
    loop {
        let line = match read(&mut stderr, LONGEST_WORD) {
            Ok(Line::Whole(line) | Line::Half(line)) => line,
            Ok(Line::TooLong) => continue,
            Ok(Line::End) | Err(_) => return,
        };
        debug!("{who}: {line}");
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.len() == LAST_WORDS {
            words.pop_front();
        }
        words.push_back(line);
    }
}
