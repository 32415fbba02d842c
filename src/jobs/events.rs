//! What is told of a fit as it goes on, for any number of readers, who may come late, come again, or never read.
//!
//! # Note [Events]
//!
//! There is one log for each fit that waits or runs, and for those that ended lately. A reader is a place in it: the number
//! of the last event that it has. So one that does not read costs nothing, neither memory nor time of whoever writes; where
//! the log has become too long meanwhile, it misses the oldest probes. It never misses how the fit stands and what came of it.
//!
//! Numbers grow by one. A log is in memory alone, so a server that starts anew cannot know which numbers the last one has
//! given: each attempt after the first has a range of its own ([`OF_AN_ATTEMPT`]), and the end of a fit whose log is gone is
//! told in the range after its last attempt. A reader that goes on from any number gets all that is newer: at worst, the end
//! twice.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

use super::Progress;
use crate::store::FitState;

/// Numbers in the range of an attempt. A fit has some dozens of probes.
const OF_AN_ATTEMPT: u64 = 1_000_000;

/// Most events of one fit that are kept, and most of all fits that have ended. One takes some hundred bytes.
const MOST: usize = 10_000;
const MOST_ENDED: usize = 20_000;

/// How many changes of all fits a reader of them may be behind before it misses some.
const MOST_BEHIND: usize = 1_000;

/// Something that is told of a fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
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
    pub news: News,
}

/// The logs of all fits.
#[derive(Debug)]
pub(super) struct Events {
    logs: Mutex<Logs>,
    /// What changes, for those who look at all fits.
    all: broadcast::Sender<FitNews>,
}

impl Default for Events {
    fn default() -> Events {
        Events {
            logs: Mutex::default(),
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
        let mut logs = self.lock();
        let log = match logs.all.entry(id.to_owned()) {
            Entry::Occupied(log) => return Arc::clone(log.get()),
            Entry::Vacant(place) => Arc::clone(place.insert(Arc::new(Log::new(attempts, state)))),
        };
        drop(logs);
        self.tell_all(id, state);
        log
    }

    /// What changes from now on, of all fits.
    pub(super) fn follow_all(&self) -> broadcast::Receiver<FitNews> {
        self.all.subscribe()
    }

    fn tell_all(&self, id: &str, state: FitState) {
        let id = id.to_owned();
        // An error says that nobody reads.
        let _ = self.all.send(FitNews { id, state });
    }

    /// The log of a fit, if there is one.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Log>> {
        self.lock().all.get(id).map(Arc::clone)
    }

    /// Tells that a fit waits or runs, or how it ended: whoever says that first is right.
    pub(super) fn tell(&self, id: &str, state: FitState) {
        let Some(log) = self.find(id) else { return };
        if log.push(News::State(state)) {
            self.tell_all(id, state);
        }
        if !state.is_final() {
            return;
        }
        let Some(events) = log.end() else { return };
        let mut logs = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().expect("nothing panics while it is held")
    }
}

/// What has been told of one fit.
#[derive(Debug)]
pub(super) struct Log {
    told: Mutex<Told>,
    /// Changes with each event.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct Told {
    /// The number of the next event.
    next: u64,
    events: VecDeque<Event>,
    /// The state told last.
    state: Option<FitState>,
    ended: bool,
}

impl Log {
    /// The log of a fit that was begun `attempts` times before, and now is in this state.
    pub(super) fn new(attempts: i64, state: FitState) -> Log {
        let log = Log {
            told: Mutex::new(Told {
                next: u64::try_from(attempts).unwrap_or(0) * OF_AN_ATTEMPT + 1,
                events: VecDeque::new(),
                state: None,
                ended: false,
            }),
            news: watch::Sender::default(),
        };
        log.push(News::State(state));
        if state.is_final() {
            log.end();
        }
        log
    }

    /// Adds an event and says so, unless the fit has ended or is in this state anyway.
    pub(super) fn push(&self, news: News) -> bool {
        let mut told = self.lock();
        if told.ended || matches!(news, News::State(state) if told.state == Some(state)) {
            return false;
        }
        told.add(news);
        drop(told);
        self.news.send_replace(());
        true
    }

    /// Adds the last event, and says how many there are; `None` where it was there already.
    fn end(&self) -> Option<usize> {
        let mut told = self.lock();
        if told.ended {
            return None;
        }
        told.add(News::Result);
        told.ended = true;
        let events = told.events.len();
        drop(told);
        self.news.send_replace(());
        Some(events)
    }

