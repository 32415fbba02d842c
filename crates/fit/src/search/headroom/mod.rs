//! How much of a limit is left free, learnt from what trainings came to.
//!
//! Pure: who asks says what was predicted, what was seen and what is known so far. See Note [Learning headroom].

mod doubts;
mod rule;
mod sample;
#[cfg(test)]
mod tests;

pub use doubts::{Doubt, Doubts, Halved};
pub use rule::{
    AGREEING, AGREEING_OF_A_KEY, Agreement, CEILING, CEILING_OF_OTHERS, FLOOR, HeadroomModel,
    Reporter, Told, least_for_unconfirmed, of_others, taught, way,
};
pub use sample::{Answered, RejectReason, Sample, TrainingRun, sample};
