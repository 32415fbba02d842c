//! Before and around the routes: who may connect, for how long and with which names, what is received and sent, and how it ends.

pub(in crate::http) mod access;
pub(in crate::http) mod connections;
pub(in crate::http) mod hosts;
pub(in crate::http) mod keys;
pub(in crate::http) mod serve;
pub(in crate::http) mod transfer;
