//! Views, and the copies that stand where no view is possible.

use std::rc::Rc;

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::{Tensor, TensorBody, view_strides};
use super::elementwise::expanded;
use crate::graph::{DType, Extent, contiguous_strides};
use crate::program::Kernel;

/// A gradient seen as another shape; it keeps the gradient it is a view of.
fn gradient_view(gradient: &Tensor, mut view: TensorBody) -> Tensor {
    view.base = Some(Rc::clone(gradient));
    Rc::new(view)
}

impl Eager {
    /// `view`, `reshape`, `flatten`.
    pub(in super::super) fn reshape(&mut self, x: &Tensor, shape: &[Extent]) -> Tensor {
        let Some(strides) = view_strides(&x.shape, &x.strides, shape) else {
            let copy = self.copy_contiguous(x);
            return self.reshape(&copy, shape);
        };
        let draft = Draft::new(self, &[Some(x)]);
        let y = x.alias(shape.to_vec(), strides);
        let from = x.shape.clone();
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let strides = view_strides(&gradient.shape, &gradient.strides, &from);
            if let Some(strides) = strides {
                return vec![Some(gradient_view(gradient, gradient.alias(from, strides)))];
            }
            let copy = eager.empty(&from, gradient.dtype);
            let seen = copy.alias(gradient.shape.clone(), contiguous_strides(&gradient.shape));
            eager.launch(Kernel::Copy, &[gradient], &[&seen]);
            drop(seen);
            vec![Some(Rc::new(copy))]
        });
        y
    }

    /// `transpose(a, b)`.
    pub(in super::super) fn transpose(&mut self, x: &Tensor, a: usize, b: usize) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let swapped = move |tensor: &TensorBody| {
            let (mut shape, mut strides) = (tensor.shape.clone(), tensor.strides.clone());
            shape.swap(a, b);
            strides.swap(a, b);
            tensor.alias(shape, strides)
        };
        let [y] = draft.finish(self, [swapped(x)], move |_, gradients, _| {
            vec![
                gradients[0]
                    .as_ref()
                    .map(|gradient| gradient_view(gradient, swapped(gradient))),
            ]
        });
        y
    }

    /// `unsqueeze(dim)`.
    pub(in super::super) fn unsqueeze(&mut self, x: &Tensor, dim: usize) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let (mut shape, mut strides) = (x.shape.clone(), x.strides.clone());
        let stride = shape
            .get(dim)
            .map_or(Extent::ONE, |length| *length * strides[dim]);
        shape.insert(dim, Extent::ONE);
        strides.insert(dim, stride);
        let y = x.alias(shape, strides);
        let [y] = draft.finish(self, [y], move |_, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let (mut shape, mut strides) = (gradient.shape.clone(), gradient.strides.clone());
            shape.remove(dim);
            strides.remove(dim);
            vec![Some(gradient_view(
                gradient,
                gradient.alias(shape, strides),
            ))]
        });
        y
    }

    /// `expand(shape)`: the engine sums the gradient back to the input's shape.
    pub(in super::super) fn expand(&mut self, x: &Tensor, shape: &[Extent]) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let y = expanded(x, shape);
        let [y] = draft.finish(self, [y], |_, gradients, _| vec![gradients[0].clone()]);
        y
    }

    /// `x[.., start:end, ..]`: the gradient is full size, zero outside the slice.
    pub(in super::super) fn slice(
        &mut self,
        x: &Tensor,
        dim: usize,
        start: u64,
        end: Extent,
    ) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let length = match end.as_fixed() {
            Some(end) => Extent::fixed(end - start),
            None => end,
        };
        let y = part(x, dim, Extent::fixed(start), length);
        let whole = x.shape.clone();
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&whole, gradient.dtype);
            eager.launch(Kernel::Fill(0.0), &[], &[&grad_x]);
            let inside = part(&grad_x, dim, Extent::fixed(start), length);
            eager.launch(Kernel::Copy, &[gradient], &[&inside]);
            drop(inside);
            vec![Some(Rc::new(grad_x))]
        });
        y
    }

    /// `select(dim, index)`: the gradient is full size, zero outside the slice.
    pub(in super::super) fn select(&mut self, x: &Tensor, dim: usize, index: u64) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let whole = x.shape.clone();
        let y = element(x, dim, index);
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&whole, gradient.dtype);
            eager.launch(Kernel::Fill(0.0), &[], &[&grad_x]);
            let inside = element(&grad_x, dim, index);
            eager.launch(Kernel::Copy, &[gradient], &[&inside]);
            drop(inside);
            vec![Some(Rc::new(grad_x))]
        });
        y
    }

    /// `gather(x, indices)` along a dimension.
    pub(in super::super) fn gather(
        &mut self,
        x: &Tensor,
        indices: &Tensor,
        dim: usize,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "index", indices)?;
        draft.save(self, "self", x)?;
        let y = self.empty(&indices.shape, x.dtype);
        self.launch(Kernel::Gather { dim }, &[x, indices], &[&y]);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&saved.get("self").shape, gradient.dtype);
            let inputs = [&**gradient, saved.get("index")];
            eager.launch(Kernel::GatherGrad { dim }, &inputs, &[&grad_x]);
            vec![Some(Rc::new(grad_x))]
        });
        Ok(y)
    }

    /// `split(size, dim)`: the gradient joins those of the parts, with zeros for unused ones.
    pub(in super::super) fn split(&mut self, x: &Tensor, size: u64, dim: usize) -> Vec<Tensor> {
        let draft = Draft::new(self, &[Some(x)]);
        let total = x.shape[dim]
            .as_fixed()
            .expect("checked when the graph was built");
        let starts: Vec<u64> = (0..total)
            .step_by(usize::try_from(size).expect("fits"))
            .collect();
        let lengths = move |start: u64| size.min(total - start);
        let cut = |start: &u64| {
            part(
                x,
                dim,
                Extent::fixed(*start),
                Extent::fixed(lengths(*start)),
            )
        };
        let parts = starts.iter().map(cut).collect();
        let (whole, dtype) = (x.shape.clone(), x.dtype);
        draft.finish_many(self, parts, move |eager, gradients, _| {
            // Zeros for missing parts exist before the joined gradient, and die with it made.
            let mut zeros = Vec::new();
            for (start, _) in starts
                .iter()
                .zip(gradients)
                .filter(|(_, gradient)| gradient.is_none())
            {
                let mut shape = whole.clone();
                shape[dim] = Extent::fixed(lengths(*start));
                let zero = eager.empty(&shape, dtype);
                eager.launch(Kernel::Fill(0.0), &[], &[&zero]);
                zeros.push((*start, Rc::new(zero)));
            }
            let grad_x = eager.empty(&whole, dtype);
            for (start, gradient) in starts.iter().zip(gradients) {
                let zero = || {
                    zeros
                        .iter()
                        .find(|(at, _)| at == start)
                        .map(|(_, zero)| zero)
                };
                let from = gradient.as_ref().or_else(zero).expect("one of the two");
                let into = part(
                    &grad_x,
                    dim,
                    Extent::fixed(*start),
                    Extent::fixed(lengths(*start)),
                );
                eager.launch(Kernel::Copy, &[from], &[&into]);
            }
            vec![Some(Rc::new(grad_x))]
        })
    }

    /// `cat(parts, dim)`: the gradients are views of the incoming one.
    pub(in super::super) fn cat(&mut self, parts: &[Tensor], dim: usize) -> Tensor {
        let inputs: Vec<Option<&Tensor>> = parts.iter().map(Some).collect();
        let draft = Draft::new(self, &inputs);
        let mut shape = parts[0].shape.clone();
        let dtype = parts
            .iter()
            .fold(parts[0].dtype, |dtype, part| dtype.promote(part.dtype));
        shape[dim] = parts
            .iter()
            .fold(Extent::ZERO, |sum, part| sum + part.shape[dim]);
        let y = self.empty(&shape, dtype);
        let lengths: Vec<Extent> = parts.iter().map(|part| part.shape[dim]).collect();
        let mut start = Extent::ZERO;
        for tensor in parts {
            let into = part(&y, dim, start, tensor.shape[dim]);
            self.launch(Kernel::Copy, &[tensor], &[&into]);
            start = start + tensor.shape[dim];
        }
        let [y] = draft.finish(self, [y], move |_, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None; lengths.len()];
            };
            let mut start = Extent::ZERO;
            lengths
                .iter()
                .map(|length| {
                    let view = part(gradient, dim, start, *length);
                    start = start + *length;
                    Some(gradient_view(gradient, view))
                })
                .collect()
        });
        y
    }

    /// `contiguous()`: the tensor itself where it is.
    pub(in super::super) fn contiguous(&mut self, x: &Tensor) -> Tensor {
        if x.is_contiguous() {
            Rc::clone(x)
        } else {
            self.copy_contiguous(x)
        }
    }

    /// `pad` with a constant along the last dimension. Only targets are padded, which need no gradient.
    pub(in super::super) fn pad_last(&mut self, x: &Tensor, before: u64, after: u64) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let mut shape = x.shape.clone();
        let last = shape.len() - 1;
        let length = shape[last];
        shape[last] = length + Extent::fixed(before + after);
        let y = self.empty(&shape, x.dtype);
        // What `cross_entropy` ignores; a padded activation would say otherwise.
        self.launch(Kernel::Fill(-100.0), &[], &[&y]);
        let inside = part(&y, last, Extent::fixed(before), length);
        self.launch(Kernel::Copy, &[x], &[&inside]);
        drop(inside);
        let [y] = draft.finish(self, [y], move |_, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let inside = part(gradient, last, Extent::fixed(before), length);
            vec![Some(gradient_view(gradient, inside))]
        });
        y
    }

    /// `arange(end)`.
    pub(in super::super) fn arange(&mut self, end: Extent) -> Tensor {
        let y = self.empty(&[end], DType::Int64);
        self.launch(Kernel::Arange, &[], &[&y]);
        Rc::new(y)
    }

    /// A tensor without history in row-major order: itself, or a copy.
    pub(super) fn dense_copy(&mut self, gradient: &Tensor) -> Tensor {
        if gradient.is_contiguous() {
            return Rc::clone(gradient);
        }
        let copy = self.empty(&gradient.shape, gradient.dtype);
        self.launch(Kernel::Copy, &[gradient], &[&copy]);
        Rc::new(copy)
    }

    fn copy_contiguous(&mut self, x: &Tensor) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let copy = self.empty(&x.shape, x.dtype);
        self.launch(Kernel::Copy, &[x], &[&copy]);
        let [copy] = draft.finish(self, [copy], |_, gradients, _| vec![gradients[0].clone()]);
        copy
    }
}

/// Elements `start..start + length` along a dimension.
fn part(tensor: &TensorBody, dim: usize, start: Extent, length: Extent) -> TensorBody {
    let mut shape = tensor.shape.clone();
    shape[dim] = length;
    let mut view = tensor.alias(shape, tensor.strides.clone());
    view.offset = tensor.offset + start * tensor.strides[dim];
    view
}

/// One element along a dimension, without the dimension.
fn element(tensor: &TensorBody, dim: usize, index: u64) -> TensorBody {
    let (mut shape, mut strides) = (tensor.shape.clone(), tensor.strides.clone());
    shape.remove(dim);
    let stride = strides.remove(dim);
    let mut view = tensor.alias(shape, strides);
    view.offset = tensor.offset + Extent::fixed(index) * stride;
    view
}
