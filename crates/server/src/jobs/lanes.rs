//! What may run beside what: one piece of work on each GPU, a few on simulated devices, and one at a time that is
//! about a large model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::queue::Shared;
use super::{Engine, EngineError, JobError, Jobs};
use crate::bounded::{MOST_NAMES, MOST_NODES, graphs_within};
use crate::model::{DeviceChoice, Request};
use crate::store::{Claimed, SIMULATED_LANE};
use batchfit_fit::work;

/// The lane of work on large models on simulated devices. Each takes up to some 400 MiB, so there is one at a time, and
/// those of ordinary models do not wait for it.
pub(super) const LARGE_LANE: &str = "simulated, large";

/// A lane as wide as that of simulated devices, for fits of keys that have none at work while others fill that one: see
/// [`Db::claim_for`](crate::store::Db::claim_for).
const SPARE_LANE: &str = "simulated, spare";

/// Size from which on a model is large: see `batchfit_torch::graph::Graph::size`. The largest models in use have
/// some thousand operations of three operands and results each. An operation takes 3 KiB, and up to 14 in convolutional nets under
/// autocast.
const LARGE: usize = 20_000;

/// Size of the largest models that the service takes on: what an exported graph may have, in nodes, operands and results.
const LARGEST: usize = MOST_NODES + MOST_NAMES;

/// Work from which on it is large, in operations to simulate: see [`work`](batchfit_fit::work). Some ten seconds.
const LARGE_WORK: usize = 100_000;

/// What all work on models that are not large may take at a time, in MiB: with one large model, the service itself and what waits for a turn,
/// less than 512.
const MEMORY_MIB: usize = 128;

/// What any work takes, in MiB, and how much of a model takes one more. Measured: a graph takes 0.3 to 0.7 KiB for each node, operand, result
/// and parameter, and its largest variant as much again.
const LEAST_MIB: usize = 4;
const SIZE_OF_MIB: usize = 1_000;

/// What work yields to threads that serve others: it gets a tenth of what they get where both want all of a processor
/// (`sched_prio_to_weight` in Linux).
const NICE: i32 = 10;

/// Most requests that wait to be read as large ones; what they hold meanwhile is not counted.
const MOST_WAITING: usize = 8;

/// How long a request waits to be read as a large one.
const PATIENCE: Duration = Duration::from_secs(20);

tokio::task_local! {
    /// The key that a request is asked under.
    static KEY: String;
}

/// Has what a request does count as its key's.
pub fn under_key<F: Future>(key: String, request: F) -> impl Future<Output = F::Output> {
    KEY.scope(key, request)
}

/// How much a key does at a time: as much as there are lanes. What it asks beyond that waits here, where it is in nobody else's way. Cloning
/// them shares them.
#[derive(Debug, Clone)]
pub struct Turns {
    each: usize,
    of_keys: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// A turn, until this is dropped.
#[derive(Debug)]
pub struct Turn {
    _place: OwnedSemaphorePermit,
    /// Whether its key had no other one.
    is_alone: bool,
}

impl Turns {
    fn new(each: usize) -> Turns {
        Turns {
            each,
            of_keys: Arc::default(),
        }
    }

