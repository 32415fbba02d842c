//! Look-ups, sorts and choices: what their kernels and their gradients take.

use std::rc::Rc;

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::emit::Storage;
use super::super::tensor::{Tensor, TensorBody, strides_like};
use crate::graph::{DType, Extent, Indexed, numel};
use crate::program::Kernel;

/// Up to so many elements a sort or an accumulating index fits one block and needs no buffer.
const ONE_BLOCK: u64 = 2048;

impl Eager {
    /// A look-up, sort or choice; `results` are its results' types as inferred.
    pub(in super::super) fn indexed(
        &mut self,
        op: &Indexed,
        operands: &[Tensor],
        results: &[Vec<Extent>],
    ) -> Result<Vec<Tensor>, Stop> {
        let x = &operands[0];
        let one = match op {
            Indexed::Index(_) => self.index(op, operands, &results[0])?,
            Indexed::Select { .. } => {
                let index = &operands[1];
                let like = (x.shape.clone(), x.dtype);
                let mut draft = Draft::new(self, &[Some(x)]);
                draft.save(self, "index", index)?;
                let y = self.empty(&results[0], x.dtype);
                self.launch(Kernel::MemoryOnly(op.name()), &[x, index], &[&y]);
                self.finish_zeros(draft, y, like)
            }
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
                self.launch(Kernel::MemoryOnly(op.name()), &[x], &[&y]);
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
                let [y] = draft.finish(self, [y], move |eager, gradients, _| {
                    let Some(gradient) = &gradients[0] else {
                        return vec![None];
                    };
                    let sum = Tensor::new(eager.empty(&like.0, like.1));
                    let copies = apart_of(gradient, dim, times);
                    let once = apart(&sum, dim, 1, Extent::ZERO);
                    eager.launch(Kernel::Sum { scale: 1.0 }, &[&copies], &[&once]);
                    drop((copies, once));
                    let view = sum.alias(sum.shape.clone(), sum.strides.clone());
                    vec![Some(super::view::gradient_view(&sum, view))]
                });
                y
            }
            Indexed::Histogram { .. } => self.plain(op, x, &results[0], x.dtype),
            Indexed::ArgExtreme { .. } | Indexed::OneHot { .. } => {
                self.plain(op, x, &results[0], DType::Int64)
            }
            Indexed::Truth { .. } => self.plain(op, x, &results[0], DType::Bool),
        };
        Ok(vec![one])
    }

    /// A result without a gradient.
    fn plain(&mut self, op: &Indexed, x: &Tensor, shape: &[Extent], dtype: DType) -> Tensor {
        let y = self.empty(shape, dtype);
        self.launch(Kernel::MemoryOnly(op.name()), &[x], &[&y]);
        Tensor::new(y)
    }

    /// Ends an operation whose gradient is one new tensor like the operand.
    fn finish_zeros(&mut self, draft: Draft, y: TensorBody, like: (Vec<Extent>, DType)) -> Tensor {
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&like.0, like.1);
            eager.launch(Kernel::MemoryOnly("scatter_add"), &[gradient], &[&grad_x]);
            vec![Some(Rc::new(grad_x))]
        });
        y
    }

    /// Ends an operation whose gradient is a new tensor like the incoming one.
    fn finish_copied(&mut self, draft: Draft, y: TensorBody) -> Tensor {
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&gradient.shape, gradient.dtype);
            eager.launch(Kernel::Copy, &[gradient], &[&grad_x]);
            vec![Some(Rc::new(grad_x))]
        });
        y
    }

    /// `x[indices]`. Indices that broadcast are expanded and copied first; its gradient adds up over
    /// sorted positions.
    fn index(
        &mut self,
        op: &Indexed,
        operands: &[Tensor],
        shape: &[Extent],
    ) -> Result<Tensor, Stop> {
        let x = &operands[0];
        let indices = &operands[1..];
        let mut draft = Draft::new(self, &[Some(x)]);
        for (name, index) in ["0", "1", "2", "3", "4"].into_iter().zip(indices) {
            draft.save(self, name, index)?;
        }
        let common = indices
            .iter()
            .map(|index| index.shape.clone())
            .reduce(|a, b| crate::graph::broadcast(&a, &b).expect("checked when built"))
            .unwrap_or_default();
        let dtype = x.dtype;
        let copies = self.expanded_indices(indices, &common);
        let y = self.empty(shape, dtype);
        let inputs: Vec<&TensorBody> = operands.iter().map(|operand| &**operand).collect();
        self.launch(Kernel::MemoryOnly(op.name()), &inputs, &[&y]);
        drop(copies);
        let whole = x.shape.clone();
        let indices: Vec<Tensor> = indices.iter().map(|index| index.detached()).collect();
        let shapes: Vec<Vec<Extent>> = indices.iter().map(|index| index.shape.clone()).collect();
        drop(indices);
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let grad_x = eager.empty(&whole, gradient.dtype);
            eager.launch(Kernel::Fill(0.0), &[], &[&grad_x]);
            let indices: Vec<Tensor> = ["0", "1", "2", "3", "4"]
                .into_iter()
                .take(shapes.len())
                .map(|name| Tensor::clone(saved.get(name)))
                .collect();
            eager.accumulate_at(&indices, &common, &grad_x);
            vec![Some(Rc::new(grad_x))]
        });
        Ok(y)
    }

    fn expanded_indices(&mut self, indices: &[Tensor], common: &[Extent]) -> Vec<TensorBody> {
        let small = indices.iter().filter(|index| index.shape != common);
        let count = small.count();
        (0..count)
            .map(|_| self.empty(common, DType::Int64))
            .collect()
    }

    /// `index_put_(accumulate=True)`: linear positions, their sort and its buffer.
    fn accumulate_at(&mut self, indices: &[Tensor], common: &[Extent], into: &TensorBody) {
        let copies = self.expanded_indices(indices, common);
        let count = numel(common);
        let positions = |eager: &mut Eager| {
            eager.scratch_by("index positions", move |batch| 8 * count.at(batch))
        };
        let mut linear = positions(self);
        for index in 0..indices.len() {
            let next = positions(self);
            if index > 0 {
                // The sum of two indices replaces both.
                let sum = positions(self);
                drop(next);
                linear = sum;
            } else {
                drop(next);
            }
        }
        drop(copies);
        let sorted = positions(self);
        let original = positions(self);
        let iota = positions(self);
        drop(self.sort_buffer(count, 12_288));
        self.launch(Kernel::MemoryOnly("index_put_"), &[], &[into]);
        drop(iota);
        drop(original);
        drop(sorted);
        drop(linear);
    }

    /// The radix sort's buffer for so many int64 keys, measured from 3,072 to 262,144 of them; sorting
    /// positions in fewer bits takes `less`.
    fn sort_buffer(&mut self, count: Extent, less: u64) -> Rc<Storage> {
        let card = self.capability;
        self.scratch_by("radix sort", move |batch| {
            let count = count.at(batch);
            if count <= ONE_BLOCK {
                1
            } else {
                super::embedding::radix_bytes(&card, count).saturating_sub(less)
            }
        })
    }

    /// `index_put_`, `index_add`, `scatter`: the written values' gradient is looked up.
    fn write_at(&mut self, op: &Indexed, operands: &[Tensor]) -> Result<Tensor, Stop> {
        let x = &operands[0];
        let last = operands.len() - 1;
        let values = operands.last().filter(|_| last > 1);
        let index = &operands[1];
        let mut draft = Draft::new(self, &[Some(x), values]);
        draft.save(self, "index", index)?;
        let fresh = match op {
            Indexed::Add { fresh } => *fresh,
            Indexed::Scatter { in_place, .. } => !in_place,
            _ => false,
        };
        let y = if fresh {
            self.empty(&x.shape, x.dtype)
        } else {
            x.alias(x.shape.clone(), x.strides.clone())
        };
        let inputs: Vec<&TensorBody> = operands[1..].iter().map(|operand| &**operand).collect();
        self.launch(Kernel::MemoryOnly(op.name()), &inputs, &[&y]);
        if let Indexed::Put { accumulate: true } = op {
            let indices = &operands[1..last];
            let common = index.shape.clone();
            self.accumulate_at(indices, &common, &y);
        }
        let wants = [x.requires_grad(), values.is_some_and(|v| v.requires_grad())];
        let shape = values
            .map(|values| values.shape.clone())
            .unwrap_or_default();
        // Adding leaves the gradient of what is added to as it is; overwriting clears parts of a copy.
        let adds = match op {
            Indexed::Scatter { adds, .. } => *adds,
            Indexed::Put { accumulate } => *accumulate,
            _ => true,
        };
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let kept = wants[0].then(|| {
                if adds {
                    return Tensor::clone(gradient);
                }
                let copy = eager.empty(&gradient.shape, gradient.dtype);
                eager.launch(Kernel::Copy, &[gradient], &[&copy]);
                Tensor::new(copy)
            });
            let written = wants[1].then(|| {
                let result = eager.empty(&shape, gradient.dtype);
                eager.launch(Kernel::MemoryOnly("index"), &[gradient], &[&result]);
                Tensor::new(result)
            });
            vec![kept, written]
        });
        Ok(y)
    }

    /// `max(dim)`, `topk`: values, then positions, which are saved.
    fn choose(&mut self, op: &Indexed, x: &Tensor, shape: &[Extent]) -> Result<Vec<Tensor>, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        let values = self.empty(shape, x.dtype);
        let places = Tensor::new(self.empty(shape, DType::Int64));
        self.launch(Kernel::MemoryOnly(op.name()), &[x], &[&values, &places]);
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
        let count = x.shape.get(dim).copied();
        let (all, card) = (x.numel(), self.capability);
        // The positions along the dimension.
        let keys = self.scratch_by("sort", move |batch| {
            8 * count.map_or(1, |count| count.at(batch))
        });
        let buffer = self.scratch_by("radix sort", move |batch| {
            let length = count.map_or(1, |count| count.at(batch));
            if length <= 4096 || all.at(batch) > length {
                0
            } else {
                super::embedding::radix_bytes(&card, length)
            }
        });
        self.launch(Kernel::MemoryOnly(op.name()), &[x], &[&values, &places]);
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
        // One row is scanned by a library, in a buffer of its own.
        if x.shape.len() == 1 {
            drop(self.scratch(1023));
        }
        self.launch(Kernel::MemoryOnly("cumsum"), &[x], &[&y]);
        drop(converted);
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            // Turned round, summed, and turned round again.
            let cast = (gradient.dtype != own).then(|| eager.copy_as(gradient, own));
            let turned = eager.empty(&gradient.shape, own);
            let sums = eager.empty(&gradient.shape, own);
            let grad_x = eager.empty(&gradient.shape, own);
            eager.launch(Kernel::MemoryOnly("cumsum"), &[gradient], &[&grad_x]);
            drop(sums);
            drop(turned);
            drop(cast);
            vec![Some(Rc::new(grad_x))]
        });
        y
    }
}

/// A tensor with a dimension behind `dim`, `times` long and with this stride.
fn apart(x: &TensorBody, dim: usize, times: u64, stride: Extent) -> TensorBody {
    let (mut shape, mut strides) = (x.shape.clone(), x.strides.clone());
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
