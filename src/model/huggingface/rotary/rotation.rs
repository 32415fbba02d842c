//! Rotary embeddings.

use crate::model::tracing::{
    Place, Pointwise as _, Reductions as _, Size, Tensor, Tracer, Views as _,
};
use crate::shape::DType;

/// How a family rotates queries and keys.
#[derive(Debug, Clone, Copy)]
pub(in crate::model::huggingface) struct Rotation {
    /// How many elements of a head are rotated.
    pub(in crate::model::huggingface) dims: u64,
    /// What cosines and sines are scaled by.
    pub(in crate::model::huggingface) scaling: f64,
    /// Whether the code makes sure of float32 once more than Llama's.
    pub(in crate::model::huggingface) is_sure_of_float32: bool,
    /// Which elements of a head are rotated, and in which dtype.
    pub(in crate::model::huggingface) part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model::huggingface) enum Part {
    /// All of them.
    Whole,
    /// All of them, in float32: `modeling_olmo.py`.
    WholeInFloat32,
    /// The first, which `apply_rotary_pos_emb` takes apart: `modeling_phi3.py`.
    First,
    /// The first, which the attention takes apart: `modeling_phi.py`.
    FirstBeforehand,
}

/// `LlamaRotaryEmbedding`.
pub(in crate::model::huggingface) struct Rotary {
    place: Place,
    inv_freq: Vec<Tensor>,
    how: Rotation,
}

impl Rotary {
    /// One whose buffers have these prefixes, one for each kind of layers that has frequencies of its own.
    pub(in crate::model::huggingface) fn new(
        tracer: &Tracer,
        place: Place,
        prefixes: &[&str],
        how: Rotation,
    ) -> Rotary {
        let half = [how.dims.div_ceil(2)];
        let inv_freq = prefixes.iter().map(|prefix| {
            let buffer = |name: &str| {
                let path = place.path(&format!("{prefix}{name}"));
                tracer.buffer(&path, &half, DType::Float32)
            };
            let inv_freq = buffer("inv_freq");
            buffer("original_inv_freq");
            inv_freq
        });
        Rotary {
            inv_freq: inv_freq.collect(),
            place,
            how,
        }
    }

    /// Cosines and sines, of the `kind`-th frequencies.
    pub(in crate::model::huggingface) fn forward(
        &self,
        x: &Tensor,
        position_ids: &Tensor,
        kind: usize,
    ) -> [Tensor; 2] {
        let tracer = x.tracer();
        let is_sure = self.how.is_sure_of_float32;
        let scaling = self.how.scaling;
        let inv_freq = &self.inv_freq[kind];
        tracer.within(&self.place, || {
            tracer.no_grad(|| {
                let rows = [1.into(), Size::REST, 1.into()];
                let inv_freq = inv_freq.unsqueeze(0).unsqueeze(2);
                let inv_freq = if is_sure {
                    inv_freq.to(DType::Float32).expand(&rows).to_device()
                } else {
                    inv_freq.expand(&rows).to(DType::Float32)
                };
                let position_ids = position_ids.unsqueeze(1).to(DType::Float32);
                let (freqs, emb, cos, sin) = tracer.without_autocast(|| {
                    let product = if is_sure {
                        let inv_freq = (&inv_freq).to(DType::Float32);
                        inv_freq.matmul((&position_ids).to(DType::Float32))
                    } else {
                        (&inv_freq).matmul(&position_ids)
                    };
                    let freqs = product.transpose(1, 2);
                    let emb = tracer.cat_of(&[&freqs, &freqs], -1);
                    let cos = (&emb).cos().mul_number(scaling);
                    let sin = (&emb).sin().mul_number(scaling);
                    (freqs, emb, cos, sin)
                });
                let rotations = if self.how.part == Part::WholeInFloat32 {
                    [cos.clone(), sin.clone()]
                } else {
                    [(&cos).to_dtype_of(x.dtype()), (&sin).to_dtype_of(x.dtype())]
                };
                drop((inv_freq, position_ids, freqs, emb, cos, sin));
                rotations
            })
        })
    }
}

fn rotate_half(x: &Tensor) -> Tensor {
    let half = (x.length(-1) / 2).cast_signed();
    let x1 = x.slice(3, 0, half);
    let x2 = x.slice_from(3, half);
    x.tracer()
        .cat([(&x2).neg(), x1.clone()], -1)
        .and_drop((x1, x2))
}

/// `apply_rotary_pos_emb`.
pub(in crate::model::huggingface) fn apply_rotary(
    query: &Tensor,
    key: &Tensor,
    [cos, sin]: [&Tensor; 2],
    part: Part,
) -> [Tensor; 2] {
    let types = [query.dtype(), key.dtype()];
    let (cos, sin) = (cos.unsqueeze(1), sin.unsqueeze(1));
    let rotated = |x: &Tensor| x.mul(&cos).add(rotate_half(x).mul(&sin));
    match part {
        Part::Whole | Part::FirstBeforehand => {
            let (query, key) = (rotated(query), rotated(key));
            drop((cos, sin));
            [query, key]
        }
        Part::WholeInFloat32 => {
            let (wide_query, wide_key) = (rotated(query), rotated(key));
            let narrow = [
                (&wide_query).to_dtype_of(types[0]),
                (&wide_key).to_dtype_of(types[1]),
            ];
            drop((cos, sin, wide_query, wide_key));
            narrow
        }
        Part::First => {
            let dims = cos.length(-1).cast_signed();
            let apart = |x: &Tensor| (x.slice(3, 0, dims), x.slice_from(3, dims));
            let (query_rot, query_pass) = apart(query);
            let (key_rot, key_pass) = apart(key);
            let tracer = query.tracer();
            let query = tracer.cat([rotated(&query_rot), query_pass.clone()], -1);
            let key = tracer.cat([rotated(&key_rot), key_pass.clone()], -1);
            drop((cos, sin, query_rot, query_pass, key_rot, key_pass));
            [query, key]
        }
    }
}
