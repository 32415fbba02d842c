//! Outcomes of trainings, as clients report them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::limits::is_hidden;
use crate::model::RequestError;
use crate::store::{JsonText, StoredRecommendation, minor};
use crate::units::Bytes;
use batchfit_fit::search::MAX_BATCH;
use batchfit_fit::search::ask_tell::Outcome;
use batchfit_fit::search::headroom::{RejectReason, TrainingRun};
use batchfit_models::{Fields, wrong};

/// The members of an outcome.
const FIELDS: &[&str] = &[
    "batch",
    "outcome",
    "peak_reserved_bytes",
    "retries",
    "steps",
    "environment",
];

/// The members of an environment.
const ENVIRONMENT: &[&str] = &["gpu", "driver", "cuda", "cudnn", "pytorch", "batchfit"];

/// Longest text of an environment, in bytes: names of cards have some forty.
const LONGEST: usize = 200;

/// More bytes than any machine has, and most steps and retries that are counted.
const MOST: u64 = 1 << 60;

/// An outcome, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedOutcome {
    /// What was seen.
    pub seen: TrainingRun,
    /// Where it ran.
    pub environment: ReportedEnvironment,
}

/// Where a training ran, as far as the client says it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReportedEnvironment {
    /// The card's name, as `torch.cuda.get_device_name()` says.
    #[schema(max_length = 200, example = "NVIDIA H200")]
    pub gpu: Option<String>,
    /// The driver's version, as `nvidia-smi` says.
    #[schema(max_length = 200, example = "580.95.05")]
    pub driver: Option<String>,
    /// `torch.version.cuda`.
    #[schema(max_length = 200, example = "13.0")]
    pub cuda: Option<String>,
    /// The version of cuDNN.
    #[schema(max_length = 200, example = "9.19.0")]
    pub cudnn: Option<String>,
    /// `torch.__version__`.
    #[schema(max_length = 200, example = "2.11.0+cu130")]
    pub pytorch: Option<String>,
    /// The version of batchfit that the trainer has.
    #[schema(max_length = 200, example = "0.1.0")]
    pub batchfit: Option<String>,
}

impl ReportedOutcome {
    /// Reads the members of an outcome.
    pub fn parse(document: &Value) -> Result<ReportedOutcome, RequestError> {
        let fields = Fields::of(document, "", "an outcome", FIELDS)?;
        let names = Outcome::ALL.map(|outcome| (outcome.name(), outcome));
        let batch = fields.whole("batch", 1, MAX_BATCH)?;
        let outcome = fields.choice("outcome", "outcome", &names)?;
        let environment = match fields.get("environment") {
            None => ReportedEnvironment::default(),
            Some(environment) => {
                ReportedEnvironment::parse(environment, &fields.at("environment"))?
            }
        };
        Ok(ReportedOutcome {
            seen: TrainingRun {
                batch: batch.ok_or_else(|| fields.missing("batch"))?,
                outcome: outcome.ok_or_else(|| fields.missing("outcome"))?,
                peak_reserved: fields.whole("peak_reserved_bytes", 1, MOST)?.map(Bytes),
                retries: fields.whole("retries", 0, MOST)?,
                steps: fields.whole("steps", 0, MOST)?,
            },
            environment,
        })
    }
}

impl ReportedEnvironment {
    fn parse(document: &Value, pointer: &str) -> Result<ReportedEnvironment, RequestError> {
        let fields = Fields::of(document, pointer, "an environment", ENVIRONMENT)?;
        let text = |name: &str| -> Result<Option<String>, RequestError> {
            match fields.text(name)? {
                Some(text) if text.len() > LONGEST || text.contains(is_hidden) => {
                    let problem = format!("{name} must be a text of at most {LONGEST} bytes");
                    Err(wrong(&fields.at(name), &Value::from(text), &problem))
                }
                other => Ok(other.map(str::to_owned)),
            }
        };
        Ok(ReportedEnvironment {
            gpu: text("gpu")?,
            driver: text("driver")?,
            cuda: text("cuda")?,
            cudnn: text("cudnn")?,
            pytorch: text("pytorch")?,
            batchfit: text("batchfit")?,
        })
    }

    /// As it is kept.
    pub(super) fn text(&self) -> JsonText {
        let text = serde_json::to_string(self).expect("texts can be written");
        JsonText::from(text.as_str())
    }

    /// Whether this is what an answer is for. A simulated card has no driver, and stands for all of its cuDNN.
    pub(super) fn is_of(&self, answer: &StoredRecommendation) -> Result<(), RejectReason> {
        let (Some(gpu), Some(pytorch)) = (&self.gpu, &self.pytorch) else {
            return Err(RejectReason::EnvironmentUnknown);
        };
        if *gpu != answer.gpu || !answer.is_for_pytorch(pytorch) {
            return Err(RejectReason::EnvironmentOther);
        }
        let Some(of_answer) = &answer.driver else {
            return Ok(());
        };
        let driver = self
            .driver
            .as_ref()
            .ok_or(RejectReason::EnvironmentUnknown)?;
        let has_other_cudnn = match (&self.cudnn, &answer.cudnn) {
            (Some(here), Some(there)) => minor(here) != minor(there),
            (None, _) | (_, None) => false,
        };
        if driver != of_answer || has_other_cudnn {
            return Err(RejectReason::EnvironmentOther);
        }
        Ok(())
    }
}
