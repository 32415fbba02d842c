//! An observation: what a run of a batch came to.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::known;
use crate::model::{DIGEST_FORM, Digest, RequestError};
use crate::search::MAX_BATCH;

/// The members of an observation.
const FIELDS: &[&str] = &["batch", "outcome", "peak_reserved_bytes", "recorded"];

/// More bytes than any machine has.
const MOST_BYTES: u64 = 1 << 60;

batchfit_step::listed! {
    /// How a run at a batch ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Outcome {
        /// It finished.
        Fits = "fits",
        /// It finished, but the allocator had to free cached memory and ask again.
        FitsWithRetries = "fits_with_retries",
        /// It ran out of the device's memory.
        OutOfMemory = "out_of_memory",
        /// It ended for another reason, or not at all: that says nothing about the batch.
        Crashed = "crashed",
    }
}

/// What was observed of a batch: the body of `POST /v1/searches/{id}/observations`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Observation {
    /// Samples per micro-step on one GPU.
    #[schema(minimum = 1)]
    pub batch: u64,
    /// How the run ended.
    pub outcome: Outcome,
    /// Most bytes that its allocator had reserved, as `torch.cuda.max_memory_reserved()` says; null where it was not measured.
    #[schema(minimum = 1)]
    pub peak_reserved_bytes: Option<u64>,
    /// The digest of a recording of the run, `sha256:` and 64 digits; null without one.
    pub recorded: Option<String>,
}

impl Observation {
    /// A run of which only its end is known.
    pub fn new(batch: u64, outcome: Outcome) -> Observation {
        Observation {
            batch,
            outcome,
            peak_reserved_bytes: None,
            recorded: None,
        }
    }

    /// Reads the members of an observation.
    pub fn parse(document: &Value) -> Result<Observation, RequestError> {
        let fields = known(document, "an observation", FIELDS)?;
        let names = Outcome::ALL.map(|outcome| (outcome.name(), outcome));
        let batch = fields.whole("batch", 1, MAX_BATCH)?;
        let outcome = fields.choice("outcome", "outcome", &names)?;
        Ok(Observation {
            batch: batch.ok_or_else(|| fields.missing("batch"))?,
            outcome: outcome.ok_or_else(|| fields.missing("outcome"))?,
            peak_reserved_bytes: fields.whole("peak_reserved_bytes", 1, MOST_BYTES)?,
            recorded: fields
                .text("recorded")?
                .map(|digest| recorded(digest, &fields.at("recorded")))
                .transpose()?,
        })
    }
}

/// The name of a recording.
fn recorded(digest: &str, pointer: &str) -> Result<String, RequestError> {
    let read = Digest::parse(digest).map(|digest| digest.to_string());
    read.ok_or_else(|| {
        let problem = format!("recorded must be the digest of an upload; {DIGEST_FORM}");
        RequestError::at(pointer, problem).with_value(&Value::from(digest))
    })
}
