//! The table of recommendations: what finished fits advise, in columns that can be filtered.

/// Hands a macro the columns of a recommendation besides its two ids, its headroom and its time, by what is in them.
macro_rules! each_column {
    ($with:ident) => {
        $with! {
            texts: [
                model, model_kind, device, gpu, precision, checkpointing, mode, limited_by, evidence, batchfit_version, objective,
                strategy, pytorch, rules, model_digest, training
            ],
            optional: [optimizer, optimizer_impl, speed_from, driver, cudnn],
            numbers: [
                rank, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
                peak_allocated_bytes, peak_reserved_bytes, headroom_bytes
            ],
            others: [
                step_ms: Option<f64>, optimizer_step_ms: Option<f64>, samples_per_second: Option<f64>, pareto: Option<bool>
            ]
        }
    };
}

mod columns;
mod nearest;
mod result_index;
mod row;
mod stale;
#[cfg(test)]
mod tests;

use serde::Serialize;
use utoipa::ToSchema;

use super::engine::{Transaction, query};
use super::{JsonText, StoreError, Time, integer, with_context};
use crate::units::Share;
use batchfit_fit::search::headroom::Doubts;

pub use nearest::{Nearest, NearestQuery, is_simulation};
pub(super) use result_index::ResultIndex;
pub use result_index::{FilterColumn, RecommendationPage};
pub use stale::minor;
pub use stale::{Outdated, Stale};

/// One variant of a finished fit.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StoredRecommendation {
    /// Its name.
    pub id: String,
    /// The fit that it is from: `/v1/fits/{fit_id}`.
    pub fit_id: String,
    /// Its place among the fit's variants; 1 is the answer.
    #[schema(minimum = 1)]
    pub rank: i64,
    /// The model, as a person calls it: a preset's name, a Hugging Face class.
    pub model: String,
    /// How the model was described: `preset`, `layers`, `exported`, `hf` or `recorded`.
    pub model_kind: String,
    /// As resolved: `cuda:0`, `sim:h200`.
    pub device: String,
    /// The card's name.
    pub gpu: String,
    /// As in a request.
    pub precision: String,
    /// As in a request; null in inference.
    pub optimizer: Option<String>,
    /// As in a request; null in inference.
    pub optimizer_impl: Option<String>,
    /// `none`, `per_block` or `modules`.
    pub checkpointing: String,
    /// `train` or `inference`.
    pub mode: String,
    /// What the allocator may reserve.
    pub limit_bytes: i64,
    /// Over how many GPUs the fit was asked to train.
    #[schema(minimum = 1)]
    pub world_size: i64,
    /// Samples per micro-step on one GPU; 0 when nothing fits.
    pub micro_batch: i64,
    /// Micro-steps per optimizer step.
    pub accumulation_steps: i64,
    /// Samples per optimizer step over all ranks.
    pub global_batch: i64,
    /// The largest batch whose steps finish at all.
    pub max_batch: i64,
    /// The largest batch whose steps never force the allocator to retry.
    pub max_batch_without_retries: i64,
    /// Most bytes allocated in a step of the recommended micro-batch.
    pub peak_allocated_bytes: i64,
    /// Most bytes reserved in a step of the recommended micro-batch.
    pub peak_reserved_bytes: i64,
    /// `limit_bytes` less `peak_reserved_bytes`.
    pub headroom_bytes: i64,
    /// What keeps the batch from being larger, by name.
    pub limited_by: String,
    /// `simulated`, `recorded`, `probed` or `trained`.
    pub evidence: String,
    /// Milliseconds per micro-step, with its share of the update; null where it is not known.
    pub step_ms: Option<f64>,
    /// Milliseconds per optimizer step, all its micro-steps together; null where it is not known, as in rows of older versions.
    pub optimizer_step_ms: Option<f64>,
    /// Samples per second on one GPU; null where it is not known.
    pub samples_per_second: Option<f64>,
    /// Where times are from: `measured`, `calibrated` or `estimated`; null where there are none.
    pub speed_from: Option<String>,
    /// Whether no variant that it is compared with has both a larger micro-batch and more samples a second; null where that is not
    /// known.
    pub pareto: Option<bool>,
    /// Which batch was looked for: `largest_batch` or `throughput`.
    pub objective: String,
    /// The version that found it.
    pub batchfit_version: String,
    /// How ranks train together: `none`, `ddp`, `zero1` or `fsdp2`; empty in answers of earlier versions.
    pub strategy: String,
    /// The driver that it was found with; null on a simulated card.
    pub driver: Option<String>,
    /// The cuDNN whose workspaces were used.
    pub cudnn: Option<String>,
    /// The PyTorch whose behaviour is predicted; empty in answers of earlier versions.
    pub pytorch: String,
    /// What of the limit had to stay free, and who says so; null in answers of earlier versions.
    pub headroom: Option<StoredHeadroom>,
    /// When the fit ended.
    pub created_at: Time,
    /// What makes it out of date; null while the same answer would be given. `POST /v1/recommendations/{id}/refresh` makes it again.
    pub stale: Option<Stale>,
    /// The model itself, however it was described: the beginning of a digest.
    #[serde(skip)]
    pub model_digest: String,
    /// How it trains, as a digest: [`Request::training_digest`](crate::model::Request::training_digest); empty in answers of earlier versions.
    #[serde(skip)]
    pub training: String,
    /// The rules by which batchfit answered; empty in answers of earlier versions.
    #[serde(skip)]
    pub rules: String,
}

