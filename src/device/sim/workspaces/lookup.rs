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
    /// Best first.
    tables: Vec<&'t WorkspaceTable>,
    similar: HashMap<ConvolutionLayer, Similar>,
}

/// Layers among which most find some that are like them.
const MANY: usize = 3000;

impl<'t> Lookup<'t> {
    /// Nothing asked yet.
    pub fn new(table: &'t WorkspaceTable) -> Lookup<'t> {
        Lookup::among(vec![table])
    }

    /// The same with several tables, the best first.
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

    /// The table that layers are estimated from that are in none: the best that has many.
    pub fn estimated_from(&self) -> &'t WorkspaceTable {
        let mut tables = self.tables.iter();
        let large = tables.find(|table| table.len() >= MANY);
        large.unwrap_or(&self.tables[self.tables.len() - 1])
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
            let Some(mut listed) = table.recorded_plans(call) else {
                continue;
            };
            let is_beyond = matches!(listed.source, Source::Estimated(_));
            // Beyond its batches, too: in proportion, which is seldom too low (Note [Asked without the card]).
            if table.is_asked() {
                listed.source = Source::Asked;
            }
            if !is_beyond {
                return Some(listed);
            }
            beyond.get_or_insert(listed);
        }
        beyond
    }
}
