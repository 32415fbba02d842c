//! `soak`: what a training is made of, whose steps are run one after the other in one process.

use serde::Serialize;

use batchfit_models::{Fields, Generation, MOST_SOAKED, RequestError};

/// Optimizer steps by default: what reserved memory was compared with real training over.
const USUAL_STEPS: u64 = 1000;

/// Batches of a validation by default.
const USUAL_VALIDATION: u64 = 20;

/// What a training is made of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SoakSchedule {
    /// Optimizer steps.
    pub steps: u64,
    /// Optimizer steps of an epoch; all of them where it is `None`.
    pub epoch: Option<u64>,
    /// Samples of the last step of each epoch, where they are fewer.
    pub last_batch: Option<u64>,
    /// What runs after each epoch.
    pub validation: Option<Validation>,
    /// What is generated after that.
    pub generation: Option<Generation>,
    /// By which lengths are drawn, each as likely as samples have it.
    pub seed: u64,
}

/// A loop without gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Validation {
    /// Samples at a time.
    pub batch: u64,
    /// How often.
    pub steps: u64,
}

impl Default for SoakSchedule {
    fn default() -> SoakSchedule {
        SoakSchedule {
            steps: USUAL_STEPS,
            epoch: None,
            last_batch: None,
            validation: None,
            generation: None,
            seed: 0,
        }
    }
}

impl SoakSchedule {
    /// Steps of an epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch.unwrap_or(self.steps).max(1)
    }

    /// How many steps there are, validation included; a generation counts as one.
    pub fn length(&self) -> u64 {
        let validation = self.validation.map_or(0, |validation| validation.steps);
        let generation = self.generation.map_or(0, |generation| generation.times);
        let epochs = self.steps.div_ceil(self.epoch());
        let between = validation.saturating_add(generation);
        self.steps.saturating_add(epochs.saturating_mul(between))
    }

    /// Reads the field `soak` of a request.
    pub(super) fn read(fields: &Fields<'_>) -> Result<SoakSchedule, RequestError> {
        let validation_steps = fields.read("validation_steps")?;
        let validation = fields.read("validation_batch")?.map(|batch| Validation {
            batch,
            steps: validation_steps.unwrap_or(USUAL_VALIDATION),
        });
        if let (None, Some(_)) = (validation, validation_steps) {
            let problem =
                "validation_steps needs validation_batch: how many samples are validated at a time";
            return Err(RequestError::at(fields.at("validation_steps"), problem));
        }
        let generation = Generation::of_soak(fields)?;
        let course = SoakSchedule {
            generation,
            steps: fields.read("steps")?.unwrap_or(USUAL_STEPS),
            epoch: fields.read("epoch")?,
            last_batch: fields.read("last_batch")?,
            validation,
            seed: fields.read("seed")?.unwrap_or(0),
        };
        let length = course.length();
        if length > MOST_SOAKED {
            let problem = format!(
                "{length} steps, those of validation included, are more than the {MOST_SOAKED} that are run"
            );
            return Err(RequestError::at("/soak", problem));
        }
        Ok(course)
    }
}
