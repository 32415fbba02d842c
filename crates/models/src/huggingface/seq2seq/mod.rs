//! Models of an encoder and a decoder.

pub(super) mod bart;
mod layers;
pub(super) mod t5;
pub(super) mod whisper;

use crate::huggingface::prelude::*;
use crate::tracing::functional::cross_entropy;

/// What a label is where there is nothing to learn.
const IGNORED: i64 = -100;

/// The tokens that a decoder is given: the labels, one place further to the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shifted {
    /// What the first one is.
    start: i64,
    /// What stands where a label is ignored.
    padding: i64,
}

impl Shifted {
    /// What a config says, whose class has these tokens where none are given.
    fn of(
        config: &Config<'_>,
        start: Option<u64>,
        padding: Option<u64>,
    ) -> Result<Shifted, RequestError> {
        let padding = config.token("pad_token_id", padding)?.unwrap_or(0);
        let start = config.token("decoder_start_token_id", start)?;
        Ok(Shifted {
            start: start.unwrap_or(padding).cast_signed(),
            padding: padding.cast_signed(),
        })
    }

    /// `shift_tokens_right`.
    fn tokens(self, labels: &Tensor) -> Tensor {
        let tracer = labels.tracer();
        let lengths: Vec<Size> = labels.shape().into_iter().map(Size::from).collect();
        let batch = labels.size(0);
        let shifted = labels.new_zeros(&lengths);
        let all_but_the_last = labels.slice(1, 0, -1).copied();
        (&shifted).slice_from(1, 1).copy_from(&all_but_the_last);
        drop(all_but_the_last);
        let start = tracer.scalar_tensor(self.start);
        let first = (&shifted).select(1, 0);
        first.copy_from((&start).view(&[]).expand(&[batch.into()]));
        drop((first, start));
        let ignored = (&shifted).equal_to_number(IGNORED);
        shifted.change_in_place(
            "aten.masked_fill_.Scalar",
            &[
                ("mask", Argument::Tensor(&ignored)),
                ("value", Argument::Int(self.padding)),
            ],
        );
        shifted.and_drop(ignored)
    }
}

impl Shifted {
    /// `shift_tokens_right` of mBART, which begins with an answer's last token, its language.
    fn tokens_from_the_last(self, labels: &Tensor) -> Tensor {
        let tokens = labels.copied();
        let ignored = (&tokens).equal_to_number(IGNORED);
        tokens.change_in_place(
            "aten.masked_fill_.Scalar",
            &[
                ("mask", Argument::Tensor(&ignored)),
                ("value", Argument::Int(self.padding)),
            ],
        );
        drop(ignored);
        let is_token = (&tokens).not_equal_to_number(self.padding);
        let index_of_eos = is_token.sum(&[1], false).sub_number(1).unsqueeze(-1);
        let start = (&tokens).gather(1, &index_of_eos).squeeze_all();
        let all_but_the_last = (&tokens).slice(1, 0, -1).copied();
        (&tokens).slice_from(1, 1).copy_from(&all_but_the_last);
        drop(all_but_the_last);
        (&tokens).select(1, 0).copy_from(&start);
        tokens.and_drop((index_of_eos, start))
    }
}

/// Tokens of an answer: where nothing says so, as many as a sample has.
fn target_len(task: &Task<'_>) -> Result<u64, RequestError> {
    let most = task.config.size_if_given("max_target_positions")?;
    match task.sizes.target_len.or(most).or(task.sizes.seq_len) {
        Some(length) => Ok(length),
        None => Err(RequestError::at(
            format!("{}/target_len", task.pointer),
            "the config does not say how many tokens an answer has: give target_len, such as 128",
        )),
    }
}

/// A mask of ones, which `create_causal_mask` finds to mask nothing.
fn mask_of_ones(tracer: &Tracer, batch: Extent, length: u64) -> Tensor {
    let mask = tracer.ones(&[batch.into(), length.into()], DType::Float32);
    let truths = (&mask).to(DType::Bool);
    let all = batch.checked_mul(Extent::fixed(length));
    drop(
        (&truths)
            .sum_all()
            .equal_to_size(all.unwrap_or(Extent::ONE)),
    );
    mask.and_drop(truths)
}

/// Cross entropy of the tokens of all samples.
fn token_loss(logits: &Tensor, labels: &Tensor, vocabulary: u64) -> Tensor {
    cross_entropy(
        logits.view(&[Size::REST, vocabulary.into()]),
        labels.view(&[Size::REST]),
    )
}
