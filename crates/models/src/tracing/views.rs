//! What rearranges tensors, as methods.

use super::argument::{Argument, Size};
use super::operands::Tensors;
use super::tracer::Tensor;
use crate::shape::Extent;

/// The end of a slice that has none: Python's `sys.maxsize`, as exported graphs have it.
const END: i64 = i64::MAX;

/// What rearranges a tensor.
pub(crate) trait Views: Tensors {
    /// `x.view(sizes)`
    fn view(self, sizes: &[Size]) -> Tensor {
        self.apply("aten.view.default", &[("size", sizes_of(sizes))])
    }

    /// `x.reshape(sizes)`
    fn reshape(self, sizes: &[Size]) -> Tensor {
        self.apply("aten.reshape.default", &[("shape", sizes_of(sizes))])
    }

    /// `x.expand(sizes)`
    fn expand(self, sizes: &[Size]) -> Tensor {
        self.apply("aten.expand.default", &[("size", sizes_of(sizes))])
    }

    /// `x.repeat(times)`
    fn repeat(self, times: &[Size]) -> Tensor {
        self.apply("aten.repeat.default", &[("repeats", sizes_of(times))])
    }

    /// `x.repeat_interleave(times, dim)`
    fn repeat_interleave(self, times: u64, dim: i64) -> Tensor {
        let how = [
            ("repeats", Argument::Size(times.into())),
            ("dim", Argument::Int(dim)),
        ];
        self.apply("aten.repeat_interleave.self_int", &how)
    }

    /// `x.transpose(a, b)`
    fn transpose(self, a: i64, b: i64) -> Tensor {
        let dims = [("dim0", Argument::Int(a)), ("dim1", Argument::Int(b))];
        self.apply("aten.transpose.int", &dims)
    }

    /// `x.permute(dims)`
    fn permute(self, dims: &[i64]) -> Tensor {
        self.apply(
            "aten.permute.default",
            &[("dims", Argument::Ints(dims.to_vec()))],
        )
    }

    /// `x.unsqueeze(dim)`, also `x[:, None]`
    fn unsqueeze(self, dim: i64) -> Tensor {
        self.apply("aten.unsqueeze.default", &[("dim", Argument::Int(dim))])
    }

    /// `x.squeeze(dim)`
    fn squeeze(self, dim: i64) -> Tensor {
        self.apply("aten.squeeze.dim", &[("dim", Argument::Int(dim))])
    }

    /// `x.squeeze()`
    fn squeeze_all(self) -> Tensor {
        self.apply("aten.squeeze.default", &[])
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
        self.apply(
            "aten.slice.Tensor",
            &[
                ("dim", Argument::Int(dim)),
                ("start", Argument::Int(start)),
                ("end", Argument::Int(end)),
            ],
        )
    }

    /// `x[start:]` along a dimension
    fn slice_from(self, dim: i64, start: i64) -> Tensor {
        self.slice(dim, start, END)
    }

    /// `x[start::step]` along a dimension
    fn slice_every(self, dim: i64, start: i64, step: i64) -> Tensor {
        self.apply(
            "aten.slice.Tensor",
            &[
                ("dim", Argument::Int(dim)),
                ("start", Argument::Int(start)),
                ("end", Argument::Int(END)),
                ("step", Argument::Int(step)),
            ],
        )
    }

    /// `torch.view_as_complex(x)`
    fn view_as_complex(self) -> Tensor {
        self.apply("aten.view_as_complex.default", &[])
    }

    /// `torch.view_as_real(x)`
    fn view_as_real(self) -> Tensor {
        self.apply("aten.view_as_real.default", &[])
    }

    /// `x[:]`, another name of the same elements
    fn alias(self) -> Tensor {
        self.apply("aten.alias.default", &[])
    }

    /// `x[index]` along a dimension
    fn select(self, dim: i64, index: i64) -> Tensor {
        let at = [("dim", Argument::Int(dim)), ("index", Argument::Int(index))];
        self.apply("aten.select.int", &at)
    }

    /// `x.contiguous()`
    fn contiguous(self) -> Tensor {
        self.apply("aten.contiguous.default", &[])
    }

    /// `x.split(size, dim)`
    fn split(self, size: u64, dim: i64) -> Vec<Tensor> {
        let how = [
            ("split_size", Argument::Size(size.into())),
            ("dim", Argument::Int(dim)),
        ];
        self.apply_many("aten.split.Tensor", &how)
    }

    /// `x.split(sizes, dim)`
    fn split_into(self, sizes: &[u64], dim: i64) -> Vec<Tensor> {
        let sizes: Vec<Size> = sizes.iter().copied().map(Size::from).collect();
        let how = [
            ("split_sizes", sizes_of(&sizes)),
            ("dim", Argument::Int(dim)),
        ];
        self.apply_many("aten.split_with_sizes.default", &how)
    }

    /// `x.chunk(chunks, dim)`
    fn chunk(self, chunks: i64, dim: i64) -> Vec<Tensor> {
        let how = [
            ("chunks", Argument::Int(chunks)),
            ("dim", Argument::Int(dim)),
        ];
        self.apply_many("aten.chunk.default", &how)
    }

    /// `torch.roll(x, shifts, dims)`
    fn roll(self, shifts: &[i64], dims: &[i64]) -> Tensor {
        self.apply(
            "aten.roll.default",
            &[
                ("shifts", Argument::Ints(shifts.to_vec())),
                ("dims", Argument::Ints(dims.to_vec())),
            ],
        )
    }

    /// `F.pad(x, pad, value=value)`
    fn pad(self, pad: &[i64], value: Option<f64>) -> Tensor {
        let mut how = vec![
            ("pad", Argument::Ints(pad.to_vec())),
            ("mode", Argument::Text("constant")),
        ];
        how.extend(value.map(|value| ("value", Argument::Float(value))));
        self.apply("aten.pad.default", &how)
    }

    /// `x[start::2]` along a dimension
    fn every_other(self, dim: i64, start: i64) -> Tensor {
        self.apply(
            "aten.slice.Tensor",
            &[
                ("dim", Argument::Int(dim)),
                ("start", Argument::Int(start)),
                ("end", Argument::Int(END)),
                ("step", Argument::Int(2)),
            ],
        )
    }

    /// `x[index]` by tensors of indices, one a dimension; `None` stands for `:`
    fn index(self, indices: &[Option<&Tensor>]) -> Tensor {
        self.apply(
            "aten.index.Tensor",
            &[("indices", Argument::OptionalTensors(indices.to_vec()))],
        )
    }

    /// `x.T`
    fn transposed(self) -> Tensor {
        self.apply("aten.numpy_T.default", &[])
    }

    /// `x.scatter(dim, index, from)`
    fn scatter(self, dim: i64, index: &Tensor, from: &Tensor) -> Tensor {
        let how = [
            ("dim", Argument::Int(dim)),
            ("index", Argument::Tensor(index)),
            ("src", Argument::Tensor(from)),
        ];
        self.apply("aten.scatter.src", &how)
    }

    /// `x.gather(dim, index)`
    fn gather(self, dim: i64, index: impl Tensors) -> Tensor {
        self.apply_with(
            "aten.gather.default",
            "index",
            index,
            &[("dim", Argument::Int(dim))],
        )
    }
}

impl<T: Tensors> Views for T {}

fn sizes_of(sizes: &[Size]) -> Argument<'static> {
    Argument::Sizes(sizes.to_vec())
}
