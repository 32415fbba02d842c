//! The workspaces that a card's convolution library asks for, without the card.
//!
//! [`WorkspaceTable`] holds what cuDNN answered on a real card for many layers at many batches,
//! and answers for any convolution: exactly at a recorded batch, from its neighbours between two
//! of them, and from a stated rule for a layer that was never recorded. Each answer says which it
//! is.
//!
//! The tables are written by `batchfit record-workspaces`, in the format of [`condense`],
//! packed by [`pack`].
#![doc = include_str!("NOTES.md")]

mod algorithms;
mod archive;
mod composition;
mod condense;
mod job;
mod layer_text;
mod lookup;
mod neighbours;
mod table;

pub use algorithms::{REFUSED, of_a_product, of_engine, refused_engines};
pub use archive::{merge, pack, unpack};
pub use condense::{CardTraits, CondenseError, Provenance, condense};
pub use layer_text::{layer_text, parse_layer};
pub use lookup::Lookup;
pub use table::{NO_DRIVER, TableError, WorkspaceTable};

use crate::program::{Convolution, Operation};
use crate::shape::DType;
use crate::units::Bytes;

/// The plans of one convolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plans {
    /// What each plan allocates, in the order in which they are tried, ending with one that needs
    /// nothing. Where a plan needs at least as much as one before it, which would have been
    /// refused first, the earlier plan's size stands in. See Note [Record lows].
    pub workspaces: Vec<Bytes>,
    /// What the first may need at most, as far as is known: as much as it says, where that is no estimate.
    pub at_most: Bytes,
    /// How far to trust it.
    pub source: Source,
}

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Read from the table.
    Recorded,
    /// From the recorded batches on either side.
    Interpolated,
    /// From a table that was asked of cuDNN's heuristics without the card.
    Asked,
    /// From a rule, named here.
    Estimated(&'static str),
    /// PyTorch runs this one with kernels of its own, which need nothing.
    NotTheLibrary,
}
