//! What may run beside what: one piece of work on each GPU, a few on simulated devices, and one at a time that is
//! about a large model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::document::{LARGE, LARGE_LANE};
use super::queue::Shared;
use super::shares::{
    KeyPermit, is_alone, niceness, niceness_of, permit_to_work, permits_in_use, yielding,
};
use super::{Engine, EngineError, JobError, Jobs};
use crate::limits::{MOST_NAMES, MOST_NODES, graphs_within};
use crate::lock;
use crate::model::Request;
use crate::store::{Claimed, SIMULATED_LANE};
use batchfit_fit::work;

/// A lane twice as wide as that of simulated devices, for work of keys that run nothing else while others fill that one: see
/// [`Db::claim_for`](crate::store::Db::claim_for).
const SPARE_LANE: &str = "simulated, spare";

/// Size of the largest models that the service takes on: what an exported graph may have, in nodes, operands and results.
const LARGEST: usize = MOST_NODES + MOST_NAMES;

/// Work of an ordinary request, in the same.
const SMALL_WORK: usize = 1_000;

/// What all work on models that are not large may take at a time, in MiB: with one large model, the service itself and what waits for a turn,
/// less than 512. The second part is for keys that do nothing else at the time, so that those who ask much never take all.
const MEMORY_MIB: [usize; 2] = [80, 48];

/// What any work takes, in MiB, and how much of a model takes one more. Measured: a graph takes 0.3 to 0.7 KiB for each node, operand, result
/// and parameter, and its largest variant as much again.
const LEAST_MIB: usize = 4;
const SIZE_OF_MIB: usize = 1_000;

/// What a graph may take of the heap where a model that is not large is read, where it is answered for, and for any, in bytes: what its size does not
/// count is bounded as well. With all else that is at work less than 512 MiB.
const READ_WITHIN: usize = (LEAST_MIB + LARGE / SIZE_OF_MIB) << 20;
const ANSWERED_WITHIN: usize = 64 << 20;
const ANY_WITHIN: usize = 320 << 20;

/// Most requests that wait to be read as large ones; what they hold meanwhile is not counted.
const MOST_WAITING: usize = 8;

/// How long a request waits to be read as a large one, and how long where its key asks nothing else: as long as two fits before it may take, so
/// that a key that always asks for large ones keeps none of another out.
const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const PATIENCE_ALONE: Duration = Duration::from_secs(150);

/// Under which a body was read, and under which what it asks is read.
#[derive(Debug)]
pub struct ReadPermit {
    /// That of its key, where one is needed.
    pub turn: Option<KeyPermit>,
    /// The next one of its size is read once this is dropped.
    pub permit: OwnedSemaphorePermit,
    /// Whether it is that of [`Jobs::large_models`], which work on a large model keeps.
    pub is_large: bool,
}

/// The lanes in use. A permit is held by the thread that works, so a lane stays taken until the thread
/// has really ended, cancelled or not.
#[derive(Debug)]
pub(super) struct Lanes {
    simulated_in_parallel: usize,
    known: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// A permit for each MiB of [`MEMORY_MIB`].
    memory: [Arc<Semaphore>; 2],
    waiting: Semaphore,
}

impl Lanes {
    pub(super) fn new(simulated_in_parallel: usize) -> Self {
        Lanes {
            simulated_in_parallel,
            known: Mutex::default(),
            memory: MEMORY_MIB.map(|mib| Arc::new(Semaphore::new(mib))),
            waiting: Semaphore::new(MOST_WAITING),
        }
    }

    /// Waits for a place in `lane`.
    pub(super) async fn enter(&self, lane: &str) -> OwnedSemaphorePermit {
        self.places(lane)
            .acquire_owned()
            .await
            .expect("lanes are never closed")
    }

