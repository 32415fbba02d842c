//! Taking tensors apart and joining them.

use std::rc::Rc;

use super::sides;
use crate::ops::prelude::*;
use crate::ops::view::gradient_view;
use crate::shape::MemoryFormat;

impl Eager {
    /// `split(lengths, dim)`: the gradient joins those of the parts, with zeros for unused ones.
    pub fn split(&mut self, x: &Tensor, lengths: &[Extent], dim: usize) -> Vec<Tensor> {
        let draft = OpRecord::new(self, &[Some(x)]);
        let places = lengths.iter().scan(Extent::ZERO, |next, length| {
            let start = *next;
            *next = *next + *length;
            Some((start, *length))
        });
        let places: Vec<(Extent, Extent)> = places.collect();
        let cut = |(start, length): &(Extent, Extent)| part(x, dim, *start, *length);
        let parts = places.iter().map(cut).collect();
        let (whole, dtype) = (x.shape.clone(), x.dtype);
        draft.finish_many(self, parts, move |eager, gradients, _| {
            // Zeros for missing parts exist before the joined gradient, and die with it made.
            let mut zero = |(_, length): &(Extent, Extent)| {
                let mut shape = whole.clone();
                shape[dim] = *length;
                Tensor::new(eager.zeros(&shape, dtype))
            };
            let given = places.iter().zip(gradients);
            let all: Vec<Tensor> = given
                .map(|(place, gradient)| gradient.clone().unwrap_or_else(|| zero(place)))
                .collect();
            let grad_x = eager.empty(&whole, dtype);
            for ((start, length), from) in places.iter().zip(&all) {
                let into = part(&grad_x, dim, *start, *length);
                eager.launch(Kernel::Copy, &[from], &[&into]);
            }
            vec![Some(Rc::new(grad_x))]
        })
    }

    /// `block_diag(parts)`: the gradients are views of the incoming one.
    pub(super) fn block_diagonal(&mut self, parts: &[Tensor]) -> Tensor {
        let inputs: Vec<Option<&Tensor>> = parts.iter().map(Some).collect();
        let draft = OpRecord::new(self, &inputs);
        let mut places = Vec::new();
        let mut corner = [Extent::ZERO; 2];
        for part in parts {
            let sides = sides(&part.shape).expect("checked when the graph was built");
            places.push((corner, sides, part.shape.clone()));
            corner = [corner[0] + sides[0], corner[1] + sides[1]];
        }
        let y = self.zeros(&corner, common_dtype(parts));
        for (tensor, (corner, sides, _)) in parts.iter().zip(&places) {
            let into = part(&part(&y, 0, corner[0], sides[0]), 1, corner[1], sides[1]);
            self.launch(Kernel::Copy, &[tensor], &[&into]);
        }
        draft.finish_single(self, y, move |_, gradient, _| {
            let view = |(corner, sides, shape): ([Extent; 2], [Extent; 2], Sizes)| {
                let mut view = part(
                    &part(gradient, 0, corner[0], sides[0]),
                    1,
                    corner[1],
                    sides[1],
                );
                let gone = 2 - shape.len();
                view.strides = Sizes::from(&view.strides[gone..]);
                view.shape = shape;
                Some(gradient_view(gradient, view))
            };
            places.into_iter().map(view).collect()
        })
    }

