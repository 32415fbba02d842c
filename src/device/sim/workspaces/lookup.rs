//! Questions about many batches of the same layers.

use std::collections::HashMap;

use crate::program::{Convolution, ConvolutionLayer};
use crate::units::Bytes;

use super::neighbours::Similar;
use super::table::WorkspaceTable;
use super::{Plans, Source};

/// Asks a table, and remembers which layers are alike: finding them takes longer than all else that a probe
/// does for a layer, and they are the same at every batch.
#[derive(Debug, Clone)]
pub struct Lookup<'t> {
    table: &'t WorkspaceTable,
    similar: HashMap<ConvolutionLayer, Similar>,
}

impl<'t> Lookup<'t> {
    /// Nothing asked yet.
    pub fn new(table: &'t WorkspaceTable) -> Lookup<'t> {
        Lookup {
            table,
            similar: HashMap::new(),
        }
    }

    /// The plans for one call.
    pub fn plans(&mut self, call: &Convolution) -> Plans {
        if !call.uses_cudnn() {
            return Plans {
                workspaces: vec![Bytes::ZERO],
                source: Source::NotTheLibrary,
            };
        }
        let table = self.table;
        if let Some(listed) = table.recorded_plans(call) {
            return Plans {
                workspaces: listed.workspaces(),
                source: listed.source,
            };
        }
        let neighbours = table.neighbours();
        let layer = call.layer();
        let similar = self.similar.entry(layer);
        let similar = similar.or_insert_with(|| neighbours.nearest(&layer));
        neighbours.estimate(call, similar, |other| table.recorded_plans(other))
    }
}
