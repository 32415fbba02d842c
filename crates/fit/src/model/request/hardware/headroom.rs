//! How much of its limit a request leaves free, where it is set: by the request, or outcomes of earlier answers.

use serde::{Deserialize, Serialize};

use crate::model::Parallel;
use crate::units::Share;
use batchfit_models::{Fields, RequestError};

/// What outcomes of earlier answers teach about variants of one strategy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadroomCalibration {
    /// How they train with others: [`strategy`].
    pub strategy: String,
    /// What is to be left free.
    pub share: Share,
    /// Whether that takes the place of what an answer leaves free by itself; otherwise it is the least.
    pub replaces: bool,
    /// Whose outcomes they were.
    pub of: CalibrationSource,
    /// How many.
    pub outcomes: u64,
}

/// Whose outcomes teach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalibrationSource {
    /// Those of this very model.
    Itself,
    /// Those of other models on the same card.
    Others,
}

/// The name of a strategy: `none`, `ddp`, `zero1` or `fsdp2`.
pub fn strategy(parallel: &Parallel) -> &'static str {
    parallel.name().unwrap_or("none")
}

/// The headroom that a request asks for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most half a million"
)]
pub(in crate::model::request) fn requested(
    fields: &Fields<'_>,
) -> Result<Option<Share>, RequestError> {
    let fraction: Option<f64> = fields.read("headroom")?;
    Ok(fraction.map(|fraction| Share((fraction * f64::from(Share::ALL.0)).round() as u32)))
}
