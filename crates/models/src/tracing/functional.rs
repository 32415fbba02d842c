//! `torch.nn.functional` and functions that make tensors.

use super::argument::{Argument, Size};
use super::operands::Tensors;
use super::pointwise::Scalar;
use super::tracer::{Tensor, Tracer};
use crate::shape::{DType, Extent};

/// What `scaled_dot_product_attention` is called with besides query, key and value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attention<'a> {
    pub(crate) mask: Option<&'a Tensor>,
    pub(crate) dropout: f64,
    pub(crate) causal: bool,
    pub(crate) scale: Option<f64>,
    /// Whether several query heads share one of key and value.
    pub(crate) grouped: bool,
}

impl<'a> Attention<'a> {
    /// Of a decoder's tokens `x`: causal where no mask says more.
    pub(crate) fn of_decoder(
        x: &Tensor,
        mask: Option<&'a Tensor>,
        [dropout, scale]: [f64; 2],
    ) -> Attention<'a> {
        Attention {
            mask,
            dropout,
            causal: mask.is_none() && x.size(1) != Extent::ONE,
            scale: Some(scale),
            grouped: false,
        }
    }

    /// The same with this mask, where it has none of its own.
    pub(crate) fn or_masked(self, mask: Option<&'a Tensor>) -> Attention<'a> {
        let mask = self.mask.or(mask);
        Attention {
            mask,
            causal: self.causal && mask.is_none(),
            ..self
        }
    }
}

