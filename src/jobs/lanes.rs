//! What may run beside what: one piece of work on each GPU, a few on simulated devices, and one at a time that is
//! about a large model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::{DeviceChoice, Request};
use crate::store::SIMULATED_LANE;

/// The lane of work on large models on simulated devices. Each takes up to some 400 MiB, so there is one at a time, and
/// those of ordinary models do not wait for it.
pub(super) const LARGE_LANE: &str = "simulated, large";

/// Size from which on a model is large: see [`Graph::size`](crate::graph::Graph::size). The largest models in use have
/// some thousand operations of three operands and results each. An operation takes 3 KiB, and up to 14 in convolutional nets under
/// autocast.
const LARGE: usize = 20_000;

/// The lanes in use. A permit is held by the thread that works, so a lane stays taken until the thread
/// has really ended, cancelled or not.
#[derive(Debug)]
pub(super) struct Lanes {
    simulated_in_parallel: usize,
    known: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Lanes {
    pub(super) fn new(simulated_in_parallel: usize) -> Self {
        Lanes {
            simulated_in_parallel,
            known: Mutex::default(),
        }
    }

    /// Waits for a place in `lane`.
    pub(super) async fn enter(&self, lane: &str) -> OwnedSemaphorePermit {
        self.places(lane)
            .acquire_owned()
            .await
            .expect("lanes are never closed")
    }

    /// The one place for work about a large model.
    pub(super) fn large(&self) -> Arc<Semaphore> {
        self.places(LARGE_LANE)
    }

    fn places(&self, lane: &str) -> Arc<Semaphore> {
        let mut known = self.known.lock().expect("nothing panics while it is held");
        let places = match lane {
            SIMULATED_LANE => self.simulated_in_parallel,
            _gpu_or_large => 1,
        };
        let lane = known.entry(lane.to_owned());
        Arc::clone(lane.or_insert_with(|| Arc::new(Semaphore::new(places))))
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
    let size = request.lower().map_or(0, |lowered| lowered.workload.size());
    match (&request.device, card) {
        (DeviceChoice::Sim(_), _) | (DeviceChoice::Kind(_), None) if size >= LARGE => {
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
