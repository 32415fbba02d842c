//! What a key gets beside others. What it asks beyond its permits waits where it is in no other key's way, and what runs for a key that asks much
//! gets less of a processor than what runs for one that asks little.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::JobError;
use super::lanes::PATIENCE_ALONE;
use crate::limits::pausing;

/// What work yields to threads that serve others: it gets a tenth of what they get where both want all of a processor
/// (`sched_prio_to_weight` in Linux).
const NICE: i32 = 10;

/// How much more a key yields with each doubling of what it asks at a time: half of a processor goes to it then. 19 is the most in Linux.
const NICER: i32 = 3;
const NICEST: i32 = 19;

/// How long work pauses at most for what yields less, and how long it goes on then: it gets a tenth of what it asks for, as by [`NICE`].
const PAUSE: Duration = Duration::from_millis(45);
const RUN: Duration = Duration::from_millis(5);

/// What is sent to the agents of a key at a time, in KiB before it is compressed: several requests, so that one agent that reads slowly is in
/// no other's way.
const SENT_KIB: usize = 64 << 10;

/// Bodies of a key that are read at a time: half of what are read at all.
const READ: usize = 2;

tokio::task_local! {
    /// The share of the key that a request is asked under.
    static SHARE: Arc<Share>;
}

/// What a key does at a time.
#[derive(Debug)]
pub struct Share {
    /// For what it has read, and for what it has probed and predicted.
    reading: Arc<Semaphore>,
    working: Arc<Semaphore>,
    /// For what its agents work on: one request that may be large is read at a time, and [`SENT_KIB`] are sent.
    fetching: Arc<Semaphore>,
    sending: Arc<Semaphore>,
    /// What its bodies that arrive may take, of either kind.
    arriving: OnceLock<[Arc<Semaphore>; 2]>,
    /// Permits that it has and that it waits for.
    in_use: AtomicUsize,
}

/// One of the permits of a key, until this is dropped.
#[derive(Debug)]
pub struct KeyPermit {
    share: Arc<Share>,
    /// None while it is waited for.
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        self.share.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    /// That of a key that asks nothing; `lanes` is how many simulations run at a time.
    pub fn new(lanes: usize) -> Share {
        Share {
            reading: Arc::new(Semaphore::new(lanes.clamp(1, READ))),
            working: Arc::new(Semaphore::new(lanes.max(1))),
            fetching: Arc::new(Semaphore::new(1)),
            sending: Arc::new(Semaphore::new(SENT_KIB)),
            arriving: OnceLock::new(),
            in_use: AtomicUsize::new(0),
        }
    }
}

/// Has what a request does count as its key's.
pub fn under_key<F: Future>(share: Arc<Share>, request: F) -> impl Future<Output = F::Output> {
    SHARE.scope(share, request)
}

async fn permit(of: impl Fn(&Share) -> &Arc<Semaphore>, many: u32) -> Option<KeyPermit> {
    let share = SHARE.try_with(Arc::clone).ok()?;
    let places = Arc::clone(of(&share));
    share.in_use.fetch_add(1, Ordering::Relaxed);
    let mut permit = KeyPermit { share, place: None };
    let places = places.acquire_many_owned(many).await;
    permit.place = Some(places.expect("it is never closed"));
    Some(permit)
}

/// Waits for a permit of the key to have a body read; none is needed where there is no key.
pub async fn permit_to_read() -> Option<KeyPermit> {
    permit(|share| &share.reading, 1).await
}

/// The same for what it asks then.
pub(super) async fn permit_to_work() -> Option<KeyPermit> {
    permit(|share| &share.working, 1).await
}

/// The same for what it works on.
pub(super) async fn permit_to_fetch() -> Option<KeyPermit> {
    permit(|share| &share.fetching, 1).await
}

/// The same for so many bytes that are sent to them, no longer than for the place of large models: its agents may read slowly.
pub async fn permit_to_send(bytes: usize) -> Result<Option<KeyPermit>, JobError> {
    let kib = u32::try_from(SENT_KIB.min(bytes >> 10)).unwrap_or(u32::MAX);
    let permit = permit(|share| &share.sending, kib);
    let waited = tokio::time::timeout(PATIENCE_ALONE, permit).await;
    waited.map_err(|_| JobError::TooLarge)
}

/// Where bodies of the key that asks arrive, which has so much of either kind; there is more than enough where there is no key.
pub fn room_of_key(most: [usize; 2]) -> [Arc<Semaphore>; 2] {
    let of = |most: [usize; 2]| most.map(|most| Arc::new(Semaphore::new(most)));
    let of_key = SHARE.try_with(|share| share.arriving.get_or_init(|| of(most)).clone());
    of_key.unwrap_or_else(|_| of([Semaphore::MAX_PERMITS; 2]))
}

/// Permits that the key of this request has and waits for.
pub(super) fn permits_in_use() -> usize {
    let in_use = SHARE.try_with(|share| share.in_use.load(Ordering::Relaxed));
    in_use.unwrap_or(0)
}

/// Whether the key that asks, asks nothing else at the time.
pub(super) fn is_alone() -> bool {
    permits_in_use() <= 1
}

