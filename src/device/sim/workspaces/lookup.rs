//! Questions about many batches of the same layers.

use std::collections::HashMap;

use crate::program::{Convolution, ConvolutionLayer};
use crate::units::Bytes;

use super::job::Listed;
use super::neighbours::Similar;
use super::table::WorkspaceTable;
use super::{Plans, Source};

/// Asks tables, and remembers which layers are alike: finding them takes longer than all else that a probe
/// does for a layer, and they are the same at every batch.
#[derive(Debug, Clone)]
pub struct Lookup<'t> {
    /// Best first. A layer that is in none is estimated from those most like it in the last, which is the largest.
    tables: Vec<&'t WorkspaceTable>,
    similar: HashMap<ConvolutionLayer, Similar>,
}

impl<'t> Lookup<'t> {
    /// Nothing asked yet.
    pub fn new(table: &'t WorkspaceTable) -> Lookup<'t> {
        Lookup::among(vec![table])
    }

    /// The same with several tables, the best first and the largest last.
    ///
    /// # Panics
    ///
    /// Without a table.
    pub fn among(tables: Vec<&'t WorkspaceTable>) -> Lookup<'t> {
        assert!(!tables.is_empty(), "somebody has to be asked");
        Lookup {
            tables,
            similar: HashMap::new(),
        }
    }

    /// The table that layers are estimated from that are in none.
    pub fn estimated_from(&self) -> &'t WorkspaceTable {
        self.tables[self.tables.len() - 1]
    }

    /// The plans for one call.
    pub fn plans(&mut self, call: &Convolution) -> Plans {
        if !call.uses_cudnn() {
            return Plans {
                workspaces: vec![Bytes::ZERO],
                source: Source::NotTheLibrary,
            };
        }
        if let Some(listed) = self.listed(call) {
            return Plans {
                workspaces: listed.workspaces(),
                source: listed.source,
            };
        }
        let table = self.estimated_from();
        let neighbours = table.neighbours();
        let layer = call.layer();
        let similar = self.similar.entry(layer);
        let similar = similar.or_insert_with(|| neighbours.nearest(&layer));
        neighbours.estimate(call, similar, |other| table.recorded_plans(other))
    }

    /// What the best table says that has the layer: at this batch, or else beyond its batches.
    fn listed(&self, call: &Convolution) -> Option<Listed<'t>> {
        let mut beyond = None;
        for table in &self.tables {
            if let Some(listed) = table.recorded_plans(call) {
                if !matches!(listed.source, Source::Estimated(_)) {
                    return Some(listed);
                }
                beyond.get_or_insert(listed);
            }
        }
        beyond
    }
}
