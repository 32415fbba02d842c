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

/// `self.name(x)` of a `LlamaMLP`, or that of another family, with a hidden layer of this width.
pub(super) fn mlp(at: &Frame, name: &str, config: &Decoder, inner: u64, x: &Tensor) -> Tensor {
    let (outer, bias) = (config.shape.width, config.mlp_bias);
    at.call(name, "MLP", |at| match config.mlp {
        Layers::Gated => {
            let gate = at.linear("gate_proj", [outer, inner], bias, x);
            let gate = at.activation("act_fn", &config.shape.activation, gate);
            let wide = gate.mul(at.linear("up_proj", [outer, inner], bias, x));
            at.linear("down_proj", [inner, outer], bias, wide)
        }
        Layers::GatedAsOne => {
            let sizes = [outer, inner.saturating_mul(2)];
            let mut up_states = at.linear("gate_up_proj", sizes, bias, x);
            let mut halves = (&up_states).chunk(2, -1).into_iter();
            let gate = halves.next().unwrap_or_else(|| up_states.clone());
            if let Some(up) = halves.next() {
                up_states = up;
            }
            let active = at.activation("activation_fn", &config.shape.activation, &gate);
            up_states = (&up_states).mul(active);
            let made = at.linear("down_proj", [inner, outer], bias, &up_states);
            made.and_drop((up_states, gate))
        }
        Layers::Two => {
            let mut hidden_states = at.linear("fc1", [outer, inner], bias, x);
            hidden_states = at.activation("activation_fn", &config.shape.activation, hidden_states);
            at.linear("fc2", [inner, outer], bias, hidden_states)
        }
    })
}
