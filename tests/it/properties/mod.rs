//! What holds after any sequence of steps.

mod alloc;
mod answers;
mod ask_tell;
mod search;
mod soaks;