/// How much what the key that asks has done yields to others.
pub(crate) fn niceness() -> i32 {
    niceness_of(permits_in_use())
}

/// The same of a key that asks so much at a time.
pub(super) fn niceness_of(asked: usize) -> i32 {
    let doublings = asked.checked_ilog2().unwrap_or(0);
    let more = NICER.saturating_mul(i32::try_from(doublings).unwrap_or(NICEST));
    NICEST.min(NICE.saturating_add(more))
}

/// Runs work on this thread that gives way to others where processors are short: a service answers at once, however much it simulates. It pauses
/// while others that yield less have work for half of the processors: two processors are often one core, and what the second one does slows the
/// first one down.
pub(crate) fn yielding<T>(niceness: i32, work: impl FnOnce() -> T) -> T {
    // Where it is refused, work is as important as before.
    batchfit_platform::give_way(niceness);
    let niceness = usize::try_from(niceness.clamp(0, NICEST)).unwrap_or(0);
    let _at_work = AT_WORK.begin(niceness);
    let runs_until = Cell::new(None);
    let pause = move || {
        let runs = |until: Instant| Instant::now() < until;
        if AT_WORK.wants_processors_before(niceness) && !runs_until.get().is_some_and(runs) {
            AT_WORK.pause(niceness);
            runs_until.set(Some(Instant::now() + RUN));
        }
    };
    pausing(pause, work)
}

/// How much is at work on the processors of this process, by how much it yields.
#[derive(Debug)]
struct Counts {
    count: [AtomicUsize; NICEST as usize + 1],
    processors: OnceLock<usize>,
    halts: Mutex<()>,
    ended: Condvar,
}

static AT_WORK: Counts = Counts {
    count: [const { AtomicUsize::new(0) }; NICEST as usize + 1],
    processors: OnceLock::new(),
    halts: Mutex::new(()),
    ended: Condvar::new(),
};

/// Counts as work until it is dropped.
struct AtWork<'a> {
    counts: &'a Counts,
    niceness: usize,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.counts.count[self.niceness].fetch_sub(1, Ordering::Relaxed);
        self.counts.ended.notify_all();
    }
}

impl Counts {
    fn begin(&self, niceness: usize) -> AtWork<'_> {
        self.count[niceness].fetch_add(1, Ordering::Relaxed);
        AtWork {
            counts: self,
            niceness,
        }
    }

    /// Whether work that yields less has half of the processors to do.
    fn wants_processors_before(&self, niceness: usize) -> bool {
        let before = self.count[..niceness].iter();
        let working: usize = before.map(|count| count.load(Ordering::Relaxed)).sum();
        working > 0 && 2 * working >= self.processors()
    }

    fn processors(&self) -> usize {
        let found = || available_parallelism().map_or(1, NonZero::get);
        *self.processors.get_or_init(found)
    }

    /// Waits while it has.
    fn pause(&self, niceness: usize) {
        let halted = self.halts.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |(): &mut ()| self.wants_processors_before(niceness);
        // What was counted down between looking and waiting is seen when the pause is over.
        drop(self.ended.wait_timeout_while(halted, PAUSE, waits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_twice_as_much_yields_more_until_nothing_is_left_to_yield() {
        let asked = [0, 1, 2, 3, 4, 8, usize::MAX];
        assert_eq!(asked.map(niceness_of), [10, 10, 13, 13, 16, 19, 19]);
    }

    #[tokio::test]
    async fn a_key_has_one_large_job_read_at_a_time_and_tells_news_meanwhile() {
        let agents = under_key(Arc::new(Share::new(8)), async {
            let _first = permit_to_fetch().await;
            tokio::select! {
                biased;
                _ = permit_to_fetch() => panic!("the second waits"),
                news = permit_to_read() => news.is_some(),
            }
        });
        assert!(agents.await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_agent_reads_slowly_is_in_no_others_way_within_a_bound() {
        let several = under_key(Arc::new(Share::new(8)), async {
            let mut sent = Vec::new();
            for bytes in [24 << 20, 24 << 20, 24 << 20, usize::MAX, 1 << 20] {
                sent.push(permit_to_send(bytes).await);
            }
            sent.iter().map(Result::is_ok).collect::<Vec<_>>()
        });
        assert_eq!(several.await, [true, true, false, false, true]);
        let no_key = permit_to_send(1).await.expect("it waits for nothing");
        assert!(no_key.is_none(), "there is no key");
    }

    #[test]
    fn work_pauses_while_what_yields_less_has_work_for_half_of_the_processors() {
        let pauses = |processors, working: &[usize], niceness| {
            let counts = Counts {
                count: Default::default(),
                processors: OnceLock::from(processors),
                halts: Mutex::default(),
                ended: Condvar::default(),
            };
            let begin = |niceness: &usize| counts.begin(*niceness);
            let _working: Vec<_> = working.iter().map(begin).collect();
            counts.wants_processors_before(niceness)
        };
        assert!(pauses(2, &[10], 19));
        assert!(!pauses(2, &[19, 19], 19), "its own work is none of others");
        assert!(!pauses(4, &[10, 19], 19), "there are processors for both");
        assert!(pauses(4, &[10, 13], 19));
        assert!(!pauses(1, &[], 19));
    }
}
