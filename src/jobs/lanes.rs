//! What may run beside what: one piece of work on each GPU, a few on simulated devices.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::SIMULATED_LANE;

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
        let semaphore = {
            let mut known = self.known.lock().expect("nothing panics while it is held");
            let places = match lane {
                SIMULATED_LANE => self.simulated_in_parallel,
                _gpu => 1,
            };
            Arc::clone(
                known
                    .entry(lane.to_owned())
                    .or_insert_with(|| Arc::new(Semaphore::new(places))),
            )
        };
        semaphore
            .acquire_owned()
            .await
            .expect("lanes are never closed")
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
