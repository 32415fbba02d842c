//! Views, and the copies that stand where no view is possible.

use std::rc::Rc;

use super::{diagonal, kernel, sliced};
use crate::ops::elementwise::expanded;
use crate::ops::join::{element, part};
use crate::ops::placing::Combine;
use crate::ops::prelude::*;
use crate::shape::view_strides;

/// A gradient seen as another shape; it keeps the gradient it is a view of, which is no view itself.
pub fn gradient_view(gradient: &Tensor, view: TensorBody) -> Tensor {
    let base = gradient.base.as_ref().unwrap_or(gradient);
    Rc::new(view.based_on(Rc::clone(base)))
}

impl Eager {
    /// `view`, `reshape`, `flatten`.
    pub fn reshape(&mut self, x: &Tensor, shape: &[Extent]) -> Tensor {
        let (x, strides) = if let Some(strides) = view_strides(&x.shape, &x.strides, shape) {
            (Rc::clone(x), strides)
        } else {
            assert_eq!(numel(&x.shape), numel(shape), "a shape of as many elements");
            (self.copy_contiguous(x), contiguous_strides(shape))
        };
        let draft = OpRecord::new(self, &[Some(&x)]);
        let y = x.alias(shape.to_vec(), strides);
        let from = x.shape.clone();
        draft.finish_single(self, y, move |eager, gradient, _| {
            let strides = view_strides(&gradient.shape, &gradient.strides, &from);
            if let Some(strides) = strides {
                return vec![Some(gradient_view(gradient, gradient.alias(from, strides)))];
            }
            let copy = eager.empty(&from, gradient.dtype);
            let seen = copy.alias(gradient.shape.clone(), contiguous_strides(&gradient.shape));
            eager.launch(Kernel::Copy, &[gradient], &[&seen]);
            vec![Some(Rc::new(copy))]
        })
    }

    /// `permute(order)`.
    pub fn permute(&mut self, x: &Tensor, order: &[usize]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = permuted(x, order);
        let mut back = vec![0; order.len()];
        for (to, from) in order.iter().enumerate() {
            back[*from] = to;
        }
        draft.finish_one(self, y, move |_, gradient, _| {
            gradient_view(gradient, permuted(gradient, &back))
        })
    }

