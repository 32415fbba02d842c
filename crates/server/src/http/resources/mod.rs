//! A file for each resource: its handlers, and what its bodies look like.

pub(in crate::http) mod agents;
pub(in crate::http) mod catalogue;
pub(in crate::http) mod events;
pub(in crate::http) mod fits;
pub(in crate::http) mod graphs;
pub(in crate::http) mod outcomes;
pub(in crate::http) mod probes;
pub(in crate::http) mod recommendations;
pub(in crate::http) mod replays;
pub(in crate::http) mod runs;
pub(in crate::http) mod searches;
