//! Look-ups, sorts and choices: what their kernels and their gradients take.

use std::rc::Rc;

use super::ordering::{running_sum, sorted};
use super::{looked_up, shapes_of};
use crate::ops::Indexed;
use crate::ops::data_dependent::Beyond;
use crate::ops::elementwise::expanded;
use crate::ops::embedding::{ALL_BITS, radix_bytes};
use crate::ops::placing::Combine;
use crate::ops::prelude::*;
use crate::ops::reduce::kept_shape;
use crate::ops::view::gradient_view;
use crate::shape::strides_match;

/// Names under which indices are saved.
pub(super) const INDICES: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

/// So many indices as they were saved.
pub(super) fn saved_indices(saved: &Saved, count: usize) -> Vec<Tensor> {
    let names = INDICES.into_iter().take(count);
    names.map(|name| Tensor::clone(saved.get(name))).collect()
}

/// The shape that indices broadcast to.
pub(super) fn common_shape(indices: &[Tensor]) -> Vec<Extent> {
    let shapes = indices.iter().map(|index| index.shape.to_vec());
    let common = shapes.reduce(|a, b| broadcast(&a, &b).expect("checked when built"));
    common.unwrap_or_default()
}

/// The shape of `x[indices]`.
pub(super) fn looked_up_shape(
    marked: &[bool],
    x: &Tensor,
    indices: &[Tensor],
    rows: Option<Extent>,
) -> Vec<Extent> {
    let types: Vec<Type> = indices
        .iter()
        .map(|index| (index.dtype, index.shape.to_vec()))
        .collect();
    looked_up(&x.shape, marked, &shapes_of(&types, rows)).expect("checked when built")
}

impl Eager {
    /// A look-up, sort or choice; `results` are its results' types as inferred.
    pub fn indexed(
        &mut self,
        op: &Indexed,
        operands: &[Tensor],
        results: &[Vec<Extent>],
    ) -> Outputs {
        let x = &operands[0];
        let one = match op {
            Indexed::Gather { dim } => self.gather(x, &operands[1], *dim)?,
            Indexed::Index(marked) => self.index(None, marked, operands, &results[0])?,
            Indexed::IndexMasked { marked, rows } => {
                self.index(Some(*rows), marked, operands, &results[0])?
            }
            Indexed::Select { dim } => self.index_select(x, &operands[1], *dim)?,
            Indexed::Put { .. } | Indexed::Add { .. } | Indexed::Scatter { .. } => {
                self.write_at(op, operands)?
            }
        };
        Ok(vec![one])
    }

