//! What a terminal shows: text, colours, completion.

pub(in crate::cli) mod output;
pub(in crate::cli) mod shell;