    /// `unsqueeze(dim)`.
    pub fn unsqueeze(&mut self, x: &Tensor, dim: usize) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let (mut shape, mut strides) = (x.shape.to_vec(), x.strides.to_vec());
        let stride = shape
            .get(dim)
            .map_or(Extent::ONE, |length| *length * strides[dim]);
        shape.insert(dim, Extent::ONE);
        strides.insert(dim, stride);
        let y = x.alias(shape, strides);
        draft.finish_single(self, y, move |_, gradient, _| {
            let (mut shape, mut strides) = (gradient.shape.to_vec(), gradient.strides.to_vec());
            shape.remove(dim);
            strides.remove(dim);
            vec![Some(gradient_view(
                gradient,
                gradient.alias(shape, strides),
            ))]
        })
    }

    /// `expand(shape)`: the engine sums the gradient back to the input's shape.
    pub fn expand(&mut self, x: &Tensor, shape: &[Extent]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = expanded(x, shape);
        draft.finish_one(self, y, |_, gradient, _| Tensor::clone(gradient))
    }

    /// `x[.., start:end:step, ..]`: the gradient is full size, zero outside the slice.
    pub fn slice(
        &mut self,
        x: &Tensor,
        dim: usize,
        (start, end, step): (Extent, Extent, u64),
    ) -> Tensor {
        let length = sliced(start, end, step).expect("checked when the graph was built");
        self.part_of(x, move |tensor| {
            let mut view = part(tensor, dim, start, length);
            view.strides[dim] = view.strides[dim] * Extent::fixed(step);
            view
        })
    }

    /// `unfold(dim, size, step)`: windows that may overlap, as a view; the gradient is full size.
    pub fn windows(&mut self, x: &Tensor, dim: usize, [size, step]: [u64; 2]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let (mut shape, mut strides) = (x.shape.to_vec(), x.strides.to_vec());
        let room = shape[dim].checked_sub(Extent::fixed(size));
        let last = room.and_then(|room| room.floor_div(step));
        shape[dim] = last.expect("checked when the graph was built") + Extent::ONE;
        shape.push(Extent::fixed(size));
        strides.push(strides[dim]);
        strides[dim] = strides[dim] * Extent::fixed(step);
        let y = x.alias(shape, strides);
        let whole = x.shape.clone();
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.empty(&whole, gradient.dtype);
            // Windows that overlap are added up along a range of int64 places.
            let length = whole[dim];
            drop((step < size).then(|| eager.scratch_of(length, DType::Int64)));
            let kernel = kernel::unfold_backward(dim, [size, step], whole.len());
            eager.computed(grad_x, kernel, &[gradient])
        })
    }

    /// `as_strided`: the gradient is as large as the memory, and where elements are seen more than once they are added up
    /// at places of int64 (`as_strided_backward` in `FunctionsManual.cpp`).
    pub fn as_strided(
        &mut self,
        x: &Tensor,
        shape: &[Extent],
        (strides, offset): (&[Extent], Extent),
    ) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let mut y = x.alias(shape.to_vec(), strides.to_vec());
        y.offset = offset;
        let (whole, count) = (x.shape.clone(), y.numel());
        let overlaps = overlaps(shape, strides);
        let own = (shape.to_vec(), strides.to_vec(), offset);
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.empty(&whole, gradient.dtype);
            let _base = overlaps.then(|| eager.empty(&whole, DType::Int64));
            let places = overlaps.then(|| eager.empty(&[count], DType::Int64));
            eager.launch(Kernel::Fill(0.0), &[], &[&grad_x]);
            if let Some(places) = &places {
                let seen = places.alias(own.0.clone(), contiguous_strides(&own.0));
                let kernel = kernel::strided_places(&own.1, own.2);
                eager.launch(kernel, &[], &[&seen]);
                let added = (Combine::Add, Ok(&**gradient));
                eager.put_flat(&grad_x, &seen, added);
            } else {
                let mut inside = grad_x.alias(own.0, own.1);
                inside.offset = own.2;
                eager.launch(Kernel::Copy, &[gradient], &[&inside]);
            }
            Rc::new(grad_x)
        })
    }

    /// `diagonal`: the gradient is full size, zero outside of it.
    pub fn diagonal(&mut self, x: &Tensor, offset: i64, dims: [usize; 2]) -> Tensor {
        self.part_of(x, move |tensor| on_diagonal(tensor, offset, dims))
    }

    /// `diag_embed`: zeros with the operand on the diagonals; the gradient is a view of those.
    pub fn diag_embed(
        &mut self,
        x: &Tensor,
        shape: &[Extent],
        (offset, dims): (i64, [usize; 2]),
    ) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = self.zeros(shape, x.dtype);
        let inside = on_diagonal(&y, offset, dims);
        self.launch(Kernel::Copy, &[x], &[&inside]);
        draft.finish_one(self, y, move |_, gradient, _| {
            gradient_view(gradient, on_diagonal(gradient, offset, dims))
        })
    }

    /// `select(dim, index)`: the gradient is full size, zero outside the slice.
    pub fn select(&mut self, x: &Tensor, dim: usize, index: Extent) -> Tensor {
        self.part_of(x, move |tensor| element(tensor, dim, index))
    }

    /// A view of some elements: the gradient is full size, zero outside of them.
    fn part_of(
        &mut self,
        x: &Tensor,
        taken: impl Fn(&TensorBody) -> TensorBody + 'static,
    ) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = taken(x);
        let whole = x.shape.clone();
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.zeros(&whole, gradient.dtype);
            let inside = taken(&grad_x);
            eager.launch(Kernel::Copy, &[gradient], &[&inside]);
            Rc::new(grad_x)
        })
    }
}

/// The elements on a diagonal, along a new last dimension.
fn on_diagonal(tensor: &TensorBody, offset: i64, dims: [usize; 2]) -> TensorBody {
    let shape = diagonal(&tensor.shape, offset, dims).expect("checked when the graph was built");
    let mut strides = tensor.strides.to_vec();
    let step = strides[dims[0]] + strides[dims[1]];
    let skipped = strides[if offset >= 0 { dims[1] } else { dims[0] }];
    strides.remove(dims[0].max(dims[1]));
    strides.remove(dims[0].min(dims[1]));
    strides.push(step);
    let mut view = tensor.alias(shape, strides);
    view.offset = tensor.offset + skipped * Extent::fixed(offset.unsigned_abs());
    view
}

/// Whether elements of memory are seen more than once: `_maybe_overlapping_memory` in `FunctionsManual.cpp`, by the lengths
/// for a batch of two.
fn overlaps(shape: &[Extent], strides: &[Extent]) -> bool {
    let mut dims: Vec<(u64, u64)> = strides
        .iter()
        .zip(shape)
        .map(|(stride, length)| (stride.at(2), length.at(2)))
        .filter(|(_, length)| *length > 1)
        .collect();
    dims.sort_unstable();
    let mut reach = 0;
    for (stride, length) in dims {
        if stride <= reach {
            return true;
        }
        reach += stride.saturating_mul(length - 1);
    }
    false
}

fn permuted(tensor: &TensorBody, order: &[usize]) -> TensorBody {
    let along = |list: &[Extent]| -> Sizes { order.iter().map(|i| list[*i]).collect() };
    tensor.alias(along(&tensor.shape), along(&tensor.strides))
}
