//! What the parent asks of its workers, of one or of several at once, and how long it waits for them.

use std::time::{Duration, Instant};

use super::process::{Activity, Loss, Running, SuspendAwareDeadline, WorkerError};
use super::protocol::{Answer, Order, Ready, Refusal, VERSION};
use super::supervisor::{Caller, Deadlines};
use crate::limits::Cancel;
use crate::probe::Verdict;

/// How often a wait for several workers goes round.
const ROUND: Duration = Duration::from_millis(2);

/// Waits until a device is a worker's, and says for how long it had to.
pub(super) fn take_turn(
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
pub(super) fn greet(
    running: &mut Running,
    within: Duration,
    cancel: &Cancel,
) -> Result<(), WorkerError> {
    let activity = Activity::Starting;
    match running.wait(activity, within, cancel)? {
        Answer::Hello { version: VERSION } => Ok(()),
        Answer::Hello { version } => {
            Err(running.crashed(activity, Loss::Version(version, VERSION)))
        }
        other => Err(running.out_of_turn(&other, activity)),
    }
}

/// Workers that are given the same order at once.
pub(super) struct RankGroup<'a> {
    pub(super) running: &'a mut [Running],
    pub(super) within: Duration,
    pub(super) cancel: &'a Cancel,
}

impl RankGroup<'_> {
    /// Has each open its device.
    pub(super) fn open(&mut self, request: &str) -> Result<Ready, WorkerError> {
        for (rank, worker) in (0..).zip(&mut *self.running) {
            worker.tell(&Order::Open {
                request: request.to_owned(),
                rank,
            });
        }
        self.are_ready(Activity::Opening)
    }

    /// Has them find each other.
    pub(super) fn meet(&mut self) -> Result<Ready, WorkerError> {
        let activity = Activity::Joining;
        let ranks = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let Some(first) = self.running.first_mut() else {
            return self.are_ready(activity);
        };
        let invitation = match ask(first, &Order::Invite, activity, self.within, self.cancel)? {
            Answer::Invitation { invitation } => invitation,
            other => return Err(first.out_of_turn(&other, activity)),
        };
        for worker in &mut *self.running {
            worker.tell(&Order::Join {
                invitation: invitation.clone(),
                ranks,
            });
        }
        self.are_ready(activity)
    }

    /// What holds for all of them once all are ready.
    fn are_ready(&mut self, activity: Activity) -> Result<Ready, WorkerError> {
        let answers = await_all(self.running, activity, self.within, self.cancel, |_| None)?;
        let mut ready: Option<Ready> = None;
        for (worker, answer) in self.running.iter_mut().zip(answers.into_iter().flatten()) {
            let other = match answer {
                Answer::Ready(other) => other,
                other => return Err(worker.out_of_turn(&other, activity)),
            };
            ready = Some(match ready {
                None => other,
                Some(ready) => ready.with(other),
            });
        }
        Ok(ready.expect("a device was asked for"))
    }
}

/// Whether ranks wait in vain for the one that gave this answer.
pub(super) fn stops_others(answer: &Answer) -> bool {
    let Answer::Report(report) = answer else {
        return true;
    };
    matches!(report.verdict, Verdict::OutOfMemory | Verdict::Failed)
}

/// Waits for an answer of each, in the order of the workers. Those that are missing did not come in the time that is `left` to the
/// others after one of them. A worker that is lost, or that refuses, is an error at once.
pub(super) fn await_all(
    running: &mut [Running],
    activity: Activity,
    within: Duration,
    cancel: &Cancel,
    left: impl Fn(&Answer) -> Option<Duration>,
) -> Result<Vec<Option<Answer>>, WorkerError> {
    if let [only] = running {
        let answer = only.wait(activity, within, cancel)?;
        return Ok(vec![Some(taken(only, answer, activity)?)]);
    }
    let mut answers: Vec<Option<Answer>> = running.iter().map(|_| None).collect();
    let mut deadline = SuspendAwareDeadline::of(within);
    let mut is_stopped = false;
    while answers.iter().any(Option::is_none) {
        if cancel.is_cancelled() {
            return Err(WorkerError::Cancelled);
        }
        let is_late = deadline.is_over();
        if is_late && is_stopped {
            break;
        }
        for (worker, answer) in running.iter_mut().zip(&mut answers) {
            if answer.is_some() {
                continue;
            }
            let given = deadline.look(ROUND, |_| worker.poll(activity, ROUND))?;
            let Some(given) = given else {
                if is_late {
                    return Err(worker.crashed(activity, Loss::TimedOut(within)));
                }
                continue;
            };
            let given = taken(worker, given, activity)?;
            if let (Some(left), false) = (left(&given), is_stopped) {
                is_stopped = true;
                deadline.shorten(left);
            }
            *answer = Some(given);
        }
    }
    Ok(answers)
}

pub(super) fn ask(
    running: &mut Running,
    order: &Order,
    activity: Activity,
    within: Duration,
    cancel: &Cancel,
) -> Result<Answer, WorkerError> {
    let answer = running.ask(order, activity, within, cancel)?;
    taken(running, answer, activity)
}

/// An answer that is no refusal.
fn taken(running: &mut Running, answer: Answer, activity: Activity) -> Result<Answer, WorkerError> {
    match answer {
        Answer::Refused {
            refusal: Refusal::Lost,
            detail,
        } => Err(running.crashed(activity, Loss::GaveUp(detail))),
        Answer::Refused { refusal, detail } => Err(WorkerError::Refused { refusal, detail }),
        answer => Ok(answer),
    }
}
