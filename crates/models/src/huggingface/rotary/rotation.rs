//! Rotary embeddings.

use crate::huggingface::prelude::*;

/// How a family rotates queries and keys.
#[derive(Debug, Clone, Copy)]
pub(in crate::huggingface) struct Rotation {
    /// How many elements of a head are rotated.
    pub(in crate::huggingface) dims: u64,
    /// What cosines and sines are scaled by.
    pub(in crate::huggingface) scaling: f64,
    /// Whether the code makes sure of float32 once more than Llama's.
    pub(in crate::huggingface) is_sure_of_float32: bool,
    /// Which elements of a head are rotated, and in which dtype.
    pub(in crate::huggingface) part: Part,
    pub(in crate::huggingface) update: Update,
}

impl Rotation {
    /// As Llama rotates so many elements of a head.
    pub(in crate::huggingface) const fn plain(dims: u64) -> Rotation {
        Rotation {
            dims,
            scaling: 1.0,
            is_sure_of_float32: false,
            part: Part::Whole,
            update: Update::None,
        }
    }
}

/// Frequencies that depend on how long sequences are: `dynamic_rope_update`. Only as long as they are those of short ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::huggingface) enum Update {
    None,
    /// Up to so many tokens.
    Longrope(u64),
    /// Up to so many tokens.
    Dynamic(u64),
}

impl Update {
    /// Most tokens of a sequence for which frequencies are those of short ones.
    pub(in crate::huggingface) fn most(self) -> Option<u64> {
        match self {
            Update::None => None,
            Update::Longrope(most) | Update::Dynamic(most) => Some(most),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::huggingface) enum Part {
    /// All of them.
    Whole,
    /// All of them, in float32: `modeling_olmo.py`.
    WholeInFloat32,
    /// All of them, of which two side by side belong together: `apply_rotary_pos_emb_interleave`.
    Interleaved,
    /// The same by complex numbers: `modeling_deepseek_v2.py`.
    Complex,
    /// The first, which `apply_rotary_pos_emb` takes apart: `modeling_phi3.py`.
    First,
    /// The first, which the attention takes apart: `modeling_phi.py`.
    FirstBeforehand,
}

/// What queries and keys are multiplied with.
pub(in crate::huggingface) enum Rotations {
    /// Cosines and sines.
    Real([Tensor; 2]),
    /// Complex numbers: `modeling_deepseek_v2.py`.
    Complex(Tensor),
}

impl Rotations {
    /// How many elements of a head are rotated.
    pub(in crate::huggingface) fn dims(&self) -> u64 {
        match self {
            Rotations::Real([cos, _]) => cos.length(-1),
            Rotations::Complex(all) => 2 * all.length(-1),
        }
    }

    /// Python's tuples let go of the last first.
    pub(in crate::huggingface) fn let_go(self) {
        match self {
            Rotations::Real([cos, sin]) => drop((sin, cos)),
            Rotations::Complex(all) => drop(all),
        }
    }
}

/// `LlamaRotaryEmbedding`.
pub(in crate::huggingface) struct Rotary {
    place: ModulePath,
    kinds: Vec<Kind>,
}

/// Frequencies of layers of a kind.
struct Kind {
    inv_freq: Tensor,
    original_inv_freq: Tensor,
    how: Rotation,
}

impl Rotary {
    /// One for these kinds of layers, whose names their buffers begin with.
    pub(in crate::huggingface) fn new(
        at: &Frame,
        name: &str,
        kinds: &[(&str, Rotation)],
    ) -> Rotary {
        let place = ModulePath::new(at.path(name), at.class("RotaryEmbedding"));
        let tracer = at.tracer();
        let kinds = kinds.iter().map(|(kind, how)| {
            let half = [how.dims.div_ceil(2)];
            let buffer = |name: &str| {
                let path = match *kind {
                    "" => place.path(name),
                    kind => place.path(&format!("{kind}_{name}")),
                };
                tracer.buffer(&path, &half, tracer.dtype())
            };
            let inv_freq = buffer("inv_freq");
            let original_inv_freq = buffer("original_inv_freq");
            Kind {
                inv_freq,
                original_inv_freq,
                how: *how,
            }
        });
        Rotary {
            kinds: kinds.collect(),
            place,
        }
    }

    /// How many kinds of layers have frequencies of their own.
    pub(in crate::huggingface) fn kinds(&self) -> usize {
        self.kinds.len()
    }

    /// Cosines and sines, of the `kind`-th frequencies.
    pub(in crate::huggingface) fn forward(
        &self,
        x: &Tensor,
        position_ids: &Tensor,
        kind: usize,
    ) -> Rotations {
        let tracer = x.tracer();
        let kind = &self.kinds[kind];
        let how = kind.how;
        let is_sure = how.is_sure_of_float32;
        tracer.in_module(&self.place, || {
            tracer.no_grad(|| {
                let inv_freq = kind.frequencies(position_ids);
                if how.part == Part::Complex {
                    return complex(inv_freq, position_ids, how.scaling);
                }
                let rows = [position_ids.size(0).into(), Size::REST, 1.into()];
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
                    let cos = (&emb).cos().mul_number(how.scaling);
                    let sin = (&emb).sin().mul_number(how.scaling);
                    (freqs, emb, cos, sin)
                });
                let rotations = if how.part == Part::WholeInFloat32 {
                    [cos.clone(), sin.clone()]
                } else {
                    [(&cos).to_dtype_of(x.dtype()), (&sin).to_dtype_of(x.dtype())]
                };
                drop((inv_freq, position_ids, freqs, emb, cos, sin));
                Rotations::Real(rotations)
            })
        })
    }
}

