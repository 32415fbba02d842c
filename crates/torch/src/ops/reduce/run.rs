//! Sums over dimensions, and the scratch memory that large ones take.

use std::rc::Rc;

use super::ReduceDims;
use super::scratch::{ACCUMULATOR, Along, Scratch, scratch};
use super::vector_norm::kept_shape;
use super::{Reduction, kernel};
use crate::eager::Storage;
use crate::ops::elementwise::expanded;
use crate::ops::prelude::*;
use crate::ops::view::gradient_view;
use crate::program::Capability;

/// Kinds of reductions, by what they accumulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Sums and the like.
    Sum,
    /// The largest or smallest: an element.
    Extreme,
    /// Mean, squared distances and counts (`WelfordData` in `SharedReduceOps.h`).
    Welford,
}

impl Kind {
    /// Bytes of an accumulator, for results of this type.
    fn width(self, dtype: DType) -> u64 {
        match self {
            Kind::Sum if dtype.is_half() => ACCUMULATOR,
            Kind::Sum | Kind::Extreme => dtype.size(),
            Kind::Welford => 4 * ACCUMULATOR,
        }
    }
}

/// A result without its reduced dimensions, unless they stay.
pub(super) fn squeezed(whole: &TensorBody, dims: &[usize], keep: bool) -> TensorBody {
    let lengths = whole.shape.iter().zip(&whole.strides).enumerate();
    let (shape, strides): (Vec<_>, Vec<_>) = lengths
        .filter(|(i, _)| keep || !dims.contains(i))
        .map(|(_, (length, stride))| (*length, *stride))
        .unzip();
    whole.alias(shape, strides)
}

/// Along which dimension a reduction runs: whether that with the smallest stride is reduced.
fn along(x: &TensorBody, reduced: impl Fn(usize) -> bool) -> Along {
    let long = |dim: &usize| x.shape[*dim] != Extent::ONE && x.strides[*dim] != Extent::ZERO;
    let dims = (0..x.shape.len()).rev().filter(long);
    match dims.min_by_key(|dim| x.strides[*dim].at(1 << 20)) {
        Some(fastest) if !reduced(fastest) => Along::Column,
        Some(_) | None => Along::Row,
    }
}

impl Eager {
    /// Sums a tensor down to a shape that broadcasts to its own.
    pub fn sum_to(&mut self, tensor: &Tensor, shape: &[Extent]) -> Tensor {
        let output = self.empty(shape, tensor.dtype);
        let (outputs, all) = (numel(shape), tensor.numel());
        let added = tensor.shape.len() - shape.len();
        let along = along(tensor, |dim| {
            dim.checked_sub(added)
                .is_none_or(|own| shape[own] != tensor.shape[dim])
        });
        self.reduce(
            tensor,
            &output,
            along,
            Kernel::Sum { scale: 1.0 },
            [outputs, all],
        );
        if shape.len() == tensor.shape.len() {
            return Tensor::new(output);
        }
        // Sums keep their dimensions first; without the leading ones the result is a view.
        let view = output.same();
        gradient_view(&Tensor::new(output), view)
    }

    /// The gradient of a convolution's bias: the sum over samples and positions of each channel.
    pub fn channel_sum(&mut self, gradient: &Tensor) -> Tensor {
        let output = self.empty(&gradient.shape[1..2], gradient.dtype);
        let mut kept = vec![Extent::ONE; gradient.shape.len()];
        kept[1] = gradient.shape[1];
        let mut strides = vec![Extent::ZERO; gradient.shape.len()];
        strides[1] = Extent::ONE;
        let view = output.alias(kept, strides);
        self.reduce(
            gradient,
            &view,
            along(gradient, |dim| dim != 1),
            Kernel::Sum { scale: 1.0 },
            [gradient.shape[1], gradient.numel()],
        );
        Tensor::new(output)
    }

    /// The mean of each plane, `[n, c, h, w] -> [n, c, 1, 1]`, or of each signal or volume.
    pub fn plane_mean(&mut self, tensor: &Tensor) -> TensorBody {
        let (n, c) = (tensor.shape[0], tensor.shape[1]);
        let plane = numel(&tensor.shape[2..]).at(1) as f64;
        let mut kept = vec![Extent::ONE; tensor.shape.len()];
        kept[..2].copy_from_slice(&[n, c]);
        let output = self.empty(&kept, tensor.dtype);
        self.reduce(
            tensor,
            &output,
            along(tensor, |dim| dim >= 2),
            Kernel::Sum { scale: 1.0 / plane },
            [n * c, tensor.numel()],
        );
        output
    }

