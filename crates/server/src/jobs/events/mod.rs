//! Events of a fit, for any number of readers: they may join late, reconnect, or never read.
//!
//! # Note [Events]
//!
//! There is one log for each fit that waits or runs, and for those that ended lately. A reader is a place in it: the number
//! of the last event that it has. So one that does not read costs nothing, neither memory nor time of the writer; where
//! the log has become too long meanwhile, it misses the oldest probes. It never misses how the fit stands and what came of it.
//!
//! Numbers grow by one. A log is in memory alone, so a server that starts again cannot know which numbers the last one has
//! given: each attempt after the first has a range of its own ([`OF_AN_ATTEMPT`]), and the end of a fit whose log is gone is
//! told in the range after its last attempt. A reader that goes on from any number gets all that is newer: at worst, the end
//! twice.
//!
//! Where several servers share the queue, each has a log of a fit that is followed there, and a reader may go on at another one. Logs
//! have not seen the same probes, so states have numbers that follow from the fit alone ([`OF_A_STATE`]): a reader that has a state here has
//! it everywhere.

pub(in crate::jobs) mod notifications;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

use super::Progress;
use crate::lock;
use crate::store::FitState;

/// Numbers in the range of an attempt. A fit has some dozens of probes.
const OF_AN_ATTEMPT: u64 = 1_000_000;

/// Where several servers tell of a fit: numbers in the range of an attempt before it runs, while it runs, and after its end.
const OF_A_STATE: [u64; 3] = [0, 100_000, 900_000];

/// Most events of one fit that are kept, most of all fits that have ended, and most of all others, as far as each has a few. One takes some
/// hundred bytes, an agent's a kilobyte.
const MOST: usize = 1_000;
const MOST_ENDED: usize = 20_000;
const MOST_OPEN: usize = 10_000;
const FEW: usize = 8;

/// How many changes of all fits a reader of them may be behind before it misses some.
const MOST_BEHIND: usize = 1_000;

/// Something that is told of a fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// It waits, runs or has ended.
    State(FitState),
    /// How far it is.
    Probe(Progress),
    /// It has ended, and this is the last event. What came of it is in the database.
    Result,
}

/// The data of a `state` event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct StateNews {
    /// Where the fit stands.
    pub state: FitState,
}

/// A change of one of all fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FitNews {
    /// The fit.
    #[schema(example = "1mk3v7q0h5c2d8xw")]
    pub id: String,
    /// Where it stands.
    pub state: FitState,
}

/// An event with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the order of the fit's events.
    pub number: u64,
    /// What is told.
    pub news: Notification,
}

/// The logs of all fits.
#[derive(Debug)]
pub(super) struct Events {
    logs: Mutex<Logs>,
    /// Whether other servers tell of the same fits.
    is_shared: bool,
    /// How many logs have not ended.
    open: Arc<AtomicUsize>,
    /// What changes, for those who look at all fits.
    all: broadcast::Sender<FitNews>,
}

impl Default for Events {
    fn default() -> Events {
        Events::new(false)
    }
}

impl Events {
    /// No log. `is_shared` where other servers tell of the same fits.
    pub(super) fn new(is_shared: bool) -> Events {
        Events {
            logs: Mutex::default(),
            is_shared,
            open: Arc::default(),
            all: broadcast::Sender::new(MOST_BEHIND),
        }
    }
}

#[derive(Debug, Default)]
struct Logs {
    all: HashMap<String, Arc<Log>>,
    /// Those that have ended, and how many events each has; the oldest first.
    ended: VecDeque<(String, usize)>,
    /// Events in them.
    events_of_ended: usize,
}

impl Events {
    /// The log of a fit that was begun `attempts` times before; a new one where there is none, whose fit is in this state.
    pub(super) fn of(&self, id: &str, attempts: i64, state: FitState) -> Arc<Log> {
        let mut logs = lock(&self.logs);
        let log = match logs.all.entry(id.to_owned()) {
            Entry::Occupied(log) => return Arc::clone(log.get()),
            Entry::Vacant(place) => {
                let log = Log::new(attempts, state, self.is_shared, &self.open);
                Arc::clone(place.insert(Arc::new(log)))
            }
        };
        drop(logs);
        self.publish_to_all(id, state);
        log
    }