/// What of a limit had to stay free.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StoredHeadroom {
    /// As a part of the limit, from 0 to 1.
    #[serde(rename = "fraction", serialize_with = "as_fraction")]
    #[schema(value_type = f64)]
    pub share: Share,
    /// Who says so: `default`, `learnt` or `others` from outcomes, or `asked` by the request.
    pub from: String,
    /// How many outcomes of earlier answers it follows from.
    #[schema(minimum = 0)]
    pub outcomes: i64,
    /// What it leaves free by itself.
    #[serde(skip)]
    pub doubts: Doubts,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "what serde calls takes a reference"
)]
fn as_fraction<S: serde::Serializer>(share: &Share, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(share.fraction())
}

/// Which recommendations to list.
#[derive(Debug, Clone, Default)]
pub struct RecommendationFilter {
    /// What the columns are to say; those that are not named may say anything.
    pub facets: Vec<(FilterColumn, String)>,
    /// Older than this id.
    pub before: Option<String>,
    /// At most so many.
    pub limit: usize,
}

impl StoredRecommendation {
    /// A size or a count as this table holds it.
    pub fn integer(column: &'static str, value: u64) -> Result<i64, StoreError> {
        integer(column, value)
    }

    /// Stores it.
    pub(super) async fn insert(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        let headroom = self.headroom.as_ref();
        let millionths = headroom.map_or(0, |headroom| i64::from(headroom.share.0));
        let from = headroom.map_or("default", |headroom| headroom.from.as_str());
        let outcomes = headroom.map_or(0, |headroom| headroom.outcomes);
        let doubts = headroom.map_or_else(Doubts::default, |headroom| headroom.doubts.clone());
        let doubts = JsonText::written(&doubts);
        macro_rules! inserted {
            (texts: [$($text:ident),*], optional: [$($optional:ident),*], numbers: [$($number:ident),*], others: [$($other:ident: $type:ty),*]) => {
                query!(execute, transaction.on(), "INSERT INTO recommendation (
                 id, fit_id, created_at, headroom_millionths, headroom_from, headroom_outcomes, doubts,
                 model, model_kind, device, gpu, precision, checkpointing, mode, limited_by, evidence, batchfit_version, objective,
                 strategy, pytorch, rules, model_digest, training, optimizer, optimizer_impl, speed_from, driver, cudnn,
                 rank, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
                 peak_allocated_bytes, peak_reserved_bytes, headroom_bytes,
                 step_ms, optimizer_step_ms, samples_per_second, pareto)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
                     $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43)",
                    self.id, self.fit_id, self.created_at, millionths, from, outcomes, doubts
                    $(, self.$text)* $(, self.$optional)* $(, self.$number)* $(, self.$other)*)
            };
        }
        each_column!(inserted)
            .map(|_| ())
            .map_err(with_context("store a recommendation"))
    }
}
