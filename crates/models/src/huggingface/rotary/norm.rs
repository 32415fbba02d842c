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

/// A norm over the last dimension.
pub(super) struct Norm(Box<dyn Fn(&Tensor) -> Tensor>);

impl Norm {
    /// One of this formula, whose class is `class` if it is the family's own.
    pub(super) fn new(
        tracer: &Tracer,
        formula: Formula,
        class: String,
        path: String,
        width: u64,
        eps: f64,
    ) -> Norm {
        let weight = || tracer.parameter(&format!("{path}.weight"), &[width]);
        let module = match formula {
            Formula::Layer => {
                let norm = LayerNorm::new(tracer, path, width, eps);
                return Norm(Box::new(move |x| norm.forward(x)));
            }
            Formula::Olmo => FnModule::new(ModulePath::new(path, class), move |x| {
                let orig_dtype = x.dtype();
                let normalized = functional::layer_norm(x.to(DType::Float32), width, 1e-5);
                normalized.to_dtype_of(orig_dtype)
            }),
            Formula::Gemma => {
                let weight = weight();
                FnModule::new(ModulePath::new(path, class), move |x| {
                    gemma(x, &weight, eps)
                })
            }
            Formula::Llama | Formula::Olmo2 => {
                let (weight, is_wide) = (weight(), formula == Formula::Olmo2);
                FnModule::new(ModulePath::new(path, class), move |x| {
                    llama(x, &weight, eps, is_wide)
                })
            }
        };
        Norm(Box::new(move |x| module.forward(x)))
    }

    pub(super) fn forward(&self, x: impl Tensors) -> Tensor {
        (self.0)(x.tensor()).and_drop(x)
    }
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
