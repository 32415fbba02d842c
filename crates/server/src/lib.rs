//! The service: who waits, who runs, what happens when something stops, and the doors to it. The only crate that names axum.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`jobs`] | the queue: a request becomes a row, a lane's work, an answer; leases, events, agents, outcomes |
//! | [`http`] | REST, keys, limits, metrics, and the page in the browser |
//! | [`agent`] | `batchfit agent`: answers for another server with the GPUs of its own machine |

pub mod agent;
pub mod http;
pub mod jobs;

use batchfit_card::{alloc, device, probe, replay};
use batchfit_fit::{model, recorded, virtual_gpu};
use batchfit_report as report;
use batchfit_step::{limits, program, units};
use batchfit_store as store;
use std::sync::{Mutex, MutexGuard};

/// What a mutex guards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it is held")
}
