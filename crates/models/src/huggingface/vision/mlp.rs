//! Two linear layers with an activation between them: `ViTMLP`, `CLIPMLP` and `SwinMLP`, whose code is the same.

use crate::huggingface::prelude::*;

/// One so wide outside and inside.
pub(in crate::huggingface::vision) fn mlp(
    at: &Frame,
    [outer, inner]: [u64; 2],
    activation: &str,
    x: &Tensor,
) -> Tensor {
    let mut hidden_states = at.linear("fc1", [outer, inner], true, x);
    hidden_states = at.activation("activation_fn", activation, hidden_states);
    at.linear("fc2", [inner, outer], true, hidden_states)
}