    /// The same, or a spare one where the lane is that of simulations and their key runs nothing else.
    pub(super) async fn enter_alone(&self, lane: &str, is_alone: bool) -> OwnedSemaphorePermit {
        tokio::select! {
            biased;
            place = self.enter(lane) => place,
            place = self.enter(SPARE_LANE), if is_alone && lane == SIMULATED_LANE => place,
        }
    }

    /// The one place for work about a large model.
    pub(super) fn large(&self) -> Arc<Semaphore> {
        self.places(LARGE_LANE)
    }

    /// Waits for what work on a model of this size takes, which is not large; `is_alone` where its key does nothing else. Its holder waits
    /// for nothing else.
    async fn reserve(&self, size: usize, is_alone: bool) -> OwnedSemaphorePermit {
        let mib = LEAST_MIB + size.min(LARGE) / SIZE_OF_MIB;
        let mib = u32::try_from(mib).unwrap_or(u32::MAX);
        let [common, spare] = self
            .memory
            .each_ref()
            .map(|part| Arc::clone(part).acquire_many_owned(mib));
        let memory = tokio::select! {
            biased;
            memory = common => memory,
            memory = spare, if is_alone => memory,
        };
        memory.expect("it is never closed")
    }

    /// A place to wait for that of large models; half of them are for keys that ask nothing else.
    fn wait_for_large(&self) -> Option<SemaphorePermit<'_>> {
        let needed = if is_alone() { 1 } else { 1 + MOST_WAITING / 2 };
        let is_free = self.waiting.available_permits() >= needed;
        self.waiting.try_acquire().ok().filter(|_| is_free)
    }

    fn places(&self, lane: &str) -> Arc<Semaphore> {
        let mut known = lock(&self.known);
        let places = match lane {
            SIMULATED_LANE => self.simulated_in_parallel,
            SPARE_LANE => 2 * self.simulated_in_parallel,
            _gpu_or_large => 1,
        };
        let lane = known.entry(lane.to_owned());
        Arc::clone(lane.or_insert_with(|| Arc::new(Semaphore::new(places))))
    }
}

impl Shared {
    /// Waits for a permit of the key and for a place in `lane`. A key that does nothing else may have a spare one, as its fits.
    pub(super) async fn enter_with_permit(
        &self,
        lane: &str,
    ) -> (Option<KeyPermit>, OwnedSemaphorePermit) {
        let turn = permit_to_work().await;
        let place = if turn.is_some() && is_alone() && lane == SIMULATED_LANE {
            self.lanes.enter_alone(lane, true).await
        } else {
            self.enter(lane).await
        };
        (turn, place)
    }

    /// Waits for a place for a fit.
    pub(super) async fn enter_claimed(&self, claimed: &Claimed) -> OwnedSemaphorePermit {
        let lanes = &self.lanes;
        lanes.enter_alone(&claimed.lane, claimed.is_alone).await
    }

    /// Waits for the memory that work in this lane takes, where others work beside it.
    pub(super) async fn memory(
        &self,
        lane: &str,
        request: &Request,
        is_alone: bool,
    ) -> Option<OwnedSemaphorePermit> {
        if lane != SIMULATED_LANE {
            return None;
        }
        let size = request.size().unwrap_or(LARGE);
        Some(self.lanes.reserve(size, is_alone).await)
    }

    /// The same for a fit. One that is worked on in another process takes none of this one's.
    pub(super) async fn memory_for(
        &self,
        claimed: &Claimed,
        request: &Request,
    ) -> Option<OwnedSemaphorePermit> {
        if claimed.apart {
            return None;
        }
        self.memory(&claimed.lane, request, claimed.is_alone).await
    }
}

