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
//!
//! Where several servers share the queue, each has a log of a fit that somebody follows there, and a reader may go on at another one. Logs
//! have not seen the same probes, so states have numbers that follow from the fit alone ([`OF_A_STATE`]): a reader that has a state here has
//! it everywhere.

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

/// Where several servers tell of a fit: numbers in the range of an attempt before it runs, while it runs, and after its end.
const OF_A_STATE: [u64; 3] = [0, 100_000, 900_000];

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
    /// Whether other servers tell of the same fits.
    is_shared: bool,
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
            Entry::Vacant(place) => {
                Arc::clone(place.insert(Arc::new(Log::new(attempts, state, self.is_shared))))
            }
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

    /// Those whose logs have not ended.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let logs = self.lock();
        let open = logs.all.iter().filter(|(_, log)| !log.lock().ended);
        open.map(|(id, _)| id.clone()).collect()
    }

    /// Hears where a fit stands that was begun `attempts` times, by now or some time ago.
    pub(super) fn hear(&self, id: &str, state: FitState, attempts: i64) {
        match self.find(id) {
            Some(log) if log.is_new(rank(state, attempts)) => {
                self.tell_of(id, &log, state, Some(attempts));
            }
            Some(_) => {}
            None if state.is_final() => self.tell_all(id, state),
            None => drop(self.of(id, before(state, attempts), state)),
        }
    }

    /// Tells that a fit waits or runs, or how it ended: whoever says that first is right.
    pub(super) fn tell(&self, id: &str, state: FitState) {
        let Some(log) = self.find(id) else { return };
        self.tell_of(id, &log, state, None);
    }

    fn tell_of(&self, id: &str, log: &Log, state: FitState, attempts: Option<i64>) {
        if log.push_state(state, attempts) {
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
    told: Mutex<Told>,
    /// Changes with each event.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct Told {
    /// The number of the next event.
    next: u64,
    events: VecDeque<Event>,
    /// The state told last, and its place in their order.
    state: Option<FitState>,
    rank: i64,
    is_shared: bool,
    ended: bool,
}

impl Log {
    /// The log of a fit that was begun `attempts` times before, and now is in this state.
    pub(super) fn new(attempts: i64, state: FitState, is_shared: bool) -> Log {
        let log = Log {
            told: Mutex::new(Told {
                next: u64::try_from(attempts).unwrap_or(0) * OF_AN_ATTEMPT + 1,
                events: VecDeque::new(),
                state: None,
                rank: -1,
                is_shared,
                ended: false,
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

    /// Whether a state is later than what was told.
    fn is_new(&self, rank: i64) -> bool {
        self.lock().rank < rank
    }

    /// Adds a state, unless the fit has ended or is in it anyway. Whoever does not know how often it was begun knows that this is the
    /// next of its states.
    fn push_state(&self, state: FitState, attempts: Option<i64>) -> bool {
        let mut told = self.lock();
        if told.ended || told.state == Some(state) {
            return false;
        }
        told.rank = match (attempts, state) {
            (Some(attempts), _) => rank(state, attempts),
            (None, FitState::Queued) => told.rank - told.rank % 2 + 2,
            (None, FitState::Running) => told.rank + 1 + told.rank % 2,
            (None, FitState::Done | FitState::Failed | FitState::Cancelled) => i64::MAX,
        };
        told.add(News::State(state));
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

    fn add(&mut self, news: News) {
        if let News::State(state) = news {
            self.state = Some(state);
            if self.is_shared {
                self.next = self.next.max(self.first_number(state));
            }
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
        let before = Log::new(0, FitState::Running, false);
        let after = Log::new(1, FitState::Queued, false);
        let ended = Arc::new(Log::new(2, FitState::Done, false));

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

    #[tokio::test]
    async fn a_reader_goes_on_at_another_server() {
        let [here, there] = [Events::new(true), Events::new(true)];
        let log = here.of("1", 0, FitState::Queued);
        log.push(probe(0));
        here.tell("1", FitState::Running);
        for batch in 0..50 {
            log.push(probe(batch));
        }
        // It comes to know of the fit when that runs, hears of one probe, and what was told before comes late.
        there.hear("1", FitState::Running, 1);
        let other = there.find("1").unwrap();
        there.hear("1", FitState::Queued, 0);
        other.push(probe(49));
        // It is put back, and runs elsewhere.
        for (state, attempts) in [
            (FitState::Queued, 1),
            (FitState::Running, 2),
            (FitState::Running, 1),
            (FitState::Done, 2),
        ] {
            here.hear("1", state, attempts);
            there.hear("1", state, attempts);
        }

        let states = async |mut follower: Follower| {
            let mut states = Vec::new();
            while let Some(event) = follower.next().await {
                match event.news {
                    News::State(state) => states.push((event.number, state.name())),
                    News::Result => states.push((event.number, "result")),
                    News::Probe(_) => {}
                }
            }
            states
        };
        let all = states(log.follow(None)).await;
        let expected = [
            (1, "queued"),
            (100_001, "running"),
            (1_000_001, "queued"),
            (1_100_001, "running"),
            (1_900_001, "done"),
            (1_900_002, "result"),
        ];
        assert_eq!(all, expected);
        assert_eq!(states(other.follow(None)).await, expected[1..]);
        // Whatever it has of one, it goes on at the other.
        for (after, (number, _)) in expected.iter().enumerate() {
            let rest = states(other.follow(Some(*number))).await;
            assert_eq!(rest, expected[(after + 1).max(1)..], "after {number}");
        }
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
