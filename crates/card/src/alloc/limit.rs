//! How much memory the allocator may reserve, as people say it.

use serde::Serialize;

use crate::units::Bytes;

/// How much the allocator may reserve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum MemoryLimit {
    /// So many bytes.
    Bytes(Bytes),
    /// A share of the device's memory, above 0 and at most 1, as in
    /// `torch.cuda.set_per_process_memory_fraction`.
    Fraction(f64),
}
