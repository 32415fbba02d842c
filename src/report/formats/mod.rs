//! Answers for other programs: a shell, the trainers that people use, an issue or a wiki.

mod accelerate;
mod env;
mod hf;
mod lengths;
mod lightning;
mod markdown;
mod overview;
mod python;

pub use accelerate::accelerate;
pub use env::env;
pub use hf::hf;
pub use lightning::lightning;
pub use markdown::markdown;
pub use overview::overview;

use super::fit::fit;
use super::style::Style;
use crate::jobs::{FitResult, Recommendation};
use crate::model::{Mode, Variant};

/// What an answer is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// People.
    Text,
    /// An issue or a wiki.
    Markdown,
    /// A shell.
    Env,
    /// Hugging Face's Trainer.
    Hf,
    /// Lightning's Trainer.
    Lightning,
    /// Hugging Face's accelerate.
    Accelerate,
}

impl Form {
    /// All of them.
    pub const ALL: [Form; 6] = [
        Form::Text,
        Form::Markdown,
        Form::Env,
        Form::Hf,
        Form::Lightning,
        Form::Accelerate,
    ];

    /// Its name, as `--format` of the command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Text => "text",
            Form::Markdown => "markdown",
            Form::Env => "env",
            Form::Hf => "hf",
            Form::Lightning => "lightning",
            Form::Accelerate => "accelerate",
        }
    }

    /// The answer in this form, as the command line writes it into a file. `None` where nothing fits and the form is of those
    /// that a program runs: there is nothing to train with.
    pub fn write(self, answer: &Answer) -> Option<String> {
        let snippet = match self {
            Form::Text => return Some(fit(answer.model, answer.result, &Style::default())),
            Form::Markdown => return Some(markdown(&[*answer])),
            Form::Env => env,
            Form::Hf => hf,
            Form::Lightning => lightning,
            Form::Accelerate => accelerate,
        };
        (answer.best().micro_batch > 0).then(|| snippet(answer))
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
    use crate::jobs::{Environment, Headroom, VariantResult};
    use crate::model::{Checkpointing, Optimizer, OptimizerImpl, Precision};
    use crate::probe::Evidence;

    /// Twelve samples at a time, in eight steps, on two GPUs.
    fn result(variant: Variant) -> FitResult {
        let recommendation = Recommendation {
            micro_batch: 12,
            accumulation_steps: 8,
            global_batch: 192,
            shortfall: 0,
            max_batch: 14,
            max_batch_steady: 13,
            max_batch_without_retries: 13,
            peak_allocated_bytes: 9 << 30,
            peak_reserved_bytes: 10 << 30,
            limit_bytes: 12 << 30,
            headroom_bytes: 2 << 30,
            headroom: Headroom::default(),
            limited_by: "activations".to_owned(),
            why: None,
            evidence: Evidence::Simulated,
            step_ms: None,
            optimizer_step_ms: None,
            samples_per_second: None,
            speed_from: None,
            missing_bytes: None,
            host_bytes: 0,
            next_batch: None,
            parallel: None,
            notes: Vec::new(),
        };
        FitResult {
            recommendation: recommendation.clone(),
            variants: vec![VariantResult {
                rank: 1,
                training: variant,
                cost: None,
                recomputes: 0.0,
                pareto: None,
                recommendation,
            }],
            probes: Vec::new(),
            gpu_work: None,
            assumptions: Vec::new(),
            suggested_for: None,
            suggestions: Vec::new(),
            lengths: None,
            soak: None,
            environment: Environment {
                device: "sim:rtx4090".to_owned(),
                gpu: "NVIDIA GeForce RTX 4090".to_owned(),
                driver: None,
                cuda: None,
                cudnn: None,
                batchfit: "0".to_owned(),
                pytorch: "2.11".to_owned(),
            },
        }
    }

    fn written(write: fn(&Answer) -> String, variant: Variant) -> String {
        let result = result(variant);
        write(&Answer {
            model: "gpt2",
            length: None,
            world_size: 2,
            result: &result,
        })
    }

    fn mixed() -> Variant {
        Variant {
            precision: Precision::AmpFp16,
            checkpointing: Checkpointing::PerBlock,
            ..Variant::default()
        }
    }

    #[test]
    fn a_shell_gets_five_lines() {
        assert_eq!(
            written(env, mixed()),
            "export BATCHFIT_MICRO_BATCH=12\nexport BATCHFIT_ACCUMULATION_STEPS=8\nexport BATCHFIT_GLOBAL_BATCH=192\n\
             export BATCHFIT_WORLD_SIZE=2\nexport BATCHFIT_PEAK_RESERVED_BYTES=10737418240\n"
        );
    }

    #[test]
    fn trainers_get_what_they_call_it() {
        insta::assert_snapshot!("hf", written(hf, mixed()));
        insta::assert_snapshot!("lightning", written(lightning, mixed()));
        insta::assert_snapshot!("accelerate", written(accelerate, mixed()));
    }

    #[test]
    fn every_variant_is_told_or_said_to_be_beyond_a_trainer() {
        let expected: [(Precision, Optimizer, OptimizerImpl, [&str; 3]); 5] = [
            (
                Precision::Fp32,
                Optimizer::Sgd,
                OptimizerImpl::Foreach,
                [
                    "optim=\"sgd\",\n",
                    "precision=\"32-true\"",
                    "mixed_precision=\"no\"",
                ],
            ),
            (
                Precision::AmpBf16,
                Optimizer::SgdMomentum,
                OptimizerImpl::Foreach,
                [
                    "bf16=True,\n    optim=\"sgd\",\n    optim_args=\"momentum=0.9\"",
                    "precision=\"bf16-mixed\"",
                    "momentum=0.9",
                ],
            ),
            (
                Precision::Bf16,
                Optimizer::Adamw,
                OptimizerImpl::Fused,
                [
                    "optim=\"adamw_torch_fused\"",
                    "precision=\"bf16-true\"",
                    "fused=True",
                ],
            ),
            (
                Precision::Fp16,
                Optimizer::Adam,
                OptimizerImpl::ForLoop,
                [
                    "optimizers=(torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, foreach=False), None)",
                    "precision=\"16-true\"",
                    "dtype=torch.float16",
                ],
            ),
            (
                Precision::Bf16,
                Optimizer::Adamw,
                OptimizerImpl::Foreach,
                [
                    "dtype=torch.bfloat16",
                    "torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)",
                    "dtype=torch.bfloat16",
                ],
            ),
        ];
        for (precision, optimizer, optimizer_impl, expected) in expected {
            let variant = Variant {
                precision,
                optimizer,
                optimizer_impl,
                ..Variant::default()
            };
            for (write, expected) in [hf, lightning, accelerate].into_iter().zip(expected) {
                let text = written(write, variant.clone());
                assert!(
                    text.contains(expected),
                    "{variant}: {expected} is not in\n{text}"
                );
            }
        }
    }

    #[test]
    fn inference_has_no_optimizer() {
        let variant = Variant {
            mode: Mode::Inference,
            ..Variant::default()
        };
        for write in [hf, lightning, accelerate] {
            let text = written(write, variant.clone());
            assert!(text.contains("12") && !text.contains("optim"), "{text}");
        }
    }

    #[test]
    fn checkpointed_modules_are_named_and_cannot_end_a_comment() {
        let variant = Variant {
            checkpointing: Checkpointing::Modules(vec!["layer1.*\nimport os".to_owned()]),
            ..Variant::default()
        };
        for write in [hf, lightning, accelerate] {
            let text = written(write, variant.clone());
            assert!(text.contains("layer1.* import os"), "{text}");
            assert!(!text.contains("\nimport os"), "{text}");
        }
    }

    #[test]
    fn a_wiki_gets_a_table_in_which_names_break_nothing() {
        let result = result(mixed());
        let answer = Answer {
            model: "a|b",
            length: Some("512"),
            world_size: 1,
            result: &result,
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
