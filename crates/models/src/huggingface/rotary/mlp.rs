//! Feed-forward parts of decoders with rotary embeddings.

use super::decoder::Decoder;
use crate::huggingface::prelude::*;

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

/// `LlamaMLP`, and those of other families, with a hidden layer of this width.
pub(super) fn mlp(tracer: &Tracer, path: String, config: &Decoder, inner: u64) -> FnModule {
    let place = ModulePath::new(path, config.class("MLP"));
    let (outer, bias) = (config.width, config.mlp_bias);
    let linear = |name: &str, sizes| Linear::new(tracer, place.path(name), sizes, bias);
    let activation = |name: &str| Activation::named(tracer, place.path(name), &config.activation);
    match config.mlp {
        Layers::Gated => {
            let gate_proj = linear("gate_proj", [outer, inner]);
            let up_proj = linear("up_proj", [outer, inner]);
            let down_proj = linear("down_proj", [inner, outer]);
            let act_fn = activation("act_fn");
            FnModule::new(place, move |x| {
                let gate = act_fn.forward(gate_proj.forward(x));
                down_proj.forward(gate.mul(up_proj.forward(x)))
            })
        }
        Layers::GatedAsOne => {
            let gate_up_proj = linear("gate_up_proj", [outer, inner.saturating_mul(2)]);
            let down_proj = linear("down_proj", [inner, outer]);
            let activation_fn = activation("activation_fn");
            FnModule::new(place, move |x| {
                let mut up_states = gate_up_proj.forward(x);
                let mut halves = (&up_states).chunk(2, -1).into_iter();
                let gate = halves.next().unwrap_or_else(|| up_states.clone());
                if let Some(up) = halves.next() {
                    up_states = up;
                }
                up_states = (&up_states).mul(activation_fn.forward(&gate));
                down_proj.forward(&up_states).and_drop((up_states, gate))
            })
        }
        Layers::Two => {
            let fc1 = linear("fc1", [outer, inner]);
            let fc2 = linear("fc2", [inner, outer]);
            let activation_fn = activation("activation_fn");
            FnModule::new(place, move |x| chain(&[&fc1, &activation_fn, &fc2], x))
        }
    }
}
