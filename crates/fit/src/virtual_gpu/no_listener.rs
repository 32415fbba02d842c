//! Where no virtual GPU is carried, nobody speaks.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use super::events::RunEvents;
use super::oracle::Oracle;

/// Longest line.
pub const LONGEST_LINE: usize = 16 << 10;

/// None is started.
#[derive(Debug)]
pub struct Listener(Infallible);

impl Listener {
    /// Always an error.
    pub fn start(_socket: &Path, _oracle: Oracle) -> io::Result<Listener> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a virtual GPU needs Linux",
        ))
    }

    /// There is none.
    pub fn finish(self) -> RunEvents {
        match self.0 {}
    }
}
