//! How much of a limit is left free, learnt from what trainings came to.
//!
//! Pure: who asks says what was predicted, what was seen and what is known so far. See Note [Learning headroom].

mod lesson;
mod rule;
#[cfg(test)]
mod tests;

pub use lesson::{Answered, Doubt, Lesson, Seen, lesson};
pub use rule::{
    AGREEING, AGREEING_OF_A_KEY, CEILING, CEILING_OF_A_KEY, CEILING_OF_OTHERS, FLOOR, Learnt,
    Teller, of_others,
};
