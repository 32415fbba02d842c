//! Normalization in decoders with rotary embeddings.

use crate::huggingface::prelude::*;

/// How a family normalizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Formula {
    /// `LlamaRMSNorm`: the product with the weight is in the dtype of the operand.
    Llama,
    /// `Olmo2RMSNorm`: the product with the weight is in float32.
    Olmo2,
    /// `GemmaRMSNorm`: the weight counts from one.
    Gemma,
    /// `OlmoLayerNorm`: there is no weight.
    Olmo,
    /// `torch.nn.LayerNorm`.
    Layer,
}

/// `self.name(x)` of a norm over the last dimension.
pub(super) fn norm(
    at: &Frame,
    name: &str,
    formula: Formula,
    (width, eps): (u64, f64),
    x: impl Tensors,
) -> Tensor {
    let class = match formula {
        Formula::Layer => return at.layer_norm(name, width, eps, x),
        Formula::Olmo => "LayerNorm",
        Formula::Llama | Formula::Olmo2 | Formula::Gemma => "RMSNorm",
    };
    let made = at.call(name, class, |at| {
        let weight = || at.parameter("weight", &[width]);
        let x = x.tensor();
        match formula {
            Formula::Gemma => gemma(x, &weight(), eps),
            Formula::Olmo => {
                let orig_dtype = x.dtype();
                let normalized = functional::layer_norm(x.to(DType::Float32), width, 1e-5);
                normalized.to_dtype_of(orig_dtype)
            }
            _ => llama(x, &weight(), eps, formula == Formula::Olmo2),
        }
    });
    made.and_drop(x)
}

/// `LlamaRMSNorm.forward`; the product with the weight may be in float32.
fn llama(x: &Tensor, weight: &Tensor, eps: f64, is_wide: bool) -> Tensor {
    let input_dtype = x.dtype();
    let mut hidden_states = x.to(DType::Float32);
    let variance = (&hidden_states).pow(2).mean(&[-1], true);
    hidden_states = (&hidden_states).mul((&variance).add_number(eps).rsqrt());
    let product = if is_wide {
        weight.mul(&hidden_states).to_dtype_of(input_dtype)
    } else {
        weight.mul((&hidden_states).to_dtype_of(input_dtype))
    };
    product.and_drop((hidden_states, variance))
}

/// `GemmaRMSNorm.forward`.
fn gemma(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let mut output = {
        let x = x.to(DType::Float32);
        let root = (&x).pow(2).mean(&[-1], true).add_number(eps).rsqrt();
        (&x).mul(root).and_drop(x)
    };
    output = (&output).mul(weight.to(DType::Float32).add_number(1.0));
    (&output).type_as(x).and_drop(output)
}
