//! How requests are read: bodies, headers, parameters, and how many may come at a time.

pub(in crate::http) mod body;
pub(in crate::http) mod headers;
pub(in crate::http) mod parameters;
pub(in crate::http) mod slots;
pub(in crate::http) mod unpack;
pub(in crate::http) mod uploads;