    /// Whoever reads it from the event after `last` on.
    pub(super) fn follow(self: &Arc<Log>, last: Option<u64>) -> Follower {
        let told = self.lock();
        // No event has such a number: it is of another fit, or of a database that was put back.
        let last = last.filter(|last| *last < told.next);
        Follower {
            last: last.unwrap_or(0),
            news: self.news.subscribe(),
            log: Arc::clone(self),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("nothing panics while it is held")
    }
}

impl Told {
    fn add(&mut self, news: News) {
        if let News::State(state) = news {
            self.state = Some(state);
        }
        if self.events.len() >= MOST {
            let oldest_probe = self.events.iter().position(|event| match event.news {
                News::Probe(_) => true,
                News::State(_) | News::Result => false,
            });
            // One of the first: a fit changes its state a few times.
            self.events.remove(oldest_probe.unwrap_or(0));
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
        let told = self.log.lock();
        told.ended && self.last + 1 >= told.next
    }

    /// The next event, as soon as there is one; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            {
                let told = self.log.lock();
                let after = told
                    .events
                    .partition_point(|event| event.number <= self.last);
                if let Some(event) = told.events.get(after) {
                    self.last = event.number;
                    return Some(event.clone());
                }
                if told.ended {
                    return None;
                }
            }
            // The log is held here, so whoever writes to it is there.
            self.news.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(batch: u64) -> News {
        News::Probe(Progress {
            probes_done: 0,
            batch,
            note: String::new(),
        })
    }

    async fn numbers(mut follower: Follower) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some(event) = follower.next().await {
            numbers.push(event.number);
        }
        numbers
    }

    #[tokio::test]
    async fn a_reader_goes_on_where_it_was() {
        let events = Events::default();
        let log = events.of("1", 0, FitState::Queued);
        events.tell("1", FitState::Running);
        // Said twice, it is one event.
        events.tell("1", FitState::Running);
        log.push(probe(1));
        log.push(probe(2));
        events.tell("1", FitState::Done);
        // Too late.
        events.tell("1", FitState::Cancelled);
        log.push(probe(3));

        assert_eq!(numbers(log.follow(None)).await, [1, 2, 3, 4, 5, 6]);
        assert_eq!(numbers(log.follow(Some(3))).await, [4, 5, 6]);
        assert!(log.follow(Some(6)).is_over());
        assert!(!log.follow(Some(5)).is_over());
        // A number that no event has.
        assert_eq!(numbers(log.follow(Some(u64::MAX))).await.len(), 6);
    }

    #[tokio::test]
    async fn a_reader_that_does_not_read_misses_probes_and_nothing_else() {
        let log = Events::default().of("1", 0, FitState::Queued);
        let mut reader = log.follow(None);
        log.push(News::State(FitState::Running));
        for batch in 0..100_000 {
            log.push(probe(batch));
        }
        log.push(News::State(FitState::Failed));
        log.end();

        assert_eq!(log.lock().events.len(), MOST);
        let first = [reader.next().await, reader.next().await].map(|event| event.unwrap().news);
        assert_eq!(
            first,
            [FitState::Queued, FitState::Running].map(News::State)
        );
        let rest = numbers(reader).await;
        assert_eq!(rest.len(), MOST - 2);
        assert!(rest.is_sorted());
        assert_eq!(rest.last(), Some(&100_004));
    }

    #[tokio::test]
    async fn attempts_after_a_restart_have_higher_numbers() {
        let before = Log::new(0, FitState::Running);
        let after = Log::new(1, FitState::Queued);
        let ended = Arc::new(Log::new(2, FitState::Done));

        assert!(before.lock().next < OF_AN_ATTEMPT);
        assert_eq!(after.lock().events[0].number, OF_AN_ATTEMPT + 1);
        let last = Some(OF_AN_ATTEMPT + 57);
        let told = numbers(ended.follow(last)).await;
        assert_eq!(told, [2 * OF_AN_ATTEMPT + 1, 2 * OF_AN_ATTEMPT + 2]);
    }

    #[tokio::test]
    async fn whoever_looks_at_all_fits_is_told_of_each_change_once() {
        let events = Events::default();
        let mut all = events.follow_all();
        events.of("1", 0, FitState::Queued);
        events.of("2", 0, FitState::Queued);
        events.of("1", 0, FitState::Running);
        events.tell("1", FitState::Running);
        events.tell("1", FitState::Running);
        events.tell("1", FitState::Done);
        events.tell("1", FitState::Cancelled);
        drop(events);

        let mut told = Vec::new();
        while let Ok(FitNews { id, state }) = all.recv().await {
            told.push(format!("{id} {}", state.name()));
        }
        assert_eq!(told, ["1 queued", "2 queued", "1 running", "1 done"]);
    }

    #[test]
    fn logs_of_ended_fits_make_room() {
        let events = Events::default();
        for fit in 0..MOST_ENDED {
            let id = fit.to_string();
            events.of(&id, 0, FitState::Queued);
            events.tell(&id, FitState::Cancelled);
        }

        let logs = events.lock();
        assert!(logs.events_of_ended <= MOST_ENDED);
        assert_eq!(logs.all.len(), logs.ended.len());
        assert_eq!(logs.all.len(), MOST_ENDED / 3);
    }
}
