//! Commands of the service: it, its agents, its keys, its database and its settings.

pub(in crate::cli) mod agent;
pub(in crate::cli) mod agents;
pub(in crate::cli) mod config;
pub(in crate::cli) mod db;
pub(in crate::cli) mod keys;
pub(in crate::cli) mod serve;
