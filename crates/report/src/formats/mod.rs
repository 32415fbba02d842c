//! Answers for other programs: a shell, the trainers that people use, an issue or a wiki.

mod env;
mod lengths;
mod markdown;
mod overview;
mod snippets;

use env::env;
pub use env::no_env;
pub use markdown::markdown;
pub use overview::overview;

use super::fit::{ShownRequest, fit};
use super::style::Style;
use batchfit_fit::model::{Mode, Variant};
use batchfit_fit::{FitResult, Recommendation};

/// What is said in the place of a snippet where nothing fits.
pub const NOTHING_FITS: &str =
    "nothing fits, so there is nothing to train with; the format `text` says how much is missing";

batchfit_step::listed! {
    /// What an answer is written for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Form {
        /// People.
        Text = "text",
        /// An issue or a wiki.
        Markdown = "markdown",
        /// A shell.
        Env = "env",
        /// Hugging Face's Trainer.
        Hf = "hf",
        /// TRL's `SFTTrainer`.
        Trl = "trl",
        /// Lightning's Trainer.
        Lightning = "lightning",
        /// Hugging Face's accelerate.
        Accelerate = "accelerate",
        /// Plain PyTorch.
        Python = "python",
    }
}

impl Form {
    /// The answer in this form, as the command line writes it into a file; a sentence on what to do where there is none: nothing fits, and
    /// the form is of those that a program runs, or it has no words for what the answer depends on.
    pub fn write(self, answer: &Answer) -> Result<String, String> {
        let trainer = match self {
            Form::Text => {
                return Ok(fit(
                    answer.model,
                    answer.result,
                    answer.request,
                    &Style::default(),
                ));
            }
            Form::Markdown => return Ok(markdown(&[*answer])),
            Form::Env => return Ok(env(answer)),
            Form::Hf => snippets::HF,
            Form::Trl => snippets::TRL,
            Form::Lightning => snippets::LIGHTNING,
            Form::Accelerate => snippets::ACCELERATE,
            Form::Python => snippets::PYTHON,
        };
        if answer.best().micro_batch == 0 {
            return Err(NOTHING_FITS.to_owned());
        }
        snippets::render(trainer, answer)
    }
}

/// An answer, and what it is an answer to.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// What a person would call the model.
    pub model: &'a str,
    /// The length of its samples, where answers differ in it.
    pub length: Option<&'a str>,
    /// GPUs that train together.
    pub world_size: u64,
    /// The answer.
    pub result: &'a FitResult,
    /// The request, as it is stored and shown.
    pub request: &'a ShownRequest,
}

impl Answer<'_> {
    fn best(&self) -> &Recommendation {
        &self.result.recommendation
    }

    /// The variant that is recommended.
    fn variant(&self) -> Variant {
        let best = self.result.variants.first();
        best.map(|best| best.training.clone()).unwrap_or_default()
    }

    fn is_training(&self) -> bool {
        self.variant().mode == Mode::Train
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use batchfit_fit::model::{Checkpointing, Precision};
    use batchfit_fit::{Environment, VariantResult};

    /// Twelve samples at a time, in eight steps, on two GPUs.
    fn result(variant: Variant) -> FitResult {
        let recommendation = Recommendation {
            fits: Some(true),
            micro_batch: 12,
            accumulation_steps: 8,
            global_batch: 192,
            max_batch: 14,
            max_batch_steady: 13,
            max_batch_without_retries: 13,
            peak_allocated_bytes: 9 << 30,
            peak_reserved_bytes: 10 << 30,
            limit_bytes: 12 << 30,
            headroom_bytes: 2 << 30,
            limited_by: "activations".to_owned(),
            ..Recommendation::default()
        };
        let variant = VariantResult {
            rank: 1,
            training: variant,
            recommendation,
            ..VariantResult::default()
        };
        let environment = Environment {
            batchfit: "0".to_owned(),
            pytorch: "2.11".to_owned(),
            ..Environment::new("sim:rtx4090", "NVIDIA GeForce RTX 4090")
        };
        FitResult::of(vec![variant], environment)
    }

    fn mixed() -> Variant {
        Variant {
            precision: Precision::AmpFp16,
            checkpointing: Checkpointing::PerBlock,
            ..Variant::default()
        }
    }

    #[test]
    fn an_answer_that_was_stored_without_fits_is_read_by_its_micro_batch() {
        let mut stored = serde_json::to_value(result(mixed())).unwrap();
        for pointer in ["/recommendation", "/variants/0/recommendation"] {
            let members = stored.pointer_mut(pointer).unwrap();
            assert!(members.as_object_mut().unwrap().remove("fits").is_some());
        }
        let env = |stored: &serde_json::Value| {
            let result: FitResult = serde_json::from_value(stored.clone()).unwrap();
            assert_eq!(serde_json::to_value(&result).unwrap(), *stored);
            let answer = Answer {
                model: "gpt2",
                length: None,
                world_size: 1,
                result: &result,
                request: &ShownRequest::default(),
            };
            Form::Env.write(&answer).unwrap()
        };

        assert!(env(&stored).contains("BATCHFIT_MICRO_BATCH=12"));
        stored["recommendation"]["micro_batch"] = 0.into();
        assert!(env(&stored).ends_with("false\n"));
    }

    #[test]
    fn a_wiki_gets_a_table_in_which_names_break_nothing() {
        let result = result(mixed());
        let answer = Answer {
            model: "a|b",
            length: Some("512"),
            world_size: 1,
            result: &result,
            request: &ShownRequest::default(),
        };

        insta::assert_snapshot!("markdown", markdown(&[answer]));
        insta::assert_snapshot!(
            "markdown_of_several",
            markdown(&[
                answer,
                Answer {
                    length: Some("1024"),
                    ..answer
                }
            ])
        );
    }
}
