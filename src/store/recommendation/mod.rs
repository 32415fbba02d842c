//! The table of recommendations: what finished fits advise, in columns that can be filtered.

mod row;
mod shelf;
#[cfg(test)]
mod tests;

use serde::Serialize;
use sqlx::SqliteConnection;
use utoipa::ToSchema;

use super::{StoreError, Time, asking, integer};

pub(super) use shelf::Shelf;
pub use shelf::{Facet, RecommendationPage};

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
    /// Milliseconds per micro-step, with its share of the update; null where nobody knows.
    pub step_ms: Option<f64>,
    /// Milliseconds per optimizer step, all its micro-steps together; null where nobody knows, as of rows of older versions.
    pub optimizer_step_ms: Option<f64>,
    /// Samples per second on one GPU; null where nobody knows.
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
    /// When the fit ended.
    pub created_at: Time,
}

/// Which recommendations to list.
#[derive(Debug, Clone, Default)]
pub struct RecommendationFilter {
    /// What the columns are to say; those that are not named may say anything.
    pub facets: Vec<(Facet, String)>,
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
    pub(super) async fn insert(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO recommendation (
                 id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing,
                 mode, limit_bytes, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
                 peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second,
                 batchfit_version, created_at, world_size, step_ms, optimizer_step_ms, speed_from, pareto, objective)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
                     ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32)",
            self.id,
            self.fit_id,
            self.rank,
            self.model,
            self.model_kind,
            self.device,
            self.gpu,
            self.precision,
            self.optimizer,
            self.optimizer_impl,
            self.checkpointing,
            self.mode,
            self.limit_bytes,
            self.micro_batch,
            self.accumulation_steps,
            self.global_batch,
            self.max_batch,
            self.max_batch_without_retries,
            self.peak_allocated_bytes,
            self.peak_reserved_bytes,
            self.headroom_bytes,
            self.limited_by,
            self.evidence,
            self.samples_per_second,
            self.batchfit_version,
            self.created_at,
            self.world_size,
            self.step_ms,
            self.optimizer_step_ms,
            self.speed_from,
            self.pareto,
            self.objective,
        )
        .execute(connection)
        .await
        .map(|_| ())
        .map_err(asking("store a recommendation"))
    }
}
