//! Launches, written down where the session asks for it: `name grid block shared`, sizes as `x,y,z`, names as compilers write them.
//!
//! Lines are kept and written many at a time; what is kept is written when a program waits for the device, when Python's hooks say something (the last
//! thing before they end it is that they do), and when it ends.

use std::fs::{File, OpenOptions};
use std::io::Write;

use super::launch::Shape;
use crate::channel;
use crate::config::config;
use crate::handle::Lock;

/// What is written at a time.
const KEPT: usize = 64 << 10;

struct Trace {
    /// Whose lines they are: not those of a fork.
    process: u32,
    lines: Vec<u8>,
    file: Option<File>,
}

static TRACE: Lock<Trace> = Lock::new(Trace { process: 0, lines: Vec::new(), file: None });

fn path() -> Option<&'static str> {
    config()?.launches.as_deref()
}

/// Whether launches are written down.
pub fn is_on() -> bool {
    path().is_some()
}

/// Writes a launch down.
pub fn write(name: &str, shape: &Shape) {
    let mut trace = TRACE.lock();
    let process = std::process::id();
    if trace.process != process {
        trace.process = process;
        trace.lines.clear();
    }
    let Shape { grid, block, shared, .. } = shape;
    let _ = writeln!(trace.lines, "{name} {},{},{} {},{},{} {shared}", grid.x, grid.y, grid.z, block.x, block.y, block.z);
    if trace.lines.len() >= KEPT {
        trace.write();
    }
}

/// Writes what is kept.
pub fn flush() {
    if is_on() {
        TRACE.lock().write();
    }
}

impl Trace {
    fn write(&mut self) {
        if self.process == std::process::id() && !self.lines.is_empty() {
            if let Err(error) = self.append() {
                channel::say(&format!("unwritten\t{}", error.raw_os_error().unwrap_or(0)));
            }
            self.lines.clear();
        }
    }

    fn append(&mut self) -> std::io::Result<()> {
        if self.file.is_none() {
            self.file = path().map(|path| OpenOptions::new().append(true).create(true).open(path)).transpose()?;
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(&self.lines))
    }
}
