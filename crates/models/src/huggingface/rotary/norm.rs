//! Normalization in decoders with rotary embeddings.

use crate::shape::DType;
use crate::tracing::{
    LayerNorm, ModulePath, Pointwise as _, Reductions as _, Tensor, Tensors, Tracer, functional,
};

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
pub(super) enum Norm {
    Rms(RmsNorm),
    Layer(LayerNorm),
    Olmo(OlmoNorm),
}

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
        match formula {
            Formula::Layer => Norm::Layer(LayerNorm::new(tracer, path, width, eps)),
            Formula::Olmo => Norm::Olmo(OlmoNorm {
                place: ModulePath::new(path, class),
                width,
            }),
            formula => Norm::Rms(RmsNorm {
                weight: tracer.parameter(&format!("{path}.weight"), &[width]),
                place: ModulePath::new(path, class),
                formula,
                eps,
            }),
        }
    }

    pub(super) fn forward(&self, x: impl Tensors) -> Tensor {
        match self {
            Norm::Rms(norm) => norm.forward(x),
            Norm::Layer(norm) => norm.forward(x),
            Norm::Olmo(norm) => norm.forward(x),
        }
    }
}

/// `LlamaRMSNorm`, and what other families made of it.
pub(super) struct RmsNorm {
    place: ModulePath,
    weight: Tensor,
    formula: Formula,
    eps: f64,
}

impl RmsNorm {
    fn forward(&self, x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.in_module(&self.place, || match self.formula {
            Formula::Gemma => self.gemma(x.tensor()),
            _ => self.llama(x.tensor()),
        });
        made.and_drop(x)
    }

    fn llama(&self, x: &Tensor) -> Tensor {
        let input_dtype = x.dtype();
        let mut hidden_states = x.to(DType::Float32);
        let variance = (&hidden_states).pow(2).mean(&[-1], true);
        hidden_states = (&hidden_states).mul((&variance).add_number(self.eps).rsqrt());
        let product = match self.formula {
            Formula::Olmo2 => (&self.weight).mul(&hidden_states).to_dtype_of(input_dtype),
            _ => (&self.weight).mul((&hidden_states).to_dtype_of(input_dtype)),
        };
        product.and_drop((hidden_states, variance))
    }

    fn gemma(&self, x: &Tensor) -> Tensor {
        let mut output = {
            let x = x.to(DType::Float32);
            let root = (&x).pow(2).mean(&[-1], true).add_number(self.eps).rsqrt();
            (&x).mul(root).and_drop(x)
        };
        output = (&output).mul((&self.weight).to(DType::Float32).add_number(1.0));
        (&output).type_as(x).and_drop(output)
    }
}

/// `OlmoLayerNorm`.
pub(super) struct OlmoNorm {
    place: ModulePath,
    width: u64,
}

impl OlmoNorm {
    fn forward(&self, x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.in_module(&self.place, || {
            let x = x.tensor();
            let orig_dtype = x.dtype();
            let normalized = functional::layer_norm(x.to(DType::Float32), self.width, 1e-5);
            normalized.to_dtype_of(orig_dtype)
        });
        made.and_drop(x)
    }
}
