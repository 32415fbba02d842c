//! Activations as configs name them.

use super::module_path::ModulePath;
use super::operands::Tensors;
use super::pointwise::Pointwise as _;
use super::tracer::{Tensor, Tracer};

/// An activation as a module, by its name in transformers' `ACT2FN`.
#[derive(Debug, Clone)]
pub(crate) struct Activation {
    place: ModulePath,
    function: Function,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    Relu,
    Gelu,
    GeluTanh,
    /// `NewGELUActivation`: tanh by single operators.
    NewGelu,
    FastGelu,
    QuickGelu,
    Silu,
    Tanh,
    Sigmoid,
}

impl Activation {
    /// The activation that a config names. What is not known is an error of the tracer.
    pub(crate) fn named(tracer: &Tracer, path: String, name: &str) -> Activation {
        let (class, function) = match name {
            "relu" => ("torch.nn.modules.activation.ReLU", Function::Relu),
            "gelu" => ("transformers.activations.GELUActivation", Function::Gelu),
            "gelu_pytorch_tanh" => ("transformers.activations.GELUTanh", Function::GeluTanh),
            "gelu_python_tanh" => ("transformers.activations.GELUTanh", Function::NewGelu),
            "gelu_new" => (
                "transformers.activations.NewGELUActivation",
                Function::NewGelu,
            ),
            "gelu_fast" => (
                "transformers.activations.FastGELUActivation",
                Function::FastGelu,
            ),
            "quick_gelu" => (
                "transformers.activations.QuickGELUActivation",
                Function::QuickGelu,
            ),
            "silu" | "swish" => ("transformers.activations.SiLUActivation", Function::Silu),
            "tanh" => ("torch.nn.modules.activation.Tanh", Function::Tanh),
            "sigmoid" => ("torch.nn.modules.activation.Sigmoid", Function::Sigmoid),
            other => {
                tracer.fail_to_make(
                    &path, "activation",
                    format!(
                        "the activation {other:?} is not known; known are gelu, gelu_fast, gelu_new, gelu_pytorch_tanh, \
                         quick_gelu, relu, sigmoid, silu and tanh"
                    ),
                );
                ("torch.nn.modules.activation.ReLU", Function::Relu)
            }
        };
        Activation {
            place: ModulePath::new(path, class),
            function,
        }
    }

    pub(crate) fn forward(&self, x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.in_module(&self.place, || {
            let x = x.tensor();
            match self.function {
                Function::Relu => x.relu(),
                Function::Gelu => x.gelu("none"),
                Function::GeluTanh => x.gelu("tanh"),
                Function::NewGelu => {
                    let half = x.mul_number(0.5);
                    let root = (2.0 / std::f64::consts::PI).sqrt();
                    let cubic = x.add(x.pow(3.0).mul_number(0.044_715));
                    half.mul(cubic.mul_number(root).tanh().add_number(1.0))
                }
                Function::FastGelu => {
                    let half = x.mul_number(0.5);
                    let scaled = x.mul_number(0.797_884_560_8);
                    let square = x.mul_number(0.044_715).mul(x).add_number(1.0);
                    half.mul(scaled.mul(square).tanh().add_number(1.0))
                }
                Function::QuickGelu => x.mul(x.mul_number(1.702).sigmoid()),
                Function::Silu => x.silu(),
                Function::Tanh => x.tanh(),
                Function::Sigmoid => x.sigmoid(),
            }
        });
        made.and_drop(x)
    }
}