/// `DeepseekV2RotaryEmbedding.forward`.
fn complex(inv_freq: Tensor, position_ids: &Tensor, scaling: f64) -> Rotations {
    let tracer = inv_freq.tracer();
    let rows = [position_ids.size(0).into(), Size::REST, 1.into()];
    let inv_freq = inv_freq.unsqueeze(0).unsqueeze(2);
    let inv_freq = inv_freq.to(DType::Float32).expand(&rows);
    let position_ids = position_ids.unsqueeze(1).to(DType::Float32);
    let (freqs, all) = tracer.without_autocast(|| {
        let freqs = (&inv_freq).to_device().matmul(&position_ids);
        let freqs = freqs.transpose(1, 2);
        let mut all = (&freqs).ones_like().polar(&freqs);
        all = (&all).mul_number(scaling);
        (freqs, all)
    });
    drop((inv_freq, position_ids, freqs));
    Rotations::Complex(all)
}

impl Kind {
    /// `dynamic_rope_update`.
    fn frequencies(&self, position_ids: &Tensor) -> Tensor {
        let seq_len = || position_ids.maximum_of_all().add_number(1);
        let limit = |most: u64| i64::try_from(most).unwrap_or(i64::MAX);
        match self.how.update {
            Update::None => self.inv_freq.clone(),
            Update::Longrope(most) => {
                let seq_len = seq_len();
                drop((&seq_len).greater_than_number(limit(most)));
                (&self.original_inv_freq).to_device().and_drop(seq_len)
            }
            Update::Dynamic(most) => {
                let seq_len = seq_len();
                drop((&seq_len).greater_than_number(limit(most)));
                drop((&seq_len).less_than_number(limit(most)));
                drop(seq_len);
                self.inv_freq.clone()
            }
        }
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

/// `x[..., :dims]`, which is `x` itself if it has no more, and `x[..., dims:]` of heads.
pub(in crate::huggingface) fn split_heads_at(x: &Tensor, dims: u64) -> (Tensor, Tensor) {
    let first = if dims == x.length(-1) {
        x.alias()
    } else {
        x.slice(3, 0, dims.cast_signed())
    };
    (first, x.slice_from(3, dims.cast_signed()))
}

/// `apply_rotary_pos_emb`.
pub(in crate::huggingface) fn apply_rotary(
    query: &Tensor,
    key: &Tensor,
    rotations: &Rotations,
    part: Part,
) -> [Tensor; 2] {
    let [cos, sin] = match rotations {
        Rotations::Real([cos, sin]) => [cos, sin],
        Rotations::Complex(all) => return apply_complex(query, key, all.to_device()),
    };
    if part == Part::Interleaved {
        return apply_interleaved(query, key, [cos, sin]);
    }
    let types = [query.dtype(), key.dtype()];
    let (cos, sin) = (cos.unsqueeze(1), sin.unsqueeze(1));
    let rotated = |x: &Tensor| x.mul(&cos).add(rotate_half(x).mul(&sin));
    match part {
        Part::Whole | Part::FirstBeforehand | Part::Interleaved | Part::Complex => {
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
            let dims = cos.length(-1);
            let (query_rot, query_pass) = split_heads_at(query, dims);
            let (key_rot, key_pass) = split_heads_at(key, dims);
            let tracer = query.tracer();
            let query = tracer.cat([rotated(&query_rot), query_pass.clone()], -1);
            let key = tracer.cat([rotated(&key_rot), key_pass.clone()], -1);
            drop((cos, sin, query_rot, query_pass, key_rot, key_pass));
            [query, key]
        }
    }
}

/// `apply_rotary_pos_emb_interleave`.
fn apply_interleaved(query: &Tensor, key: &Tensor, rotations: [&Tensor; 2]) -> [Tensor; 2] {
    let half = |x: &Tensor| {
        let half = (x.length(-1) / 2).cast_signed();
        x.slice(2, 0, half).unsqueeze(1)
    };
    let [cos, sin] = rotations.map(half);
    let pairs = |x: &Tensor| [x.slice_every(3, 0, 2), x.slice_every(3, 1, 2)];
    let (queries, keys) = (pairs(query), pairs(key));
    let rotated = |[x1, x2]: &[Tensor; 2]| {
        let first = x1.mul(&cos).sub(x2.mul(&sin));
        let second = x2.mul(&cos).add(x1.mul(&sin));
        query.tracer().cat([first, second], -1)
    };
    let rotated = [rotated(&queries), rotated(&keys)];
    drop((cos, sin, queries, keys));
    rotated
}

/// `apply_rotary_emb` of `modeling_deepseek_v2.py`.
fn apply_complex(query: &Tensor, key: &Tensor, all: Tensor) -> [Tensor; 2] {
    let pairs = |x: &Tensor| {
        let [batch, heads, length] = [0, 1, 2].map(|dim| Size::from(x.size(dim)));
        let pairs = [batch, heads, length, Size::REST, 2.into()];
        x.to(DType::Float32).reshape(&pairs).view_as_complex()
    };
    let (query_pairs, key_pairs) = (pairs(query), pairs(key));
    let all = all.unsqueeze(1).to_device();
    let rotated = |pairs: &Tensor, x: &Tensor| {
        let rotated = pairs.mul(&all).view_as_real();
        rotated.flatten(3, -1).type_as(x)
    };
    let both = [rotated(&query_pairs, query), rotated(&key_pairs, key)];
    drop((all, query_pairs, key_pairs));
    both
}
