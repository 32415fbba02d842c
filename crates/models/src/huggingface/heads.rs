//! Losses, as `transformers/loss/loss_utils.py` computes them.

use crate::graph::CHECKPOINTED;
use crate::huggingface::prelude::*;
use crate::tracing::functional::{
    binary_cross_entropy_with_logits, cross_entropy, mean_squared_error, summed_cross_entropy,
};

/// What a label is where there is nothing to learn.
const IGNORED: f64 = -100.0;

/// `ForCausalLMLoss`: each token is to be told from those before it.
pub(super) fn causal_language_loss(logits: &Tensor, labels: &Tensor, vocabulary: u64) -> Tensor {
    let mut logits = logits.to(DType::Float32);
    let labels = labels.pad(&[0, 1], Some(IGNORED));
    let mut shifted = (&labels).slice_from(1, 1).contiguous();
    logits = (&logits).view(&[Size::REST, vocabulary.into()]);
    shifted = (&shifted).view(&[Size::REST]);
    shifted = (&shifted).to_device();
    cross_entropy(&logits, &shifted).and_drop((logits, labels, shifted))
}

/// The same without ever having all logits: those of a chunk of the tokens after the other, under a checkpoint each.
///
/// No function of transformers, but the one that docs/use/suggestions.md shows and `tests/record/steps_chunks.py` records.
pub(super) fn chunked_loss(
    head: impl Fn(&Tensor) -> Tensor,
    hidden: &Tensor,
    labels: &Tensor,
    chunks: u64,
) -> Tensor {
    let loss_of = |hidden: &Tensor, labels: &Tensor| {
        let mut logits = head(hidden);
        logits = (&logits).to(DType::Float32);
        let loss = summed_cross_entropy((&logits).flatten(0, 1), labels.flatten(0, 1));
        loss.and_drop(logits)
    };
    let tracer = hidden.tracer();
    let mut labels = labels.pad(&[0, 1], Some(IGNORED));
    labels = (&labels).slice_from(1, 1);
    let chunks = i64::try_from(chunks).unwrap_or(i64::MAX);
    let parts = (hidden.chunk(chunks, 1), (&labels).chunk(chunks, 1));
    let mut total: Option<Tensor> = None;
    for (index, (hidden, labels)) in parts.0.iter().zip(&parts.1).enumerate() {
        let place = ModulePath::new(format!("chunked_loss.chunk{index}"), CHECKPOINTED);
        let loss = tracer.in_module(&place, || loss_of(hidden, labels));
        total = Some(match &total {
            None => loss.add_number(0),
            Some(before) => before.add(loss),
        });
    }
    let total = total.expect("a sample has a token");
    let count = (&labels).not_equal_to_number(IGNORED).sum_all();
    (&total).div(count).and_drop((labels, parts, total))
}

/// What a classifier learns: `num_labels` and `problem_type` of its config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Labels {
    /// How many there are.
    pub(super) count: u64,
    problem: Problem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Problem {
    /// Numbers.
    Regression,
    /// One class.
    OneClass,
    /// Several classes at once.
    SeveralClasses,
}

impl Labels {
    /// What a config says, whose class has this many labels where none are given.
    pub(super) fn of(config: &Config<'_>, default: u64) -> Result<Labels, RequestError> {
        let count = match config.entries("id2label")? {
            Some(count) => count,
            None => config.size("num_labels", default)?,
        };
        if count == 0 {
            let problem = "a classifier needs a label at least, and id2label has none";
            return Err(config.wrong("id2label", problem));
        }
        let problem = match config.text("problem_type", "")? {
            "" if count == 1 => Problem::Regression,
            "" => Problem::OneClass,
            "single_label_classification" if count > 1 => Problem::OneClass,
            "single_label_classification" => {
                return Err(config.wrong(
                    "problem_type",
                    "single_label_classification needs two labels at least, and the config has one",
                ));
            }
            "regression" => Problem::Regression,
            "multi_label_classification" => Problem::SeveralClasses,
            other => {
                let known = [
                    "regression",
                    "single_label_classification",
                    "multi_label_classification",
                ];
                let at = config.at("problem_type");
                return Err(RequestError::unknown(at, "problem type", other, known));
            }
        };
        Ok(Labels { count, problem })
    }

    /// Two: where the answer to a question begins, and where it ends.
    pub(super) fn must_be_two(self, config: &Config<'_>) -> Result<(), RequestError> {
        if self.count == 2 {
            return Ok(());
        }
        let problem = format!(
            "a model that answers questions has two labels, the start and the end of the answer, not {}",
            self.count
        );
        Err(config.wrong("num_labels", problem))
    }

    /// The labels of a batch.
    pub(super) fn input(self, tracer: &Tracer) -> Tensor {
        let labels = Extent::fixed(self.count);
        match self.problem {
            Problem::OneClass => tracer.input("labels", &[Extent::BATCH], DType::Int64),
            Problem::Regression if self.count == 1 => {
                tracer.input("labels", &[Extent::BATCH], tracer.dtype())
            }
            Problem::Regression | Problem::SeveralClasses => {
                tracer.input("labels", &[Extent::BATCH, labels], tracer.dtype())
            }
        }
    }

    /// `ForSequenceClassificationLoss`.
    pub(super) fn loss(self, logits: &Tensor, labels: &Tensor) -> Tensor {
        let labels = labels.to_device();
        let loss = match self.problem {
            Problem::Regression if self.count == 1 => {
                mean_squared_error(logits.squeeze_all(), (&labels).squeeze_all())
            }
            Problem::Regression => mean_squared_error(logits, &labels),
            Problem::OneClass => cross_entropy(
                logits.view(&[Size::REST, self.count.into()]),
                (&labels).view(&[Size::REST]),
            ),
            Problem::SeveralClasses => binary_cross_entropy_with_logits(logits, &labels),
        };
        loss.and_drop(labels)
    }
}
