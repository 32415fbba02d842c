//! An agent: a process on a machine with GPUs that works on fits for a service elsewhere.
//!
//! It asks, and is never asked: it needs no port, and works from behind a firewall. It registers its cards, takes the fits that they
//! can run, has each answered by an [`Engine`](crate::jobs::Engine) of its own, and brings the answers. While it works it says that it is
//! there; where the service does not hear that for longer than a lease, the fit is given to another agent, and its own answer is refused. A
//! service that cannot be reached is asked again and again, so that an answer is not lost because the service restarts.

mod backoff;
mod cards;
mod client;
mod job;
mod run;

use tokio_util::task::AbortOnDropHandle;

pub use cards::{cards_of, simulated_cards};
pub use client::{Answer, NotAServer, Server, ServerError, ServerRequest};
pub use run::{AgentConfig, AgentError, Ended, Signals, run};

/// Runs this beside its caller, until the handle is dropped.
#[expect(
    clippy::disallowed_methods,
    reason = "it ends when its handle is dropped"
)]
fn alongside<F>(work: F) -> AbortOnDropHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    AbortOnDropHandle::new(tokio::spawn(work))
}