    /// `mean(dims)`, whose gradient is as large as its operand, or `sum(dims)`, whose gradient is the
    /// incoming one seen everywhere. Autocast makes sums in float32, without a copy of the operand.
    pub fn reduction(
        &mut self,
        function: Reduction,
        x: &Tensor,
        dims: &[usize],
        keep: bool,
    ) -> Tensor {
        self.reduction_as(function, x, (dims, keep), None)
    }

    /// The same, in a type that the model's code names.
    pub(super) fn reduction_as(
        &mut self,
        function: Reduction,
        x: &Tensor,
        (dims, keep): (&[usize], bool),
        dtype: Option<DType>,
    ) -> Tensor {
        let is_sum = function == Reduction::Sum;
        let draft = OpRecord::new(self, &[Some(x)]);
        let kept = kept_shape(&x.shape, dims);
        let dtype = dtype.unwrap_or(match self.autocast {
            Some(_) if is_sum && x.dtype.is_half() => DType::Float32,
            _ if is_sum && !x.dtype.is_float() && !x.dtype.is_complex() => DType::Int64,
            _ => x.dtype,
        });
        let reduced: Vec<Extent> = dims.iter().map(|dim| x.shape[*dim]).collect();
        let count = numel(&reduced);
        // A tuned kernel's factor is a number.
        let share = count.as_fixed().filter(|count| *count > 0);
        let share = share.map(|count| 1.0 / count as f64);
        let (kernel, of_gradient) = match share {
            _ if is_sum => (Kernel::Sum { scale: 1.0 }, None),
            Some(scale) => (Kernel::Sum { scale }, Some(Kernel::Scale(scale))),
            None => (
                kernel::mean(dims).into(),
                Some(kernel::mean_grad(count).into()),
            ),
        };
        let y = self.reduced(x, dims, dtype, kernel);
        let y = squeezed(&y, dims, keep);
        let whole = x.shape.clone();
        draft.finish_single(self, y, move |eager, gradient, _| {
            let inner = eager.reshape(gradient, &kept);
            let everywhere = expanded(&inner, &whole);
            let Some(kernel) = of_gradient else {
                return vec![Some(gradient_view(gradient, everywhere))];
            };
            let grad_x = eager.empty(&whole, gradient.dtype);
            vec![Some(eager.computed(grad_x, kernel, &[&everywhere]))]
        })
    }

    /// `any()` of truth values, of which only the scratch memory is left.
    pub(in crate::ops) fn any_of(&mut self, x: &Tensor) {
        let y = self.empty(&[], DType::Bool);
        let all: Vec<usize> = (0..x.shape.len()).collect();
        self.reduce_into(x, &y, &all, (kernel::any(&all), Kind::Extreme));
    }

    /// The sum or the mean of all elements.
    pub(in crate::ops) fn total(&mut self, x: &Tensor, is_mean: bool) -> TensorBody {
        let y = self.empty(&[], x.dtype);
        self.total_into(x, &y, is_mean);
        y
    }

    /// The same, into a number that is there.
    pub(in crate::ops) fn total_into(&mut self, x: &Tensor, y: &TensorBody, is_mean: bool) {
        let all: Vec<usize> = (0..x.shape.len()).collect();
        let kernel = if is_mean {
            kernel::mean(&all).into()
        } else {
            Kernel::Sum { scale: 1.0 }
        };
        self.reduce_into(x, y, &all, (kernel, Kind::Sum));
    }

    /// What a sum leaves, with a length of one in the place of each reduced dimension.
    pub fn reduced(
        &mut self,
        x: &Tensor,
        dims: &[usize],
        dtype: DType,
        kernel: Kernel,
    ) -> TensorBody {
        self.reduced_by(x, dims, dtype, (kernel, Kind::Sum))
    }

    /// What a reduction of some kind leaves.
    pub(super) fn reduced_by(
        &mut self,
        x: &Tensor,
        dims: &[usize],
        dtype: DType,
        by: (impl Into<Kernel>, Kind),
    ) -> TensorBody {
        let kept = kept_shape(&x.shape, dims);
        let y = self.empty(&kept, dtype);
        self.reduce_into(x, &y, dims, by);
        y
    }

