//! What rearranges tensors, as methods.

use super::argument::{Argument, Size};
use super::operands::{Tensors, methods};
use super::tracer::Tensor;
use crate::shape::Extent;

/// The end of a slice that has none: Python's `sys.maxsize`, as exported graphs have it.
const END: i64 = i64::MAX;

/// What rearranges a tensor.
pub(crate) trait Views: Tensors {
    methods! {
        /// `x.view(sizes)`
        view(sizes: &[Size]): "aten.view.default" { size: sizes }
        /// `x.reshape(sizes)`
        reshape(sizes: &[Size]): "aten.reshape.default" { shape: sizes }
        /// `x.expand(sizes)`
        expand(sizes: &[Size]): "aten.expand.default" { size: sizes }
        /// `x.repeat(times)`
        repeat(times: &[Size]): "aten.repeat.default" { repeats: times }
        /// `x.repeat_interleave(times, dim)`
        repeat_interleave(times: u64, dim: i64): "aten.repeat_interleave.self_int" { repeats: times, dim: dim }
        /// `x.transpose(a, b)`
        transpose(a: i64, b: i64): "aten.transpose.int" { dim0: a, dim1: b }
        /// `x.permute(dims)`
        permute(dims: &[i64]): "aten.permute.default" { dims: dims }
        /// `x.unsqueeze(dim)`, also `x[:, None]`
        unsqueeze(dim: i64): "aten.unsqueeze.default" { dim: dim }
        /// `x.squeeze(dim)`
        squeeze(dim: i64): "aten.squeeze.dim" { dim: dim }
        /// `x.squeeze()`
        squeeze_all(): "aten.squeeze.default" {}
        /// `x[start::step]` along a dimension
        slice_every(dim: i64, start: i64, step: i64): "aten.slice.Tensor" { dim: dim, start: start, end: END, step: step }
        /// `torch.view_as_complex(x)`
        view_as_complex(): "aten.view_as_complex.default" {}
        /// `torch.view_as_real(x)`
        view_as_real(): "aten.view_as_real.default" {}
        /// `x[:]`, another name of the same elements
        alias(): "aten.alias.default" {}
        /// `x[index]` along a dimension
        select(dim: i64, index: i64): "aten.select.int" { dim: dim, index: index }
        /// `x.contiguous()`
        contiguous(): "aten.contiguous.default" {}
        /// `torch.roll(x, shifts, dims)`
        roll(shifts: &[i64], dims: &[i64]): "aten.roll.default" { shifts: shifts, dims: dims }
        /// `x[index]` by tensors of indices, one a dimension; `None` stands for `:`
        index(indices: &[Option<&Tensor>]): "aten.index.Tensor" { indices: Argument::OptionalTensors(indices.to_vec()) }
        /// `x.T`
        transposed(): "aten.numpy_T.default" {}
        /// `x.scatter(dim, index, from)`
        scatter(dim: i64, index: &Tensor, from: &Tensor): "aten.scatter.src" { dim: dim, index: index, src: from }
    }

    /// `x.flatten(start, end)`
    fn flatten(self, start: i64, end: i64) -> Tensor {
        let mut dims = vec![("start_dim", Argument::Int(start))];
        if end != -1 {
            dims.push(("end_dim", Argument::Int(end)));
        }
        self.apply("aten.flatten.using_ints", &dims)
    }

    /// `x[start:end]` along a dimension; where that is all of it, PyTorch makes another name of the same elements
    fn slice(self, dim: i64, start: i64, end: i64) -> Tensor {
        let length = isize::try_from(dim).ok().map(|dim| self.tensor().size(dim));
        let length = length.and_then(Extent::as_fixed);
        let is_all = end == END || length.is_some_and(|length| length.cast_signed() == end);
        if start == 0 && is_all {
            return self.alias();
        }
        let range = [
            ("dim", dim.into()),
            ("start", start.into()),
            ("end", end.into()),
        ];
        self.apply("aten.slice.Tensor", &range)
    }

    /// `x[start:]` along a dimension
    fn slice_from(self, dim: i64, start: i64) -> Tensor {
        self.slice(dim, start, END)
    }

    /// `x.split(size, dim)`
    fn split(self, size: u64, dim: i64) -> Vec<Tensor> {
        let how = [("split_size", size.into()), ("dim", dim.into())];
        self.apply_many("aten.split.Tensor", &how)
    }

    /// `x.split(sizes, dim)`
    fn split_into(self, sizes: &[u64], dim: i64) -> Vec<Tensor> {
        let sizes: Vec<Size> = sizes.iter().copied().map(Size::from).collect();
        let how = [
            ("split_sizes", sizes.as_slice().into()),
            ("dim", dim.into()),
        ];
        self.apply_many("aten.split_with_sizes.default", &how)
    }

    /// `x.chunk(chunks, dim)`
    fn chunk(self, chunks: i64, dim: i64) -> Vec<Tensor> {
        let how = [("chunks", chunks.into()), ("dim", dim.into())];
        self.apply_many("aten.chunk.default", &how)
    }

    /// `F.pad(x, pad, value=value)`
    fn pad(self, pad: &[i64], value: Option<f64>) -> Tensor {
        let mut how = vec![("pad", Argument::from(pad)), ("mode", "constant".into())];
        how.extend(value.map(|value| ("value", value.into())));
        self.apply("aten.pad.default", &how)
    }

    /// `x.gather(dim, index)`
    fn gather(self, dim: i64, index: impl Tensors) -> Tensor {
        self.apply_with(
            "aten.gather.default",
            "index",
            index,
            &[("dim", dim.into())],
        )
    }
}

impl<T: Tensors> Views for T {}
