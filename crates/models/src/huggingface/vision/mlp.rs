//! Two linear layers with an activation between them: `ViTMLP`, `CLIPMLP` and `SwinMLP`, whose code is the same.

use crate::huggingface::prelude::*;

/// One of this class, so wide outside and inside.
pub(in crate::huggingface::vision) fn new_mlp(
    tracer: &Tracer,
    place: ModulePath,
    [outer, inner]: [u64; 2],
    activation: &str,
) -> FnModule {
    let activation_fn = Activation::named(tracer, place.path("activation_fn"), activation);
    let fc1 = Linear::new(tracer, place.path("fc1"), [outer, inner], true);
    let fc2 = Linear::new(tracer, place.path("fc2"), [inner, outer], true);
    FnModule::new(place, move |x| chain(&[&fc1, &activation_fn, &fc2], x))
}