    /// What changes from now on, of all fits.
    pub(super) fn follow_all(&self) -> broadcast::Receiver<FitNews> {
        self.all.subscribe()
    }

    fn publish_to_all(&self, id: &str, state: FitState) {
        let id = id.to_owned();
        // An error says that there is no reader.
        let _ = self.all.send(FitNews { id, state });
    }

    /// The log of a fit, if there is one.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Log>> {
        lock(&self.logs).all.get(id).map(Arc::clone)
    }

    /// Those whose logs have not ended.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let logs = lock(&self.logs);
        let open = logs
            .all
            .iter()
            .filter(|(_, log)| !lock(&log.state_now).ended);
        open.map(|(id, _)| id.clone()).collect()
    }

    /// Hears where a fit stands that was begun `attempts` times, by now or some time ago.
    pub(super) fn hear(&self, id: &str, state: FitState, attempts: i64) {
        match self.find(id) {
            Some(log) if log.is_new(rank(state, attempts)) => {
                self.publish_to(id, &log, state, Some(attempts));
            }
            Some(_) => {}
            None if state.is_final() => self.publish_to_all(id, state),
            None => drop(self.of(id, before(state, attempts), state)),
        }
    }

    /// Publishes that a fit waits or runs, or how it ended: the first report counts.
    pub(super) fn publish(&self, id: &str, state: FitState) {
        let Some(log) = self.find(id) else { return };
        self.publish_to(id, &log, state, None);
    }

    fn publish_to(&self, id: &str, log: &Log, state: FitState, attempts: Option<i64>) {
        if log.push_state(state, attempts) {
            self.publish_to_all(id, state);
        }
        if !state.is_final() {
            return;
        }
        let Some(events) = log.end() else { return };
        let mut logs = lock(&self.logs);
        logs.ended.push_back((id.to_owned(), events));
        logs.events_of_ended += events;
        while logs.events_of_ended > MOST_ENDED {
            let Some((oldest, events)) = logs.ended.pop_front() else {
                break;
            };
            logs.all.remove(&oldest);
            logs.events_of_ended -= events;
        }
    }
}

/// How often a fit was begun before, of one that is in this state and was begun so often.
fn before(state: FitState, attempts: i64) -> i64 {
    attempts - i64::from(state == FitState::Running)
}

/// The order of the states of a fit: it may wait and run several times.
fn rank(state: FitState, attempts: i64) -> i64 {
    match state {
        FitState::Queued => 2 * attempts,
        FitState::Running => 2 * attempts - 1,
        FitState::Done | FitState::Failed | FitState::Cancelled => i64::MAX,
    }
}

/// What has been told of one fit.
#[derive(Debug)]
pub(super) struct Log {
    state_now: Mutex<LogState>,
    /// Changes with each event.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct LogState {
    /// The number of the next event.
    next: u64,
    events: VecDeque<Event>,
    /// The state told last, and its place in their order.
    state: Option<FitState>,
    rank: i64,
    is_shared: bool,
    ended: bool,
    /// How many logs have not ended.
    open: Arc<AtomicUsize>,
}

impl Log {
    /// The log of a fit that was begun `attempts` times before, and now is in this state.
    pub(super) fn new(
        attempts: i64,
        state: FitState,
        is_shared: bool,
        open: &Arc<AtomicUsize>,
    ) -> Log {
        open.fetch_add(1, Ordering::Relaxed);
        let log = Log {
            state_now: Mutex::new(LogState {
                next: u64::try_from(attempts).unwrap_or(0) * OF_AN_ATTEMPT + 1,
                events: VecDeque::new(),
                state: None,
                rank: -1,
                is_shared,
                ended: false,
                open: Arc::clone(open),
            }),
            news: watch::Sender::default(),
        };
        let begun = attempts + i64::from(state == FitState::Running);
        log.push_state(state, Some(begun));
        if state.is_final() {
            log.end();
        }
        log
    }

    /// Adds an event and says so, unless the fit has ended or is in this state anyway.
    pub(super) fn push(&self, news: Notification) -> bool {
        let mut state_now = lock(&self.state_now);
        if state_now.ended
            || matches!(news, Notification::State(state) if state_now.state == Some(state))
        {
            return false;
        }
        state_now.add(news);
        drop(state_now);
        self.news.send_replace(());
        true
    }