    /// Waits for a turn of the key that asks; none is needed where there is no key.
    pub async fn take(&self) -> Option<Turn> {
        let key = KEY.try_with(String::clone).ok()?;
        let places = {
            let mut known = self
                .of_keys
                .lock()
                .expect("nothing panics while it is held");
            let places = known.entry(key);
            Arc::clone(places.or_insert_with(|| Arc::new(Semaphore::new(self.each))))
        };
        let taken = Arc::clone(&places).acquire_owned().await;
        Some(Turn {
            _place: taken.expect("it is never closed"),
            is_alone: places.available_permits() + 1 == self.each,
        })
    }
}

/// Under which a body was read, and under which what it asks is read.
#[derive(Debug)]
pub struct Permit {
    /// That of its key, where one is needed.
    pub turn: Option<Turn>,
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
    /// For what keys have read, and for what they have probed and predicted.
    reading: Turns,
    working: Turns,
    /// A permit for each MiB of [`MEMORY_MIB`].
    memory: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Lanes {
    pub(super) fn new(simulated_in_parallel: usize) -> Self {
        Lanes {
            simulated_in_parallel,
            known: Mutex::default(),
            reading: Turns::new(simulated_in_parallel),
            working: Turns::new(simulated_in_parallel),
            memory: Arc::new(Semaphore::new(MEMORY_MIB)),
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

    /// The same for a fit; a simulated one was claimed because there is a place in one of two.
    pub(super) async fn enter_claimed(&self, lane: &str) -> OwnedSemaphorePermit {
        let spare = async {
            match lane {
                SIMULATED_LANE => self.enter(SPARE_LANE).await,
                _no_other => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            place = self.enter(lane) => place,
            place = spare => place,
        }
    }

    /// The turns of keys to have bodies read.
    pub(super) fn reading(&self) -> Turns {
        self.reading.clone()
    }

    /// The one place for work about a large model.
    pub(super) fn large(&self) -> Arc<Semaphore> {
        self.places(LARGE_LANE)
    }

    /// Waits for what work on a model of this size takes, which is not large. Whoever has it waits for nothing else.
    async fn reserve(&self, size: usize) -> OwnedSemaphorePermit {
        let mib = LEAST_MIB + size.min(LARGE) / SIZE_OF_MIB;
        let mib = u32::try_from(mib).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(mib);
        memory.await.expect("it is never closed")
    }

    fn places(&self, lane: &str) -> Arc<Semaphore> {
        let mut known = self.known.lock().expect("nothing panics while it is held");
        let places = match lane {
            SIMULATED_LANE | SPARE_LANE => self.simulated_in_parallel,
            _gpu_or_large => 1,
        };
        let lane = known.entry(lane.to_owned());
        Arc::clone(lane.or_insert_with(|| Arc::new(Semaphore::new(places))))
    }
}

impl Shared {
    /// Waits for a turn of the key that asks and for a place in `lane`. A key without another turn may have a spare one, as its fits.
    pub(super) async fn enter_in_turn(&self, lane: &str) -> (Option<Turn>, OwnedSemaphorePermit) {
        let turn = self.lanes.working.take().await;
        let place = match &turn {
            Some(turn) if turn.is_alone && lane == SIMULATED_LANE => {
                self.lanes.enter_claimed(lane).await
            }
            _ => self.enter(lane).await,
        };
        (turn, place)
    }

    /// Waits for the memory that work in this lane takes, where others work beside it. `known` is its request, where that was read.
    pub(super) async fn memory(
        &self,
        lane: &str,
        known: Option<&Request>,
    ) -> Option<OwnedSemaphorePermit> {
        if lane != SIMULATED_LANE {
            return None;
        }
        let size = known.and_then(Request::size).unwrap_or(LARGE);
        Some(self.lanes.reserve(size).await)
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
        self.memory(&claimed.lane, Some(request)).await
    }
}

/// Has this thread give way to others where processors are short: a service answers at once, however much it simulates.
pub(crate) fn yield_to_others() {
    // Where it is refused, work is as important as before.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// The same where work in this lane asks no real card.
pub(super) fn yield_in(lane: &str) {
    if matches!(lane, SIMULATED_LANE | LARGE_LANE) {
        yield_to_others();
    }
}

/// Makes no graph that is larger than the service takes on.
pub(super) fn of_any_size<T>(work: impl FnOnce() -> T) -> T {
    graphs_within(LARGEST, work).0
}

impl Jobs {
    /// Runs work that reads a model, on a thread of its own and in the memory that all such work shares. What turns out to be large begins anew
    /// when it has the permit for that, which is given back with the answer.
    pub(super) async fn reading<T: Send + 'static>(
        &self,
        name: &str,
        permit: Option<Permit>,
        work: impl Fn(&dyn Engine) -> Result<T, EngineError> + Clone + Send + 'static,
    ) -> Result<(T, Option<OwnedSemaphorePermit>), JobError> {
        let lanes = &self.shared.lanes;
        let late = |_| JobError::TooLarge;
        // The turn ends when it is read.
        let (permit, _turn) = permit
            .map(|permit| ((permit.permit, permit.is_large), permit.turn))
            .unzip();
        let large = match permit {
            Some((permit, true)) => permit,
            small => {
                let reserved = tokio::time::timeout(PATIENCE, lanes.reserve(LARGE));
                let memory = reserved.await.map_err(late)?;
                let first = work.clone();
                let reading = move |engine: &dyn Engine| {
                    yield_to_others();
                    graphs_within(LARGE, || first(engine))
                };
                let (read, is_larger) = self.on_thread(name, reading).await?;
                if !is_larger {
                    return Ok((read?, None));
                }
                // Others are read meanwhile.
                drop((small, memory));
                let _waiting = lanes
                    .waiting
                    .try_acquire()
                    .map_err(|_| JobError::TooLarge)?;
                let acquired = tokio::time::timeout(PATIENCE, self.shared.enter(LARGE_LANE));
                acquired.await.map_err(late)?
            }
        };
        let reading = move |engine: &dyn Engine| {
            yield_to_others();
            of_any_size(|| work(engine))
        };
        Ok((self.on_thread(name, reading).await??, Some(large)))
    }
}

/// The lane of a request's `device`. `auto` is one of its own: its worker takes a GPU that is free, and waits
/// for its turn where none is.
pub(super) fn lane_of(device: &str) -> &str {
    match device {
        simulated if simulated.starts_with("sim:") => SIMULATED_LANE,
        gpu => gpu,
    }
}

/// The lane of a fit, or of a probe, that is answered here; `card` is that of the device, none where it is simulated.
pub(super) fn lane_of_fit(request: &Request, card: Option<&str>) -> String {
    let device = request.device.to_string();
    let size = request.size().unwrap_or(0);
    let is_large = size >= LARGE || work(request) >= LARGE_WORK;
    match (&request.device, card) {
        (DeviceChoice::Sim(_), _) | (DeviceChoice::Kind(_), None) if is_large => {
            LARGE_LANE.to_owned()
        }
        (DeviceChoice::Sim(_), _) | (DeviceChoice::Kind(_), None) => SIMULATED_LANE.to_owned(),
        (
            DeviceChoice::Auto
            | DeviceChoice::Cuda(_)
            | DeviceChoice::Kind(_)
            | DeviceChoice::Host(..),
            _,
        ) => lane_of(&device).to_owned(),
    }
}
