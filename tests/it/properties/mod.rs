//! What holds after any sequence of steps.

mod alloc;
mod search;
