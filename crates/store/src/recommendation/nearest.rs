//! The stored answer that is nearest to a question: for the same model, with other terms.

use std::collections::HashMap;

use super::StoredRecommendation;
use super::columns::Columns;
use super::result_index::{FACETS, FilterColumn};
use super::row::TextId;
use crate::{Db, StoreError};

/// What is asked, as far as answers are told apart by it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NearestQuery {
    /// The model's digest.
    pub model_digest: String,
    /// As in the request; not for `auto`.
    pub device: Option<String>,
    /// The card's name, where it is known.
    pub gpu: Option<String>,
    /// As in the request.
    pub precision: String,
    /// As in the request; empty in inference.
    pub optimizer: String,
    /// `none`, `per_block` or `modules`.
    pub checkpointing: String,
    /// As in the request.
    pub objective: String,
    /// Over how many GPUs.
    pub world_size: u64,
    /// What the allocator may reserve, where the request says it in bytes.
    pub limit_bytes: Option<u64>,
}

/// A stored answer, and what differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Nearest {
    /// The answer.
    pub recommendation: StoredRecommendation,
    /// Names of its members that say something else than was asked, what matters most first.
    pub differs: Vec<&'static str>,
}

/// What may differ, and how much that counts: what changes what is trained more than where, and that more than how much memory
/// it has there. A device is the same card by another name where the card is the same.
const COSTS: [(FilterColumn, &str, u32); 8] = [
    (FilterColumn::Precision, "precision", 32),
    (FilterColumn::Optimizer, "optimizer", 32),
    (FilterColumn::Checkpointing, "checkpointing", 32),
    (FilterColumn::WorldSize, "world_size", 16),
    (FilterColumn::Objective, "objective", 16),
    (FilterColumn::Gpu, "gpu", 8),
    (FilterColumn::LimitBytes, "limit_bytes", 4),
    (FilterColumn::Device, "device", 1),
];

/// Whether a device is simulated by the service itself.
pub fn is_simulation(device: &str) -> bool {
    device.starts_with("sim:")
}

impl Columns {
    /// The nearest row, by its place: of those that differ in what counts least the one whose limit is nearest, and the newest of
    /// these.
    fn nearest(&self, asked: &NearestQuery) -> Option<(usize, Vec<&'static str>)> {
        let model = self.texts.find(&asked.model_digest)?;
        let world_size = asked.world_size.to_string();
        let limit = asked.limit_bytes.map(|bytes| bytes.to_string());
        let wanted = |facet: FilterColumn| match facet {
            FilterColumn::Precision => Some(asked.precision.as_str()),
            FilterColumn::Optimizer => Some(asked.optimizer.as_str()),
            FilterColumn::Checkpointing => Some(asked.checkpointing.as_str()),
            FilterColumn::Objective => Some(asked.objective.as_str()),
            FilterColumn::WorldSize => Some(world_size.as_str()),
            FilterColumn::Gpu => asked.gpu.as_deref(),
            FilterColumn::LimitBytes => limit.as_deref(),
            FilterColumn::Device => asked.device.as_deref(),
            FilterColumn::Evidence | FilterColumn::Model | FilterColumn::ModelDigest => None,
        };
        // No row has 0 there, so a text that is nowhere differs from all.
        let wanted: Vec<(&[TextId], TextId, &'static str, u32)> = COSTS
            .into_iter()
            .filter_map(|(facet, name, cost)| {
                let word = self.texts.find(wanted(facet)?).unwrap_or(0);
                Some((self.values[facet as usize].as_slice(), word, name, cost))
            })
            .collect();
        let cost = |row: usize| -> u32 {
            let differing = wanted
                .iter()
                .filter(|(column, word, ..)| column[row] != *word);
            differing.map(|(.., cost)| cost).sum()
        };
        let models = &self.values[FilterColumn::ModelDigest as usize];
        let limits = &self.values[FilterColumn::LimitBytes as usize];
        let mut best: Option<(u32, u64, usize)> = None;
        let mut seen: Option<(TextId, u64)> = None;
        let is_simulated = asked.device.as_deref().is_some_and(is_simulation);
        let ran = ["probed", "trained"].map(|evidence| self.texts.find(evidence));
        let mut known: HashMap<TextId, bool> = HashMap::new();
        // A request that the service simulates is not answered by what an agent simulated.
        let mut is_an_agents = |row: usize| {
            let evidence = self.values[FilterColumn::Evidence as usize][row];
            if !is_simulated || ran.contains(&Some(evidence)) {
                return false;
            }
            let device = self.values[FilterColumn::Device as usize][row];
            *known.entry(device).or_insert_with(|| {
                let device = self.texts.text(device).unwrap_or_default();
                !is_simulation(&device) && !device.starts_with("cuda:")
            })
        };
        for row in (0..models.len()).filter(|row| models[*row] == model) {
            if is_an_agents(row) {
                continue;
            }
            let cost = cost(row);
            if best.is_some_and(|(least, ..)| cost > least) {
                continue;
            }
            // Rows of one limit mostly follow each other.
            let apart = match seen {
                Some((word, apart)) if word == limits[row] => apart,
                Some(_) | None => asked.limit_bytes.map_or(0, |asked| {
                    let limit = self.texts.text(limits[row]);
                    let limit: u64 = limit.and_then(|text| text.parse().ok()).unwrap_or(0);
                    limit.abs_diff(asked)
                }),
            };
            seen = Some((limits[row], apart));
            if best.is_none_or(|(least, nearest, _)| (cost, apart) <= (least, nearest)) {
                best = Some((cost, apart, row));
            }
        }
        let (.., row) = best?;
        let differs = wanted
            .iter()
            .filter(|(column, word, ..)| column[row] != *word);
        Some((row, differs.map(|(_, _, name, _)| *name).collect()))
    }
}

impl Db {
    /// The stored answer that is nearest to a question about the same model; none where that was never answered.
    pub async fn nearest(&self, asked: &NearestQuery) -> Result<Option<Nearest>, StoreError> {
        const { assert!(FACETS == COSTS.len() + 3) };
        self.read_recommendations().await?;
        let columns = self.shelf.read();
        let Some((row, differs)) = columns.nearest(asked) else {
            return Ok(None);
        };
        let found = columns.rows[row].unpack(&columns.texts);
        Ok(Some(Nearest {
            recommendation: columns.present.marked(found, &self.lessons),
            differs,
        }))
    }
}
