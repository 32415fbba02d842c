//! Answers for people: text tables. JSON comes from the types themselves.
//!
//! Everything here gives a `String` that ends in a line break and has no colour, so that what a person
//! reads and what a test compares are the same.

mod device;
mod fit;
mod preset;
mod probe;
mod table;

pub use device::devices;
pub use fit::fit;
pub use preset::presets;
pub use probe::probe;
