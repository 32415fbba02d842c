//! Copies of elements, in the same place or another.

use std::rc::Rc;

use super::kernel;
use crate::ops::prelude::*;
use crate::shape::MemoryFormat;

impl Eager {
    /// `gather(x, indices)` along a dimension.
    pub fn gather(&mut self, x: &Tensor, indices: &Tensor, dim: usize) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "index", indices)?;
        draft.save(self, "self", x)?;
        let y = self.empty(&indices.shape, x.dtype);
        self.launch(Kernel::Gather { dim }, &[x, indices], &[&y]);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.empty(&saved.get("self").shape, gradient.dtype);
            let inputs = [&**gradient, saved.get("index")];
            eager.computed(grad_x, Kernel::GatherGrad { dim }, &inputs)
        }))
    }

    /// `contiguous()`: the tensor itself where it is.
    pub fn contiguous(&mut self, x: &Tensor) -> Tensor {
        if x.is_contiguous() {
            Rc::clone(x)
        } else {
            self.copy_contiguous(x)
        }
    }

    /// `clone()`: a copy in the same layout.
    pub fn clone_of(&mut self, x: &Tensor) -> Tensor {
        self.recorded_copy(x, strides_like(&x.shape, &x.strides))
    }

    fn recorded_copy(&mut self, x: &Tensor, strides: impl Into<Sizes>) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let copy = self.copy_strided(x, strides);
        draft.finish_one(self, copy, |_, gradient, _| Tensor::clone(gradient))
    }

    /// A copy without history, with these strides.
    pub fn copy_strided(&mut self, x: &TensorBody, strides: impl Into<Sizes>) -> TensorBody {
        let copy = self.empty_strided(&x.shape, strides, x.dtype);
        self.launch(Kernel::Copy, &[x], &[&copy]);
        copy
    }

    /// A copy without history in row-major order.
    pub fn row_major_copy(&mut self, x: &TensorBody) -> TensorBody {
        self.copy_strided(x, contiguous_strides(&x.shape))
    }

    /// `contiguous(memory_format=torch.channels_last)`: the tensor itself where it lies like that already.
    pub(super) fn in_channels_last(&mut self, x: &Tensor, always: bool) -> Tensor {
        if !always && x.is_in(MemoryFormat::ChannelsLast) {
            return Rc::clone(x);
        }
        self.recorded_copy(x, MemoryFormat::ChannelsLast.strides(&x.shape))
    }

    /// `roll` along so many dimensions: one after the other, each from a contiguous tensor to a new one.
    pub fn roll(&mut self, x: &Tensor, shifts: &[(i64, Option<usize>)]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = self.rolled(x, shifts);
        let back = |(shift, dim): &(i64, Option<usize>)| (-shift, *dim);
        let shifts: Vec<_> = shifts.iter().map(back).collect();
        draft.finish_one(self, y, move |eager, gradient, _| {
            Rc::new(eager.rolled(gradient, &shifts))
        })
    }

    fn rolled(&mut self, x: &Tensor, shifts: &[(i64, Option<usize>)]) -> TensorBody {
        let mut along = |x: &Tensor, (shift, dim): (i64, Option<usize>)| {
            let dense = self.dense_copy(x);
            let y = self.empty(&x.shape, x.dtype);
            let kernel = kernel::rolled(shift, dim, x.shape.len());
            self.launch(kernel, &[&dense], &[&y]);
            y
        };
        let mut shifts = shifts.iter().copied();
        let mut y = along(x, shifts.next().unwrap_or((0, None)));
        for shift in shifts {
            let before = Rc::new(y);
            y = along(&before, shift);
        }
        y
    }

    /// `flip`.
    pub(super) fn flip(&mut self, x: &Tensor, dims: &[usize]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let kernel = kernel::flipped(dims, x.shape.len());
        let flipped = move |eager: &mut Eager, x: &Tensor| {
            let y = eager.empty_like(x, x.dtype);
            eager.launch(kernel.clone(), &[x], &[&y]);
            y
        };
        let y = flipped(self, x);
        draft.finish_one(self, y, move |eager, gradient, _| {
            Rc::new(flipped(eager, gradient))
        })
    }

    /// `repeat(times)`: the gradient is cut into the repetitions, which are summed.
    pub fn repeat(&mut self, x: &Tensor, times: &[Extent]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let added = times.len() - x.shape.len();
        let padded = [&vec![Extent::ONE; added], &*x.shape].concat();
        let shape: Vec<Extent> = padded.iter().zip(times).map(|(n, t)| *n * *t).collect();
        let y = self.empty(&shape, x.dtype);
        self.launch(kernel::repeated(x.shape.len(), times.len()), &[x], &[&y]);
        let (own, times) = (x.shape.clone(), times.to_vec());
        draft.finish_single(self, y, move |eager, gradient, _| {
            let repeated = |(t, n): (&Extent, &Extent)| match *t {
                Extent::ONE => vec![*n],
                t => vec![t, *n],
            };
            let lengths = times.iter().zip(&padded);
            let cut: Vec<Extent> = lengths.clone().flat_map(repeated).collect();
            if numel(&times) == Extent::ONE {
                return vec![Some(eager.reshape(gradient, &own))];
            }
            let gradient = eager.reshape(gradient, &cut);
            let kept = lengths.flat_map(|(t, n)| match *t {
                Extent::ONE => vec![*n],
                _ => vec![Extent::ONE, *n],
            });
            let sum = eager.sum_to(&gradient, &kept.collect::<Vec<_>>());
            vec![Some(eager.reshape(&sum, &own))]
        })
    }

    /// A tensor without history in row-major order: itself, or a copy.
    pub fn dense_copy(&mut self, gradient: &Tensor) -> Tensor {
        if gradient.is_contiguous() {
            return Rc::clone(gradient);
        }
        Rc::new(self.row_major_copy(gradient))
    }

    pub fn copy_contiguous(&mut self, x: &Tensor) -> Tensor {
        self.recorded_copy(x, contiguous_strides(&x.shape))
    }
}
