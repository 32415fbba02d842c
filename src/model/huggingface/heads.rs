//! Losses, as `transformers/loss/loss_utils.py` computes them.

use crate::model::tracing::functional::cross_entropy;
use crate::model::tracing::{Pointwise as _, Size, Tensor, Views as _};
use crate::shape::DType;

/// What a label is where there is nothing to learn.
const IGNORED: f64 = -100.0;

/// `ForCausalLMLoss`: each token is to be told from those before it.
pub(super) fn causal_language_loss(logits: &Tensor, labels: &Tensor, vocabulary: u64) -> Tensor {
    let mut logits = logits.to(DType::Float32);
    let labels = labels.pad(&[0, 1], IGNORED);
    let mut shifted = (&labels).slice_from(1, 1).contiguous();
    logits = (&logits).view(&[Size::REST, vocabulary.into()]);
    shifted = (&shifted).view(&[Size::REST]);
    shifted = (&shifted).to_device();
    cross_entropy(&logits, &shifted).and_drop((logits, labels, shifted))
}
