//! What wrappers for several GPUs add to a step.

mod buckets;
mod construction;
mod ddp;
mod fully_shard;
mod ranks;
mod zero;

use std::rc::Rc;

use crate::eager::{Eager, Leaf};

pub(super) use ddp::{Model, Reducer, send_from};
pub(super) use fully_shard::{Sharded, modules};
pub use ranks::{MOST_CLASSES, RankClass, rank_classes};
pub(super) use zero::partition;

/// What a model is wrapped in.
#[derive(Debug, Clone)]
pub(super) enum Wrapper {
    /// Nothing: one GPU.
    None,
    /// `DistributedDataParallel`.
    Replicated(Rc<Reducer>),
    /// `fully_shard`.
    Sharded(Rc<Sharded>),
}

impl Wrapper {
    /// How many steps differ before all are alike: that many are compiled, and the last is every later one.
    pub(super) fn steps(&self) -> usize {
        match self {
            Wrapper::None | Wrapper::Sharded(_) => 2,
            Wrapper::Replicated(reducer) => reducer.steps(),
        }
    }

    /// Whether every micro-step sends gradients, or the last of a step alone.
    pub(super) fn sends(&self) -> Option<bool> {
        match self {
            Wrapper::None => None,
            Wrapper::Replicated(reducer) => Some(reducer.sends_always()),
            Wrapper::Sharded(sharded) => Some(sharded.reduces_always()),
        }
    }

    /// What comes before a forward pass, whose backward pass sends gradients or does not.
    pub(super) fn before_forward(&self, eager: &mut Eager, sends: bool) {
        match self {
            Wrapper::None => {}
            Wrapper::Replicated(reducer) => reducer.before_forward(eager, sends),
            Wrapper::Sharded(sharded) => sharded.before_micro_step(sends),
        }
    }

    /// What ends a backward pass, which left gradients with these.
    pub(super) fn after_backward<'a>(
        &self,
        eager: &mut Eager,
        leaves: impl Iterator<Item = &'a Leaf>,
    ) {
        match self {
            Wrapper::None => {}
            Wrapper::Replicated(reducer) => reducer.after_backward(eager, leaves),
            Wrapper::Sharded(sharded) => sharded.backward_ends(eager),
        }
    }

    /// Whether the next forward pass hands out copies of the model's results.
    pub(super) fn copies_results(&self) -> bool {
        match self {
            Wrapper::None | Wrapper::Sharded(_) => false,
            Wrapper::Replicated(reducer) => reducer.copies_results(),
        }
    }

    /// `fully_shard`, if it is that.
    pub(super) fn sharded(&self) -> Option<&Rc<Sharded>> {
        match self {
            Wrapper::Sharded(sharded) => Some(sharded),
            Wrapper::None | Wrapper::Replicated(_) => None,
        }
    }
}
