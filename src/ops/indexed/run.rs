//! Look-ups, sorts and choices: what their kernels and their gradients take.

use std::rc::Rc;

use super::{looked_up, shapes_of};
use crate::eager::{Draft, Eager, Saved, Stop, Tensor, TensorBody};
use crate::ops::Indexed;
use crate::ops::elementwise::expanded;
use crate::ops::embedding::{ALL_BITS, radix_bytes};
use crate::ops::view::gradient_view;
use crate::program::Kernel;
use crate::shape::{DType, Extent, Sizes, Type, broadcast, strides_like, strides_match};

/// Names under which indices are saved.
pub(super) const INDICES: [&str; 5] = ["0", "1", "2", "3", "4"];

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
    pub(crate) fn indexed(
        &mut self,
        op: &Indexed,
        operands: &[Tensor],
        results: &[Vec<Extent>],
    ) -> Result<Vec<Tensor>, Stop> {
        let x = &operands[0];
        let one = match op {
            Indexed::Gather { dim } => self.gather(x, &operands[1], *dim)?,
            Indexed::Index(marked) => self.index((op, None), marked, operands, &results[0])?,
            Indexed::IndexMasked { marked, rows } => {
                self.index((op, Some(*rows)), marked, operands, &results[0])?
            }
            Indexed::Select { dim } => self.index_select(x, &operands[1], *dim)?,
            Indexed::Put { .. } | Indexed::Add { .. } | Indexed::Scatter { .. } => {
                self.write_at(op, operands)?
            }
            Indexed::Extreme { .. } | Indexed::TopK { .. } => {
                return self.choose(op, x, &results[0]);
            }
            Indexed::Sort { dim } | Indexed::ArgSort { dim } => {
                return self.sort(op, x, *dim);
            }
            Indexed::CumulativeSum { dtype, .. } => self.cumulative_sum(x, *dtype),
            Indexed::Triangle => {
                let draft = Draft::new(self, &[Some(x)]);
                let y = self.empty(&x.shape, x.dtype);
                self.launch(Kernel::MemoryOnly(op.aten_name()), &[x], &[&y]);
                self.finish_copied(draft, y)
            }
            Indexed::RepeatInterleave { times, dim } => {
                let (times, dim) = (*times, *dim);
                let like = (x.shape.clone(), x.dtype);
                let draft = Draft::new(self, &[Some(x)]);
                let y = self.empty(&results[0], x.dtype);
                // The copies are neighbours: a dimension of their own, in which the operand does not move.
                let spread = apart(x, dim, times, Extent::ZERO);
                let copies = apart_of(&y, dim, times);
                self.launch(Kernel::Copy, &[&spread], &[&copies]);
                drop((spread, copies));
                // The sum over the copies, seen without its dimension: a view.
                draft.finish_one(self, y, move |eager, gradient, _| {
                    let sum = Tensor::new(eager.empty(&like.0, like.1));
                    let copies = apart_of(gradient, dim, times);
                    let once = apart(&sum, dim, 1, Extent::ZERO);
                    eager.launch(Kernel::Sum { scale: 1.0 }, &[&copies], &[&once]);
                    drop((copies, once));
                    let view = sum.alias(sum.shape.clone(), sum.strides.clone());
                    gradient_view(&sum, view)
                })
            }
            Indexed::Histogram { .. } => self.plain(op, x, &results[0], x.dtype),
            Indexed::ArgExtreme { .. } | Indexed::OneHot { .. } => {
                self.plain(op, x, &results[0], DType::Int64)
            }
            Indexed::Truth { .. } => self.plain(op, x, &results[0], DType::Bool),
        };
        Ok(vec![one])
    }

    /// `index_select(x, index)`.
    pub(crate) fn index_select(
        &mut self,
        x: &Tensor,
        index: &Tensor,
        dim: usize,
    ) -> Result<Tensor, Stop> {
        let like = (x.shape.clone(), x.dtype);
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "index", index)?;
        let mut shape = x.shape.clone();
        if let Some(length) = shape.get_mut(dim) {
            *length = index.shape.first().copied().unwrap_or(Extent::ONE);
        }
        let y = self.empty(&shape, x.dtype);
        self.launch(Kernel::MemoryOnly("index_select"), &[x, index], &[&y]);
        Ok(self.finish_zeros(draft, y, like))
    }

    /// Indices as int64 positions: `expandTensors` finds where truth values are true, and narrower types are
    /// converted.
    pub(super) fn positions(&mut self, indices: &[Tensor], rows: Option<Extent>) -> Vec<Tensor> {
        let mut positions = Vec::new();
        for index in indices {
            match (index.dtype, rows) {
                (DType::Bool, Some(rows)) => positions.extend(self.places(index, rows)),
                (DType::Int32, _) => positions.push(self.copy_as(index, DType::Int64)),
                _ => positions.push(Tensor::clone(index)),
            }
        }
        positions
    }

    /// A result without a gradient.
    pub(super) fn plain(
        &mut self,
        op: &Indexed,
        x: &Tensor,
        shape: &[Extent],
        dtype: DType,
    ) -> Tensor {
        let y = self.empty(shape, dtype);
        self.launch(Kernel::MemoryOnly(op.aten_name()), &[x], &[&y]);
        Tensor::new(y)
    }

    /// Ends an operation whose gradient is one new tensor like the operand.
    pub(super) fn finish_zeros(
        &mut self,
        draft: Draft,
        y: TensorBody,
        like: (Sizes, DType),
    ) -> Tensor {
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.empty(&like.0, like.1);
            eager.launch(Kernel::MemoryOnly("scatter_add"), &[gradient], &[&grad_x]);
            Rc::new(grad_x)
        })
    }

    /// Ends an operation whose gradient is a new tensor like the incoming one.
    pub(super) fn finish_copied(&mut self, draft: Draft, y: TensorBody) -> Tensor {
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            eager.launch(Kernel::Copy, &[gradient], &[&grad_x]);
            Rc::new(grad_x)
        })
    }

    /// `x[indices]`; its gradient adds up over sorted positions.
    fn index(
        &mut self,
        (op, rows): (&Indexed, Option<Extent>),
        marked: &[bool],
        operands: &[Tensor],
        shape: &[Extent],
    ) -> Result<Tensor, Stop> {
        let x = &operands[0];
        let indices = &operands[1..];
        let mut draft = Draft::new(self, &[Some(x)]);
        for (name, index) in INDICES.into_iter().zip(indices) {
            draft.save(self, name, index)?;
        }
        let marked = marked.to_vec();
        let positions = self.positions(indices, rows);
        let copies = self.alike_indices(&positions, &common_shape(&positions));
        let y = self.empty(shape, x.dtype);
        let inputs: Vec<&TensorBody> = operands.iter().map(|operand| &**operand).collect();
        self.launch(Kernel::MemoryOnly(op.aten_name()), &inputs, &[&y]);
        drop(copies);
        drop(positions);
        let whole = x.shape.clone();
        let count = indices.len();
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let grad_x = eager.empty(&whole, gradient.dtype);
            eager.launch(Kernel::Fill(0.0), &[], &[&grad_x]);
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
    pub(crate) fn alike_indices(
        &mut self,
        indices: &[Tensor],
        common: &[Extent],
    ) -> Vec<TensorBody> {
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

    /// `max(dim)`, `topk`: values, then positions, which are saved.
    fn choose(&mut self, op: &Indexed, x: &Tensor, shape: &[Extent]) -> Result<Vec<Tensor>, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        let values = self.empty(shape, x.dtype);
        let places = Tensor::new(self.empty(shape, DType::Int64));
        self.launch(
            Kernel::MemoryOnly(op.aten_name()),
            &[x],
            &[&values, &places],
        );
        draft.save(self, "indices", &places)?;
        let values = self.finish_zeros(draft, values, (x.shape.clone(), x.dtype));
        Ok(vec![values, places])
    }

    /// `sort` along a dimension: one row of more than 4,096 elements takes a radix sort's buffer.
    fn sort(&mut self, op: &Indexed, x: &Tensor, dim: usize) -> Result<Vec<Tensor>, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        let strides = strides_like(&x.shape, &x.strides);
        let values = self.empty_strided(&x.shape, strides.clone(), x.dtype);
        let places = self.empty_strided(&x.shape, strides, DType::Int64);
        let places = Tensor::new(places);
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
            Kernel::MemoryOnly(op.aten_name()),
            &[x],
            &[&values, &places],
        );
        drop(buffer);
        drop(keys);
        draft.save(self, "indices", &places)?;
        let values = self.finish_zeros(draft, values, (x.shape.clone(), x.dtype));
        Ok(match op {
            Indexed::ArgSort { .. } => {
                drop(values);
                vec![places]
            }
            _ => vec![values, places],
        })
    }

    /// `cumsum`: whole numbers and what autocast sums in float32 are converted after the result exists.
    fn cumulative_sum(&mut self, x: &Tensor, into: Option<DType>) -> Tensor {
        let natural = match x.dtype {
            dtype if !dtype.is_float() => DType::Int64,
            dtype if dtype.is_half() && self.autocast.is_some() => DType::Float32,
            dtype => dtype,
        };
        let dtype = into.unwrap_or(natural);
        let own = x.dtype;
        let draft = Draft::new(self, &[Some(x)]);
        let y = self.empty(&x.shape, dtype);
        let converted = (dtype != own).then(|| self.empty(&x.shape, dtype));
        // What the kernel reads is contiguous.
        let dense = converted.is_none().then(|| self.dense_copy(x));
        // One row is scanned by a library, in a buffer of its own.
        if x.shape.len() == 1 {
            drop(self.scratch(1023));
        }
        self.launch(Kernel::MemoryOnly("cumsum"), &[x], &[&y]);
        drop(dense);
        drop(converted);
        draft.finish_one(self, y, move |eager, gradient, _| {
            // Turned round, summed, and turned round again.
            let cast = (gradient.dtype != own).then(|| eager.copy_as(gradient, own));
            let strides = strides_like(&gradient.shape, &gradient.strides);
            let turned = Tensor::new(eager.empty_strided(&gradient.shape, strides, own));
            let sums = eager.empty(&gradient.shape, own);
            drop(eager.dense_copy(&turned));
            let grad_x = eager.empty(&gradient.shape, own);
            eager.launch(Kernel::MemoryOnly("cumsum"), &[gradient], &[&grad_x]);
            drop(sums);
            drop(turned);
            drop(cast);
            Rc::new(grad_x)
        })
    }
}

/// A tensor with a dimension behind `dim`, `times` long and with this stride.
fn apart(x: &TensorBody, dim: usize, times: u64, stride: Extent) -> TensorBody {
    let (mut shape, mut strides) = (x.shape.to_vec(), x.strides.to_vec());
    shape.insert(dim + 1, Extent::fixed(times));
    strides.insert(dim + 1, stride);
    x.alias(shape, strides)
}

/// A tensor with `dim` divided into runs of `times`.
fn apart_of(x: &TensorBody, dim: usize, times: u64) -> TensorBody {
    let mut runs = apart(x, dim, times, x.strides[dim]);
    runs.shape[dim] = x.shape[dim]
        .checked_div(Extent::fixed(times))
        .unwrap_or(x.shape[dim]);
    runs.strides[dim] = x.strides[dim] * Extent::fixed(times);
    runs
}