    /// Whether a state is later than what was told.
    fn is_new(&self, rank: i64) -> bool {
        lock(&self.state_now).rank < rank
    }

    /// Adds a state, unless the fit has ended or is in it anyway. A caller that does not know how often it was begun knows that this is the
    /// next of its states.
    fn push_state(&self, state: FitState, attempts: Option<i64>) -> bool {
        let mut state_now = lock(&self.state_now);
        if state_now.ended || state_now.state == Some(state) {
            return false;
        }
        state_now.rank = match (attempts, state) {
            (Some(attempts), _) => rank(state, attempts),
            (None, FitState::Queued) => state_now.rank - state_now.rank % 2 + 2,
            (None, FitState::Running) => state_now.rank + 1 + state_now.rank % 2,
            (None, FitState::Done | FitState::Failed | FitState::Cancelled) => i64::MAX,
        };
        state_now.add(Notification::State(state));
        drop(state_now);
        self.news.send_replace(());
        true
    }

    /// Adds the last event, and says how many there are; `None` where it was there already.
    fn end(&self) -> Option<usize> {
        let mut state_now = lock(&self.state_now);
        if state_now.ended {
            return None;
        }
        state_now.add(Notification::Result);
        state_now.ended = true;
        state_now.open.fetch_sub(1, Ordering::Relaxed);
        let events = state_now.events.len();
        drop(state_now);
        self.news.send_replace(());
        Some(events)
    }

    /// A reader from the event after `last` on.
    pub(super) fn follow(self: &Arc<Log>, last: Option<u64>) -> Follower {
        let state_now = lock(&self.state_now);
        // No event has such a number: it is of another fit, or of a database that was put back.
        let last = last.filter(|last| *last < state_now.next);
        Follower {
            last: last.unwrap_or(0),
            news: self.news.subscribe(),
            log: Arc::clone(self),
        }
    }
}

impl LogState {
    /// The number of the event that says this state, where several servers tell of the fit.
    fn first_number(&self, state: FitState) -> u64 {
        let [waits, runs, ended] = OF_A_STATE;
        let attempt = match state {
            FitState::Queued | FitState::Running => u64::try_from(self.rank / 2).unwrap_or(0),
            FitState::Done | FitState::Failed | FitState::Cancelled => self.next / OF_AN_ATTEMPT,
        };
        let within = match state {
            FitState::Queued => waits,
            FitState::Running => runs,
            FitState::Done | FitState::Failed | FitState::Cancelled => ended,
        };
        attempt * OF_AN_ATTEMPT + within + 1
    }

    fn add(&mut self, news: Notification) {
        if let Notification::State(state) = news {
            self.state = Some(state);
            if self.is_shared {
                self.next = self.next.max(self.first_number(state));
            }
        }
        let open = self.open.load(Ordering::Relaxed).max(1);
        let most = (MOST_OPEN / open).clamp(FEW, MOST);
        while self.events.len() >= most {
            let oldest_probe = self.events.iter().position(|event| match event.news {
                Notification::Probe(_) => true,
                Notification::State(_) | Notification::Result => false,
            });
            // One of the first: a fit changes its state a few times.
            let Some(oldest_probe) = oldest_probe.or((most == MOST).then_some(0)) else {
                break;
            };
            self.events.remove(oldest_probe);
        }
        self.events.push_back(Event {
            number: self.next,
            news,
        });
        self.next += 1;
    }
}

/// A reader of a log.
#[derive(Debug)]
pub struct Follower {
    log: Arc<Log>,
    last: u64,
    news: watch::Receiver<()>,
}

impl Follower {
    /// Whether there is nothing more to read, ever.
    pub fn is_over(&self) -> bool {
        let state_now = lock(&self.log.state_now);
        state_now.ended && self.last + 1 >= state_now.next
    }

    /// The next event, as soon as there is one; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            {
                let state_now = lock(&self.log.state_now);
                let after = state_now
                    .events
                    .partition_point(|event| event.number <= self.last);
                if let Some(event) = state_now.events.get(after) {
                    self.last = event.number;
                    return Some(event.clone());
                }
                if state_now.ended {
                    return None;
                }
            }
            // The log is held here, so its writer is there.
            self.news.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests;
