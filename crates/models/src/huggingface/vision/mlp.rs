//! Two linear layers with an activation between them: `ViTMLP`, `CLIPMLP` and `SwinMLP`, whose code is the same.

use crate::tracing::{Activation, Linear, ModulePath, Tensor, Tracer};

pub(in crate::huggingface::vision) struct Mlp {
    place: ModulePath,
    activation_fn: Activation,
    fc1: Linear,
    fc2: Linear,
}

impl Mlp {
    /// One of this class, so wide outside and inside.
    pub(in crate::huggingface::vision) fn new(
        tracer: &Tracer,
        place: ModulePath,
        [outer, inner]: [u64; 2],
        activation: &str,
    ) -> Mlp {
        Mlp {
            activation_fn: Activation::named(tracer, place.path("activation_fn"), activation),
            fc1: Linear::new(tracer, place.path("fc1"), [outer, inner], true),
            fc2: Linear::new(tracer, place.path("fc2"), [inner, outer], true),
            place,
        }
    }

    pub(in crate::huggingface::vision) fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut hidden_states = self.fc1.forward(x);
            hidden_states = self.activation_fn.forward(&hidden_states);
            hidden_states = self.fc2.forward(&hidden_states);
            hidden_states
        })
    }
}
