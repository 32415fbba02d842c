//! Launches, written down where the session asks for it: `name grid block shared`, sizes as `x,y,z`, names as compilers write them.
//!
//! Lines are kept and written many at a time; what is kept is written when a program waits for the device and when it ends.

use std::fs::{File, OpenOptions};
use std::io::Write;

use super::launch::Shape;
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
            if self.file.is_none() {
                self.file = path().and_then(|path| OpenOptions::new().append(true).create(true).open(path).ok());
            }
            if let Some(file) = &mut self.file {
                let _ = file.write_all(&self.lines);
            }
            self.lines.clear();
        }
    }
}