    /// `cat(parts, dim)`: the gradients are views of the incoming one.
    pub fn cat(&mut self, parts: &[Tensor], dim: usize) -> Tensor {
        let inputs: Vec<Option<&Tensor>> = parts.iter().map(Some).collect();
        let draft = OpRecord::new(self, &inputs);
        let mut shape = parts[0].shape.to_vec();
        shape[dim] = parts
            .iter()
            .fold(Extent::ZERO, |sum, part| sum + part.shape[dim]);
        // Laid out as all parts are, where they agree.
        let format = parts[0].suggested_format();
        let agreed = parts.iter().all(|part| part.suggested_format() == format);
        let format = if agreed {
            format
        } else {
            MemoryFormat::Contiguous
        };
        let y = self.empty_strided(&shape, format.strides(&shape), common_dtype(parts));
        let lengths: Vec<Extent> = parts.iter().map(|part| part.shape[dim]).collect();
        let mut start = Extent::ZERO;
        for tensor in parts {
            let into = part(&y, dim, start, tensor.shape[dim]);
            self.launch(Kernel::Copy, &[tensor], &[&into]);
            start = start + tensor.shape[dim];
        }
        draft.finish_single(self, y, move |_, gradient, _| {
            let mut start = Extent::ZERO;
            lengths
                .iter()
                .map(|length| {
                    let view = part(gradient, dim, start, *length);
                    start = start + *length;
                    Some(gradient_view(gradient, view))
                })
                .collect()
        })
    }

    /// `unbind(dim)`: the gradient stacks those of the parts. A zero stands for all that are missing in
    /// each place, expanded.
    pub fn unbind(&mut self, x: &Tensor, dim: usize) -> Vec<Tensor> {
        let draft = OpRecord::new(self, &[Some(x)]);
        let count = x.shape[dim]
            .as_fixed()
            .expect("checked when the graph was built");
        let parts = (0..count)
            .map(|index| element(x, dim, index.into()))
            .collect();
        let (whole, dtype) = (x.shape.clone(), x.dtype);
        draft.finish_many(self, parts, move |eager, gradients, _| {
            let missing = gradients.iter().filter(|gradient| gradient.is_none());
            let _zeros: Vec<TensorBody> = missing.map(|_| eager.empty(&[], dtype)).collect();
            let grad_x = eager.empty(&whole, dtype);
            for (index, gradient) in (0..).zip(gradients) {
                let into = element(&grad_x, dim, Extent::fixed(index));
                match gradient {
                    Some(gradient) => eager.launch(Kernel::Copy, &[gradient], &[&into]),
                    None => eager.launch(Kernel::Fill(0.0), &[], &[&into]),
                }
            }
            vec![Some(Rc::new(grad_x))]
        })
    }

    /// `stack(parts, dim)`: the gradients are views of the incoming one.
    pub fn stack(&mut self, parts: &[Tensor], dim: usize) -> Tensor {
        let inputs: Vec<Option<&Tensor>> = parts.iter().map(Some).collect();
        let draft = OpRecord::new(self, &inputs);
        let mut shape = parts[0].shape.to_vec();
        shape.insert(dim, Extent::fixed(parts.len() as u64));
        let y = self.empty(&shape, common_dtype(parts));
        for (index, tensor) in (0..).zip(parts) {
            let into = element(&y, dim, Extent::fixed(index));
            self.launch(Kernel::Copy, &[tensor], &[&into]);
        }
        let count = parts.len() as u64;
        draft.finish_single(self, y, move |_, gradient, _| {
            let view = |index: u64| gradient_view(gradient, element(gradient, dim, index.into()));
            (0..count).map(|index| Some(view(index))).collect()
        })
    }
}

fn common_dtype(parts: &[Tensor]) -> DType {
    let all = parts.iter().map(|part| part.dtype);
    all.reduce(DType::promote).expect("at least one part")
}

/// Elements `start..start + length` along a dimension.
pub fn part(tensor: &TensorBody, dim: usize, start: Extent, length: Extent) -> TensorBody {
    let mut shape = tensor.shape.clone();
    shape[dim] = length;
    let mut view = tensor.alias(shape, tensor.strides.clone());
    view.offset = tensor.offset + start * tensor.strides[dim];
    view
}

/// One element along a dimension, without the dimension.
pub fn element(tensor: &TensorBody, dim: usize, index: Extent) -> TensorBody {
    let (mut shape, mut strides) = (tensor.shape.to_vec(), tensor.strides.to_vec());
    shape.remove(dim);
    let stride = strides.remove(dim);
    let mut view = tensor.alias(shape, strides);
    view.offset = tensor.offset + index * stride;
    view
}
