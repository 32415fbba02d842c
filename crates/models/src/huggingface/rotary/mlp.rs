//! Feed-forward parts of decoders with rotary embeddings.

use super::decoder::Decoder;
use crate::tracing::{Activation, Linear, ModulePath, Pointwise as _, Tensor, Tracer, Views as _};

/// Which layers a family has here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layers {
    /// `LlamaMLP`.
    Gated,
    /// `Phi3MLP`: the gate and what it multiplies are one layer.
    GatedAsOne,
    /// `PhiMLP`.
    Two,
}

/// `LlamaMLP`, and those of other families.
pub(super) struct Mlp {
    place: ModulePath,
    layers: Parts,
    activation: Activation,
}

enum Parts {
    Gated {
        gate: Linear,
        up: Linear,
        down: Linear,
    },
    GatedAsOne {
        gate_up: Linear,
        down: Linear,
    },
    Two {
        first: Linear,
        second: Linear,
    },
}

impl Mlp {
    pub(super) fn new(tracer: &Tracer, path: String, config: &Decoder) -> Mlp {
        Mlp::of_width(tracer, path, config, config.intermediate)
    }

    /// One with a hidden layer of another width.
    pub(super) fn of_width(tracer: &Tracer, path: String, config: &Decoder, inner: u64) -> Mlp {
        let place = ModulePath::new(path, config.class("MLP"));
        let (outer, bias) = (config.width, config.mlp_bias);
        let linear = |name: &str, sizes| Linear::new(tracer, place.path(name), sizes, bias);
        let (name, layers) = match config.mlp {
            Layers::Gated => (
                "act_fn",
                Parts::Gated {
                    gate: linear("gate_proj", [outer, inner]),
                    up: linear("up_proj", [outer, inner]),
                    down: linear("down_proj", [inner, outer]),
                },
            ),
            Layers::GatedAsOne => (
                "activation_fn",
                Parts::GatedAsOne {
                    gate_up: linear("gate_up_proj", [outer, inner.saturating_mul(2)]),
                    down: linear("down_proj", [inner, outer]),
                },
            ),
            Layers::Two => (
                "activation_fn",
                Parts::Two {
                    first: linear("fc1", [outer, inner]),
                    second: linear("fc2", [inner, outer]),
                },
            ),
        };
        Mlp {
            activation: Activation::named(tracer, place.path(name), &config.activation),
            place,
            layers,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || match &self.layers {
            Parts::Gated { gate, up, down } => {
                let gate = self.activation.forward(gate.forward(x));
                down.forward(gate.mul(up.forward(x)))
            }
            Parts::GatedAsOne { gate_up, down } => {
                let mut up_states = gate_up.forward(x);
                let mut halves = (&up_states).chunk(2, -1).into_iter();
                let gate = halves.next().unwrap_or_else(|| up_states.clone());
                if let Some(up) = halves.next() {
                    up_states = up;
                }
                up_states = (&up_states).mul(self.activation.forward(&gate));
                down.forward(&up_states).and_drop((up_states, gate))
            }
            Parts::Two { first, second } => {
                let mut hidden_states = first.forward(x);
                hidden_states = self.activation.forward(&hidden_states);
                hidden_states = second.forward(&hidden_states);
                hidden_states
            }
        })
    }
}