    /// `index_select(x, index)`.
    pub fn index_select(&mut self, x: &Tensor, index: &Tensor, dim: usize) -> Output {
        let like = (x.shape.clone(), x.dtype);
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "index", index)?;
        let mut shape = x.shape.clone();
        if let Some(length) = shape.get_mut(dim) {
            *length = index.shape.first().copied().unwrap_or(Extent::ONE);
        }
        let y = self.empty(&shape, x.dtype);
        self.select_along(x, dim, index, &y);
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.zeros(&like.0, like.1);
            let added = (Combine::Add, Ok(&**gradient));
            eager.write_along(&grad_x, dim, saved.get("index"), added);
            Rc::new(grad_x)
        }))
    }

    /// Indices as int64 positions: `expandTensors` finds where truth values are true, and narrower types are
    /// converted.
    pub(super) fn positions(
        &mut self,
        indices: &[Tensor],
        rows: Option<Extent>,
        beyond: Beyond,
    ) -> Vec<Tensor> {
        let mut positions = Vec::new();
        for index in indices {
            match (index.dtype, rows) {
                (DType::Bool, Some(rows)) => positions.extend(self.places(index, rows, beyond)),
                (DType::Int32, _) => positions.push(self.copy_as(index, DType::Int64)),
                _ => positions.push(Tensor::clone(index)),
            }
        }
        positions
    }

    /// What is left of some dimensions, without a gradient.
    pub(super) fn plain(
        &mut self,
        kernel: impl Into<Kernel>,
        x: &Tensor,
        (shape, dims): (&[Extent], &[usize]),
        dtype: DType,
    ) -> Tensor {
        let y = self.empty(shape, dtype);
        self.launch(kernel, &[x], &[&kept(&y, &x.shape, dims)]);
        Tensor::new(y)
    }

    /// Ends an operation that chose elements along a dimension, whose places are saved as `indices`: the gradient goes
    /// there, and is zero elsewhere. `kept` says whether results have the dimension.
    pub(super) fn finish_chosen(
        &mut self,
        draft: OpRecord,
        y: TensorBody,
        like: (Sizes, DType),
        (dim, kept): (usize, bool),
    ) -> Tensor {
        draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.zeros(&like.0, like.1);
            let whole = |tensor: &TensorBody| {
                let (mut shape, mut strides) = (tensor.shape.to_vec(), tensor.strides.to_vec());
                if !kept && shape.len() < like.0.len() {
                    shape.insert(dim, Extent::ONE);
                    strides.insert(dim, Extent::ONE);
                }
                tensor.alias(shape, strides)
            };
            let (gradient, places) = (whole(gradient), whole(saved.get("indices")));
            // No place is chosen twice.
            eager.scatter_along(&grad_x, dim, &places, (Combine::Replace, Ok(&gradient)));
            drop((gradient, places));
            Rc::new(grad_x)
        })
    }

    /// `x[indices]`; its gradient adds up over sorted positions.
    fn index(
        &mut self,
        rows: Option<Extent>,
        marked: &[bool],
        operands: &[Tensor],
        shape: &[Extent],
    ) -> Output {
        let x = &operands[0];
        let indices = &operands[1..];
        let mut draft = OpRecord::new(self, &[Some(x)]);
        for (name, index) in INDICES.into_iter().zip(indices) {
            draft.save(self, name, index)?;
        }
        let marked = marked.to_vec();
        let positions = self.positions(indices, rows, Beyond::Repeat);
        let copies = self.alike_indices(&positions, &common_shape(&positions));
        let y = self.empty(shape, x.dtype);
        self.look_up(false, x, (&marked, &positions), &y);
        drop((copies, positions));
        let whole = x.shape.clone();
        let count = indices.len();
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.zeros(&whole, gradient.dtype);
            let indices = saved_indices(saved, count);
            let places = super::writing::Places {
                indices: &indices,
                rows,
                marked: &marked,
                checked: false,
            };
            eager.accumulate_at(&places, gradient, &grad_x);
            Rc::new(grad_x)
        }))
    }

    /// Several indices must have the same strides once they are broadcast; else those that are not contiguous
    /// are copied.
    pub fn alike_indices(&mut self, indices: &[Tensor], common: &[Extent]) -> Vec<TensorBody> {
        let seen: Vec<TensorBody> = indices
            .iter()
            .map(|index| expanded(index, common))
            .collect();
        let alike = |pair: &[TensorBody]| strides_match(common, &pair[0].strides, &pair[1].strides);
        if seen.windows(2).all(alike) {
            return Vec::new();
        }
        let scattered = seen.iter().filter(|index| !index.is_contiguous());
        let count = scattered.count();
        (0..count)
            .map(|_| self.empty(common, DType::Int64))
            .collect()
    }

    /// `max(dim)`, `topk`: values, then positions, which are saved. `along` says whether results have the dimension.
    pub(super) fn choose(
        &mut self,
        kernel: impl Into<Kernel>,
        x: &Tensor,
        shape: &[Extent],
        along: (usize, bool),
    ) -> Outputs {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        let values = self.empty(shape, x.dtype);
        let places = Tensor::new(self.empty(shape, DType::Int64));
        if shape.len() == x.shape.len() {
            self.launch(kernel, &[x], &[&values, &places]);
        } else {
            let results = [&values, &*places].map(|of| kept(of, &x.shape, &[along.0]));
            self.launch(kernel, &[x], &[&results[0], &results[1]]);
        }
        draft.save(self, "indices", &places)?;
        let like = (x.shape.clone(), x.dtype);
        let values = self.finish_chosen(draft, values, like, along);
        Ok(vec![values, places])
    }

    /// `tril` or `triu`; of the gradient the same.
    pub(super) fn triangle(&mut self, x: &Tensor, kernel: Generated) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = self.empty(&x.shape, x.dtype);
        self.launch(kernel.clone(), &[x], &[&y]);
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            eager.computed(grad_x, kernel, &[gradient])
        })
    }

    /// `repeat_interleave` of each element along a dimension.
    pub fn repeat_interleave(&mut self, x: &Tensor, times: u64, dim: usize) -> Tensor {
        let like = (x.shape.clone(), x.dtype);
        let draft = OpRecord::new(self, &[Some(x)]);
        let mut shape = x.shape.to_vec();
        shape[dim] = shape[dim] * Extent::fixed(times);
        let y = self.empty(&shape, x.dtype);
        // The copies are neighbours: a dimension of their own, in which the operand does not move.
        let spread = with_dimension_after(x, dim, times, Extent::ZERO);
        self.launch(Kernel::Copy, &[&spread], &[&apart_of(&y, dim, times)]);
        // The sum over the copies, seen without its dimension: a view.
        draft.finish_one(self, y, move |eager, gradient, _| {
            let sum = Tensor::new(eager.empty(&like.0, like.1));
            let copies = apart_of(gradient, dim, times);
            let once = with_dimension_after(&sum, dim, 1, Extent::ZERO);
            eager.launch(Kernel::Sum { scale: 1.0 }, &[&copies], &[&once]);
            let view = sum.same();
            gradient_view(&sum, view)
        })
    }

    /// `sort` along a dimension: one row of more than 4,096 elements takes a radix sort's buffer.
    pub(super) fn sort(&mut self, x: &Tensor, (dim, descending): (usize, bool)) -> Outputs {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        let values = self.empty_like(x, x.dtype);
        let places = Tensor::new(self.empty_like(x, DType::Int64));
        let count = x.shape.get(dim).copied().unwrap_or(Extent::ONE);
        // The positions along the dimension.
        let keys = self.scratch_of(count, DType::Int64);
        let of = (self.capability, count, x.numel());
        let buffer = self.scratch_by("radix sort", of, |&(card, count, all), batch| {
            let length = count.at(batch);
            if length <= 4096 || all.at(batch) > length {
                0
            } else {
                radix_bytes(&card, length, ALL_BITS)
            }
        });
        self.launch(
            sorted(dim, x.shape.len(), descending),
            &[x],
            &[&values, &places],
        );
        drop((buffer, keys));
        draft.save(self, "indices", &places)?;
        let like = (x.shape.clone(), x.dtype);
        let values = self.finish_chosen(draft, values, like, (dim, true));
        Ok(vec![values, places])
    }

    /// `cumsum`: whole numbers and what autocast sums in float32 are converted after the result exists.
    pub(super) fn cumulative_sum(&mut self, x: &Tensor, dim: usize, into: Option<DType>) -> Tensor {
        let natural = match x.dtype {
            dtype if !dtype.is_float() => DType::Int64,
            dtype if dtype.is_half() && self.autocast.is_some() => DType::Float32,
            dtype => dtype,
        };
        let dtype = into.unwrap_or(natural);
        let own = x.dtype;
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = self.empty(&x.shape, dtype);
        let converted = (dtype != own).then(|| self.empty(&x.shape, dtype));
        // What the kernel reads is contiguous.
        let _dense = converted.is_none().then(|| self.dense_copy(x));
        // One row is scanned by a library, in a buffer of its own.
        if x.shape.len() == 1 {
            drop(self.scratch(1023));
        }
        self.launch(running_sum(dim, x.shape.len(), false), &[x], &[&y]);
        draft.finish_one(self, y, move |eager, gradient, _| {
            // Turned round, summed, and turned round again.
            let _cast = (gradient.dtype != own).then(|| eager.copy_as(gradient, own));
            let turned = Tensor::new(eager.empty_like(gradient, own));
            let _sums = eager.empty(&gradient.shape, own);
            // What would be copied in between is nowhere written: one kernel does all of it.
            let scattered = !turned.is_contiguous();
            drop(scattered.then(|| eager.empty(&gradient.shape, own)));
            let grad_x = eager.empty(&gradient.shape, own);
            let kernel = running_sum(dim, gradient.shape.len(), true);
            eager.computed(grad_x, kernel, &[gradient])
        })
    }
}

/// A tensor with a dimension behind `dim`, `times` long and with this stride.
fn with_dimension_after(x: &TensorBody, dim: usize, times: u64, stride: Extent) -> TensorBody {
    let (mut shape, mut strides) = (x.shape.to_vec(), x.strides.to_vec());
    shape.insert(dim + 1, Extent::fixed(times));
    strides.insert(dim + 1, stride);
    x.alias(shape, strides)
}

/// A tensor with `dim` divided into runs of `times`.
fn apart_of(x: &TensorBody, dim: usize, times: u64) -> TensorBody {
    let mut runs = with_dimension_after(x, dim, times, x.strides[dim]);
    runs.shape[dim] = x.shape[dim]
        .checked_div(Extent::fixed(times))
        .unwrap_or(x.shape[dim]);
    runs.strides[dim] = x.strides[dim] * Extent::fixed(times);
    runs
}

/// A dense result with a length of one in the place of each dimension that is gone.
fn kept(result: &TensorBody, whole: &[Extent], dims: &[usize]) -> TensorBody {
    let shape = kept_shape(whole, dims);
    let strides = contiguous_strides(&shape);
    result.alias(shape, strides)
}
