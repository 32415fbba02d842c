//! The answer for several lengths: the `lengths` of a fit's result.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Recommendation, VariantResult};
use crate::model::{Length, LengthOf, Variant};

/// The largest safe batch at each length, and what follows for batches of all of them. Each length is alone in its training here; what
/// a training that mixes them reserves is what a `soak` finds out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LengthTable {
    /// What differs.
    pub of: LengthOf,
    /// The variant that the rows are about: the best at the length that decides.
    #[schema(value_type = Object)]
    pub training: Variant,
    /// The length with the smallest batch. The recommendation is what the request, with its target and objective, is answered with there;
    /// it is safe at every length.
    #[schema(value_type = serde_json::Value)]
    pub decides: Length,
    /// A row for each length, the shortest first.
    pub rows: Vec<LengthRow>,
    /// Most tokens (or pixels) of a micro-batch such that as many whole samples as they hold are safe at every length; null where a length
    /// has no safe batch.
    pub budget: Option<u64>,
    /// Whether every batch that the budget allows was simulated, not only the largest of each length.
    pub budget_was_run: bool,
    /// Lengths that are put together, the shortest first.
    pub buckets: Vec<Bucket>,
    /// What of the tokens is padding where all samples are padded to the longest length, from 0 to 1; null for images of which none
    /// holds all others.
    pub padding_of_one_bucket: Option<f64>,
}

/// One length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LengthRow {
    /// The length: a number, or height and width.
    #[schema(value_type = serde_json::Value)]
    pub length: Length,
    /// Tokens of a sample, or pixels.
    pub units: u64,
    /// Samples of this length, as far as the request says it; otherwise 1.
    pub count: u64,
    /// What a fit of this length alone recommends for the variant, without a target and an objective: the largest safe batch. Its `why`
    /// is left out, and notes that the answer has are.
    pub recommendation: Recommendation,
    /// Tokens of its micro-batch, or pixels.
    pub batch_units: u64,
    /// Samples of this length that the budget allows in a micro-batch; null without a budget.
    pub within_budget: Option<u64>,
    /// All variants at this length, best first; empty where there is one, or where there are too many lengths to list them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<VariantResult>,
}

/// Lengths that are put together and padded to the longest of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    /// The shortest and the longest length in it.
    #[schema(value_type = Vec<serde_json::Value>)]
    pub lengths: [Length; 2],
    /// Samples in it.
    pub count: u64,
    /// Samples of a micro-batch that are safe at all of its lengths; 0 where nothing fits.
    pub micro_batch: u64,
    /// Micro-batches that its samples make; null where nothing fits.
    pub batches: Option<u64>,
    /// What of its tokens is padding, from 0 to 1.
    pub padding: f64,
}
