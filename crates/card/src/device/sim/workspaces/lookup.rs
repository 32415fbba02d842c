//! Questions about many batches of the same layers.

use std::collections::HashMap;

use crate::device::sim::{Card, Heuristics};
use crate::program::{Convolution, ConvolutionLayer};
use crate::units::Bytes;

use super::job::Listed;
use super::neighbours::{Similar, estimate, nearest_of, tensor_bytes};
use super::table::WorkspaceTable;
use super::{Plans, Source};

/// Asks tables, and remembers which layers are alike: finding them takes longer than all else that a probe
/// does for a layer, and they are the same at every batch.
#[derive(Debug, Clone)]
pub struct Lookup<'t> {
    /// Best first.
    tables: Vec<&'t WorkspaceTable>,
    /// Asked about what no table has that was recorded.
    heuristics: Option<(&'static Card, &'static dyn Heuristics)>,
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
        assert!(!tables.is_empty(), "a table is required");
        Lookup {
            tables,
            heuristics: None,
            similar: HashMap::new(),
        }
    }

    /// The same where cuDNN's heuristics can be asked about a card: they come after what was recorded, and before what they were asked once
    /// at other batches.
    #[must_use]
    pub fn with_heuristics(
        self,
        heuristics: Option<(&'static Card, &'static dyn Heuristics)>,
    ) -> Lookup<'t> {
        Lookup { heuristics, ..self }
    }

    /// The tables that layers are estimated from that are in none: those that have many.
    fn large(&self) -> impl Iterator<Item = &'t WorkspaceTable> {
        let large = self.tables.iter().filter(|table| table.len() >= MANY);
        let last = &self.tables[self.tables.len() - 1];
        let is_small = last.len() < MANY;
        large.chain(Some(last).filter(|_| is_small)).copied()
    }

    /// The first of them.
    pub fn estimated_from(&self) -> &'t WorkspaceTable {
        let first = self.large().next();
        first.unwrap_or(self.tables[self.tables.len() - 1])
    }

    /// Says which calls there will be questions about, so that heuristics can be asked about them all at a time.
    pub fn expect(&self, calls: impl Iterator<Item = Convolution>) {
        if let Some((card, heuristics)) = self.heuristics {
            let calls: Vec<Convolution> = calls
                .filter(|call| call.uses_cudnn() && !is_recorded(self.listed(call).as_ref()))
                .collect();
            heuristics.ask_ahead(card, &calls);
        }
    }

    /// The plans for one call.
    pub fn plans(&mut self, call: &Convolution) -> Plans {
        if !call.uses_cudnn() {
            return Plans {
                workspaces: vec![Bytes::ZERO],
                at_most: Bytes::ZERO,
                source: Source::NotTheLibrary,
            };
        }
        let listed = self.listed(call);
        if !is_recorded(listed.as_ref())
            && let Some((card, heuristics)) = self.heuristics
            && let Some(first) = heuristics.first_workspace(card, call)
        {
            return Plans {
                workspaces: vec![first],
                at_most: first,
                source: Source::Asked,
            };
        }
        if let Some(listed) = listed {
            let workspaces = listed.workspaces();
            let first = workspaces.first().copied().unwrap_or(Bytes::ZERO);
            // Most plans work on copies of some of the tensors, at most of all three.
            let at_most = match listed.source {
                Source::Estimated(_) => first.max(Bytes(tensor_bytes(call))),
                _ => first,
            };
            return Plans {
                workspaces,
                at_most,
                source: listed.source,
            };
        }
        let layer = call.layer;
        let large: Vec<&WorkspaceTable> = self.large().collect();
        let similar = self.similar.entry(layer).or_insert_with(|| {
            let tables = large.iter().map(|table| table.neighbours());
            nearest_of(tables.map(|neighbours| neighbours.nearest(&layer)))
        });
        estimate(call, similar, |other| {
            large.iter().find_map(|table| table.recorded_plans(other))
        })
    }

    /// The plans after those that [`Lookup::plans`] gave, where it gave the first alone.
    pub fn further_plans(&self, call: &Convolution, listed: usize) -> Vec<Bytes> {
        let asked = self
            .heuristics
            .filter(|_| call.uses_cudnn() && !is_recorded(self.listed(call).as_ref()));
        let Some((card, heuristics)) = asked else {
            return Vec::new();
        };
        if listed > 1 || heuristics.first_workspace(card, call).is_none() {
            return Vec::new();
        }
        // Most layers have a plan that needs none.
        let all = heuristics.workspaces(card, call);
        all.map_or_else(
            || vec![Bytes::ZERO],
            |all| all[listed.min(all.len())..].to_vec(),
        )
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

/// Whether it was recorded on a card, at this batch or on either side of it.
fn is_recorded(listed: Option<&Listed<'_>>) -> bool {
    listed.is_some_and(|listed| matches!(listed.source, Source::Recorded | Source::Interpolated))
}