    /// The same, without the reduced dimensions unless they stay.
    pub(super) fn reduced_over(
        &mut self,
        x: &Tensor,
        over: ReduceDims<'_>,
        dtype: DType,
        by: (impl Into<Kernel>, Kind),
    ) -> TensorBody {
        let whole = self.reduced_by(x, over.dims, dtype, by);
        squeezed(&whole, over.dims, over.keep)
    }

    /// The same, into a tensor that is there.
    pub(super) fn reduce_into(
        &mut self,
        x: &Tensor,
        y: &TensorBody,
        dims: &[usize],
        by: (impl Into<Kernel>, Kind),
    ) {
        self.reduce_to_all(x, &[y], dims, by);
    }

    /// The same with several results.
    pub(super) fn reduce_to_all(
        &mut self,
        x: &Tensor,
        results: &[&TensorBody],
        dims: &[usize],
        (kernel, kind): (impl Into<Kernel>, Kind),
    ) {
        let y = results[0];
        // Another type is converted first, but for halves summed in float32 (`make_reduction` in `ReduceOpsUtils.h`).
        let is_widened = x.dtype.is_half() && y.dtype == DType::Float32;
        let _converted = (x.dtype != y.dtype && !is_widened).then(|| self.empty(&x.shape, y.dtype));
        let along = along(x, |dim| dims.contains(&dim));
        let width = kind.width(y.dtype);
        self.reduce_with(x, results, (along, width), kernel, [y.numel(), x.numel()]);
    }

    /// The scratch memory of a sum, to be dropped once it is made.
    pub(super) fn scratch_of_sum(
        &mut self,
        x: &TensorBody,
        y: &TensorBody,
        dims: &[usize],
    ) -> (Rc<Storage>, Rc<Storage>) {
        let along = along(x, |dim| dims.contains(&dim));
        let width = Kind::Sum.width(y.dtype);
        let (buffer, semaphores) = self.reduction_scratch(along, width, [y.numel(), x.numel()]);
        (semaphores, buffer)
    }

    /// `_assert_async(index.max() < length)` of int64 positions.
    pub fn bounds_check(&mut self, index: &Tensor) {
        let _largest = self.scratch(8);
        let dense = self.dense_copy(index);
        self.extreme_scratch(index.numel());
        drop(dense);
        drop(self.scratch(1));
    }

    /// The largest or the smallest of so many int64 positions.
    pub fn extreme_position(&mut self, count: Extent) {
        let _largest = self.scratch(8);
        self.extreme_scratch(count);
    }

    fn extreme_scratch(&mut self, count: Extent) {
        // Partial results are as wide as the positions.
        let (_buffer, _semaphores) = self.reduction_scratch(Along::Row, 8, [Extent::ONE, count]);
    }

    /// Launches a reduction between the allocations and frees of its scratch memory.
    fn reduce(
        &mut self,
        input: &Tensor,
        output: &TensorBody,
        along: Along,
        kernel: Kernel,
        [outputs, all]: [Extent; 2],
    ) {
        let width = Kind::Sum.width(output.dtype);
        self.reduce_with(input, &[output], (along, width), kernel, [outputs, all]);
    }

    fn reduce_with(
        &mut self,
        input: &Tensor,
        results: &[&TensorBody],
        (along, width): (Along, u64),
        kernel: impl Into<Kernel>,
        [outputs, all]: [Extent; 2],
    ) {
        let (_buffer, _semaphores) = self.reduction_scratch(along, width, [outputs, all]);
        self.launch(kernel, &[input], results);
    }

    /// Partial results of so many bytes each, and counters of finished blocks.
    fn reduction_scratch(
        &mut self,
        along: Along,
        width: u64,
        [outputs, all]: [Extent; 2],
    ) -> (Rc<Storage>, Rc<Storage>) {
        fn at(card: &Capability, along: Along, [outputs, all]: [Extent; 2], batch: u64) -> Scratch {
            let outputs = outputs.at(batch).max(1);
            scratch(card, along, outputs, all.at(batch) / outputs)
        }
        let of = (self.capability, along, [outputs, all]);
        let buffer = self.scratch_by(
            "reduction",
            (of, width),
            |&((card, along, lengths), width), batch| {
                at(&card, along, lengths, batch).buffer / ACCUMULATOR * width
            },
        );
        let semaphores = self.scratch_by(
            "reduction semaphores",
            of,
            |&(card, along, lengths), batch| at(&card, along, lengths, batch).semaphores,
        );
        (buffer, semaphores)
    }
}
