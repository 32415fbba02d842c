//! What holds after any sequence of steps.

mod alloc;
mod answers;
mod conversation;
mod search;
mod soaks;