/// Answers a request, making no graph that is larger than the service takes on. Where work in this lane asks no real card it gives way to others:
/// the more, the more work the request is, of so many that its key asks.
pub(super) fn answering<T>(
    lane: &str,
    request: &Request,
    asked: usize,
    answer: impl FnOnce() -> T,
) -> T {
    let most = if lane == SIMULATED_LANE {
        ANSWERED_WITHIN
    } else {
        ANY_WITHIN
    };
    let answer = || graphs_within(LARGEST, most, answer).0;
    if !matches!(lane, SIMULATED_LANE | LARGE_LANE) {
        return answer();
    }
    let size = work(request) / SMALL_WORK;
    let niceness = niceness_of(asked.max(1).saturating_mul(size + 1));
    yielding(niceness, answer)
}

impl Jobs {
    /// Runs work that reads a model, on a thread of its own and in the memory that all such work shares. What turns out to be large begins again
    /// when it has the permit for that, which is given back with the answer.
    pub(super) async fn reading<T: Send + 'static>(
        &self,
        name: &str,
        permit: Option<ReadPermit>,
        work: impl Fn(&dyn Engine) -> Result<T, EngineError> + Clone + Send + 'static,
    ) -> Result<(T, Option<OwnedSemaphorePermit>), JobError> {
        let lanes = &self.shared.lanes;
        let late = |_| JobError::TooLarge;
        let niceness = niceness();
        // The turn ends when it is read.
        let (permit, _turn) = permit
            .map(|permit| ((permit.permit, permit.is_large), permit.turn))
            .unzip();
        let large = match permit {
            Some((permit, true)) => permit,
            small => {
                let reserved = tokio::time::timeout(PATIENCE, lanes.reserve(LARGE, is_alone()));
                let memory = reserved.await.map_err(late)?;
                let first = work.clone();
                let reading = move |engine: &dyn Engine| {
                    yielding(niceness, || {
                        graphs_within(LARGE, READ_WITHIN, || first(engine))
                    })
                };
                let (read, is_larger) = self.on_thread(name, reading).await?;
                if !is_larger {
                    return Ok((read?, None));
                }
                // Others are read meanwhile.
                drop((small, memory));
                let _waiting = lanes.wait_for_large().ok_or(JobError::TooLarge)?;
                let acquired =
                    tokio::time::timeout(patience_for_large(), self.shared.enter(LARGE_LANE));
                acquired.await.map_err(late)?
            }
        };
        let reading = move |engine: &dyn Engine| {
            yielding(niceness, || {
                graphs_within(LARGEST, ANY_WITHIN, || work(engine)).0
            })
        };
        Ok((self.on_thread(name, reading).await??, Some(large)))
    }
}

/// How long a request waits to be read as a large one.
pub fn patience_for_large() -> Duration {
    match permits_in_use() {
        1 => PATIENCE_ALONE,
        _more_or_no_key => PATIENCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::shares::{Share, under_key};

    #[tokio::test]
    async fn keys_that_ask_much_leave_memory_to_one_that_asks_little() {
        let lanes = Lanes::new(1);
        let mut held = Vec::new();
        let full = async {
            loop {
                held.push(lanes.reserve(LARGE, false).await);
            }
        };
        tokio::select! {
            biased;
            () = full => {}
            () = std::future::ready(()) => {}
        }
        assert!(!held.is_empty());

        let _one_more = lanes.reserve(LARGE, true).await;
    }

    #[tokio::test]
    async fn a_key_that_asks_much_leaves_places_to_wait_for_the_large_lane() {
        let (lanes, greedy) = (Lanes::new(1), Arc::new(Share::new(2)));
        let many = under_key(Arc::clone(&greedy), async {
            let turns = [permit_to_work().await, permit_to_work().await];
            let all = std::iter::from_fn(|| lanes.wait_for_large());
            (turns, all.collect::<Vec<_>>())
        });
        let (_turns, waiting) = many.await;
        assert_eq!(waiting.len(), MOST_WAITING / 2);

        let modest = under_key(Arc::new(Share::new(2)), async {
            let _turn = permit_to_work().await;
            lanes.wait_for_large().is_some()
        });
        assert!(modest.await);
    }
}
