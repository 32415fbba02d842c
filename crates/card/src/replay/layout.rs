//! Segments and blocks at a moment: what the start of a late recording is rebuilt to.

use crate::alloc::{Address, PoolKind, Stream};
use crate::units::Bytes;

/// All memory held from the driver at a moment, by address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// The segments; for expandable ones, each run of mapped memory.
    pub segments: Vec<Segment>,
}

/// Memory held from the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its start.
    pub address: Address,
    /// Its size.
    pub size: Bytes,
    /// The stream that its blocks belong to.
    pub stream: Stream,
    /// The pool that its blocks belong to.
    pub pool: PoolKind,
    /// Whether it is a part of an expandable segment.
    pub is_expandable: bool,
    /// What is in use of it, by address; the rest is free.
    pub used: Vec<Used>,
}

/// A block in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Its start.
    pub address: Address,
    /// Its size.
    pub size: Bytes,
    /// What was asked for.
    pub requested: Bytes,
    /// Whether it was freed already and waits for another stream.
    pub is_pending: bool,
}

impl Layout {
    /// What was held.
    pub fn reserved(&self) -> Bytes {
        self.segments.iter().map(|segment| segment.size).sum()
    }

    /// Whether nothing was held.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}