/// Declares functions that call an operator on no tensor, with its arguments by name.
macro_rules! functions {
    ($($(#[$doc:meta])+ $name:ident($($given:ident: $type:ty),*): $target:literal { $($key:ident: $value:expr),* })+) => {
        $(
            $(#[$doc])+
            pub(crate) fn $name(&self, $($given: $type),*) -> Tensor {
                self.call($target, &[$((stringify!($key), Argument::from($value))),*])
            }
        )+
    };
}

impl Tracer {
    functions! {
        /// `torch.arange(end)` of whole numbers
        arange(end: u64): "aten.arange.default" { end: end }
        /// `torch.arange(end, dtype=dtype)`
        arange_of(end: impl Into<Size>, dtype: DType): "aten.arange.default" { end: Argument::Size(end.into()), dtype: dtype }
        /// `torch.arange(start, end)` of whole numbers
        arange_from(start: u64, end: u64): "aten.arange.start" { start: start, end: end }
        /// `torch.full(sizes, value, dtype)`
        full(sizes: &[Size], value: impl Into<Scalar>, dtype: DType): "aten.full.default" { size: sizes, fill_value: Into::<Scalar>::into(value), dtype: dtype }
        /// `torch.zeros(sizes, dtype)`
        zeros(sizes: &[Size], dtype: DType): "aten.zeros.default" { size: sizes, dtype: dtype }
        /// `torch.ones(sizes, dtype)`
        ones(sizes: &[Size], dtype: DType): "aten.ones.default" { size: sizes, dtype: dtype }
        /// `torch.tensor(value)` of a whole number, which Python code assigns to a part of a tensor
        scalar_tensor(value: i64): "aten.scalar_tensor.default" { s: value, dtype: DType::Int64 }
        /// `torch.rand(sizes, dtype)`
        rand(sizes: &[Size], dtype: DType): "aten.rand.default" { size: sizes, dtype: dtype }
    }

    /// `torch.cat(tensors, dim)` of a list that is gone afterwards
    pub(crate) fn cat<const N: usize>(&self, tensors: [Tensor; N], dim: i64) -> Tensor {
        let made = self.cat_of(&tensors.each_ref(), dim);
        // Python's lists and tuples let go of the last first.
        tensors.into_iter().rev().for_each(drop);
        made
    }

    /// `torch.cat(tensors, dim)` of a list that lives on
    pub(crate) fn cat_of(&self, tensors: &[&Tensor], dim: i64) -> Tensor {
        let all = Argument::Tensors(tensors.to_vec());
        self.call("aten.cat.default", &[("tensors", all), ("dim", dim.into())])
    }

    /// `torch.arange(start, end, step, dtype=dtype)`
    pub(crate) fn arange_between(&self, [start, end]: [u64; 2], step: u64, dtype: DType) -> Tensor {
        let mut how = vec![("start", Argument::from(start)), ("end", end.into())];
        how.extend((step != 1).then(|| ("step", step.into())));
        how.push(("dtype", dtype.into()));
        let target = match step {
            1 => "aten.arange.start",
            _ => "aten.arange.start_step",
        };
        self.call(target, &how)
    }
}

/// `F.scaled_dot_product_attention(query, key, value, ...)`
pub(crate) fn attention(
    query: impl Tensors,
    key: impl Tensors,
    value: impl Tensors,
    how: Attention<'_>,
) -> Tensor {
    let mut arguments = vec![
        ("query", Argument::Tensor(query.tensor())),
        ("key", Argument::Tensor(key.tensor())),
        ("value", Argument::Tensor(value.tensor())),
    ];
    arguments.extend(how.mask.map(|mask| ("attn_mask", Argument::Tensor(mask))));
    arguments.push(("dropout_p", Argument::Float(how.dropout)));
    if how.causal {
        arguments.push(("is_causal", Argument::Bool(true)));
    }
    arguments.extend(how.scale.map(|scale| ("scale", Argument::Float(scale))));
    if how.grouped {
        arguments.push(("enable_gqa", Argument::Bool(true)));
    }
    let tracer = query.tensor().tracer();
    let made = tracer.call("aten.scaled_dot_product_attention.default", &arguments);
    made.and_drop((query, key, value))
}

/// `F.cross_entropy(input, target)`
pub(crate) fn cross_entropy(input: impl Tensors, target: impl Tensors) -> Tensor {
    input.apply_with("aten.cross_entropy_loss.default", "target", target, &[])
}

/// `F.mse_loss(input, target)`
pub(crate) fn mean_squared_error(input: impl Tensors, target: impl Tensors) -> Tensor {
    input.apply_with("aten.mse_loss.default", "target", target, &[])
}

/// `F.binary_cross_entropy_with_logits(input, target)`
pub(crate) fn binary_cross_entropy_with_logits(
    input: impl Tensors,
    target: impl Tensors,
) -> Tensor {
    input.apply_with(
        "aten.binary_cross_entropy_with_logits.default",
        "target",
        target,
        &[],
    )
}

/// `F.dropout(x, p, training=True)`
pub(crate) fn dropout(x: impl Tensors, p: f64) -> Tensor {
    let made = x.tensor().tracer().call(
        "aten.dropout.default",
        &[
            ("input", Argument::Tensor(x.tensor())),
            ("p", Argument::Float(p)),
            ("train", Argument::Bool(true)),
        ],
    );
    made.and_drop(x)
}

/// `F.linear(x, weight, bias)`
pub(crate) fn linear(x: impl Tensors, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let mut arguments = vec![
        ("input", Argument::Tensor(x.tensor())),
        ("weight", Argument::Tensor(weight)),
    ];
    arguments.extend(bias.map(|bias| ("bias", Argument::Tensor(bias))));
    let made = x.tensor().tracer().call("aten.linear.default", &arguments);
    made.and_drop(x)
}

/// `F.embedding(indices, weight, padding_idx)`
pub(crate) fn embedding(indices: impl Tensors, weight: &Tensor, padding: Option<u64>) -> Tensor {
    let mut arguments = vec![
        ("weight", Argument::Tensor(weight)),
        ("indices", Argument::Tensor(indices.tensor())),
    ];
    let padding = padding.and_then(|index| i64::try_from(index).ok());
    arguments.extend(padding.map(|index| ("padding_idx", Argument::Int(index))));
    let made = weight.tracer().call("aten.embedding.default", &arguments);
    made.and_drop(indices)
}

/// `F.layer_norm(x, (width,), None, None, eps)`
pub(crate) fn layer_norm(x: impl Tensors, width: u64, eps: f64) -> Tensor {
    let width = i64::try_from(width).unwrap_or(i64::MAX);
    let made = x.tensor().tracer().call(
        "aten.layer_norm.default",
        &[
            ("input", Argument::Tensor(x.tensor())),
            ("normalized_shape", Argument::Ints(vec![width])),
            ("eps", Argument::Float(eps)),
        ],
    );
    made.and_drop(x)
}

/// `F.cross_entropy(input, target, ignore_index=ignored)`
pub(crate) fn cross_entropy_ignoring(
    input: impl Tensors,
    target: impl Tensors,
    ignored: u64,
) -> Tensor {
    let ignored = i64::try_from(ignored).unwrap_or(i64::MAX);
    let how = [("ignore_index", Argument::Int(ignored))];
    input.apply_with("aten.cross_entropy_loss.default", "target", target, &how)
}

/// `F.cross_entropy(input, target, reduction="sum")`
pub(crate) fn summed_cross_entropy(input: impl Tensors, target: impl Tensors) -> Tensor {
    const SUM: i64 = 2;
    let how = [("reduction", Argument::Int(SUM))];
    input.apply_with("aten.cross_entropy_loss.default", "target", target, &how)
}

/// `torch.addmm(bias, a, b)`
pub(crate) fn addmm(bias: &Tensor, a: impl Tensors, b: impl Tensors) -> Tensor {
    let made = bias.tracer().call(
        "aten.addmm.default",
        &[
            ("self", Argument::Tensor(bias)),
            ("mat1", Argument::Tensor(a.tensor())),
            ("mat2", Argument::Tensor(b.tensor())),
        ],
    );
    made.and_drop((a, b))
}
