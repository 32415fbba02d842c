//! Collectives: what the ranks of a job do together, through NCCL, which is loaded at run time.
//!
//! # Note [Collectives]
//!
//! A communicator's collectives run one after the other on a stream of their own, as DDP's do, beside what is computed. Two rules
//! keep values right whatever a program says:
//!
//! * A collective begins when everything that was queued before it is done.
//! * A launch that touches memory of a collective that is under way begins when that is done. Memory is what counts, not names: a
//!   tensor that was freed meanwhile, and another one in its place, are waited for as well. See `flights`.
//!
//! All ranks queue the same collectives in the same order. One that does not come leaves the others waiting on their GPUs for ever:
//! their parent ends them, see `worker`.

mod communicator;
mod flights;
mod library;

pub(super) use communicator::CollectiveCall;
pub use communicator::{Communicator, Invitation};
