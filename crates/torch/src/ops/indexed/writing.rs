//! Writing at looked-up places: `index_put_`, `index_add` and `scatter`.

use std::rc::Rc;

use super::run::{INDICES, common_shape, looked_up_shape, saved_indices};
use crate::eager::Storage;
use crate::ops::Indexed;
use crate::ops::data_dependent::Beyond;
use crate::ops::elementwise::expanded;
use crate::ops::embedding::radix_bytes;
use crate::ops::placing::{self, Combine};
use crate::ops::prelude::*;
use crate::ops::view::gradient_view;

/// Where `index_put_(accumulate=True)` adds.
pub struct Places<'a> {
    /// Tensors of positions, or of truth values.
    pub indices: &'a [Tensor],
    /// How many places truth values choose.
    pub rows: Option<Extent>,
    /// The dimensions that are looked up in.
    pub marked: &'a [bool],
    /// Whether positions are checked against the dimensions' lengths: where a model's code wrote them, not
    /// in a derivative.
    pub checked: bool,
}

impl Places<'_> {
    /// Whether the dimensions looked up in are neighbours; else the tensor is transposed and copied.
    fn are_neighbours(&self) -> bool {
        let found = |from_end: bool| {
            let mut all = self.marked.iter();
            if from_end {
                all.rposition(|marked| *marked)
            } else {
                all.position(|marked| *marked)
            }
        };
        match (found(false), found(true)) {
            (Some(first), Some(last)) => {
                last - first + 1 == self.marked.iter().filter(|marked| **marked).count()
            }
            _ => true,
        }
    }

    /// How many elements each position stands for: those of the dimensions after the last that is marked, or
    /// of all others where the marked ones were moved to the front.
    fn slice(&self, shape: &[Extent]) -> Extent {
        let last = self.marked.iter().rposition(|marked| *marked);
        let is_marked = |dim: usize| self.marked.get(dim).copied().unwrap_or(false);
        let neighbours = self.are_neighbours();
        let inside =
            |dim: &usize| !is_marked(*dim) && (!neighbours || last.is_none_or(|last| *dim > last));
        let lengths: Vec<Extent> = (0..shape.len())
            .filter(inside)
            .map(|dim| shape[dim])
            .collect();
        numel(&lengths)
    }
}

/// Bits of the largest of so many positions.
fn bits_below(count: u64) -> u64 {
    let largest = count.saturating_sub(1).max(1);
    u64::from(largest.ilog2()) + 1
}

impl Eager {
    /// `index_put_(accumulate=True)`: linear positions, their sort and its buffer. Values that are not
    /// contiguous are copied, and so is a tensor whose looked-up dimensions are not neighbours.
    pub fn accumulate_at(&mut self, places: &Places<'_>, values: &Tensor, into: &TensorBody) {
        // Truth values that were read by are repeated as they were then.
        let beyond = if places.checked {
            Beyond::Nowhere
        } else {
            Beyond::Repeat
        };
        let found = self.positions(places.indices, places.rows, beyond);
        let common = common_shape(&found);
        let count = numel(&common);
        let positions = |eager: &mut Eager| eager.scratch_of(count, DType::Int64);
        let mut linear: Option<Rc<Storage>> = None;
        for index in &found {
            if places.checked {
                // The largest and the smallest.
                let index = Tensor::new(expanded(index, &common));
                self.bounds_check(&index);
                self.bounds_check(&index);
            }
            let wrapped = positions(self);
            let scaled = positions(self);
            drop(wrapped);
            // Those of further indices are added to the first's.
            linear.get_or_insert(scaled);
        }
        let rows = linear
            .as_ref()
            .map(|linear| TensorBody::over(linear, vec![count], DType::Int64));
        if let Some(rows) = &rows {
            self.linear_positions(into, places.marked, &found, rows);
        }
        drop(found);
        let values = self.dense_copy(values);
        let moved = (!places.are_neighbours()).then(|| self.empty(&into.shape, into.dtype));
        let sorted = positions(self);
        let original = positions(self);
        let iota = positions(self);
        let of = (
            self.capability,
            count,
            into.numel(),
            places.slice(&into.shape),
        );
        let buffer = self.scratch_by("radix sort", of, |&(card, count, all, slice), batch| {
            let bits = bits_below(all.at(batch) / slice.at(batch).max(1));
            match count.at(batch) {
                0 => 0,
                count => radix_bytes(&card, count, bits),
            }
        });
        drop((buffer, iota));
        if let Some(rows) = &rows {
            self.add_to_rows(into, places.marked, rows, &values);
        }
        drop((rows, original, sorted, moved, values, linear));
    }

    /// What `index_put` and `scatter_add` read and write: autocast promotes both to the widest type.
    fn promoted(&mut self, op: &Indexed, operands: &[Tensor]) -> Vec<Tensor> {
        let mut operands = operands.to_vec();
        let last = operands.len() - 1;
        let promotes = matches!(
            op,
            Indexed::Put { fresh: true, .. }
                | Indexed::Scatter {
                    adds: true,
                    in_place: false,
                    ..
                }
        );
        if promotes && self.autocast.is_some() && last > 1 {
            let widest = operands[0].dtype.promote(operands[last].dtype);
            for place in [last, 0] {
                operands[place] = self.cast(&operands[place], widest);
            }
        }
        operands
    }

    /// `index_put_`, `index_add`, `scatter`: the written values' gradient is looked up.
    pub fn write_at(&mut self, op: &Indexed, operands: &[Tensor]) -> Output {
        let last = operands.len() - 1;
        let operands = self.promoted(op, operands);
        let x = &operands[0];
        let values = operands.last().filter(|_| last > 1);
        let indices = if last > 1 {
            &operands[1..last]
        } else {
            &operands[1..]
        };
        let wants = [x.requires_grad(), values.is_some_and(|v| v.requires_grad())];
        let mut draft = OpRecord::new(self, &[Some(x), values]);
        self.save_for_writing(&mut draft, op, (indices, values), wants[1])?;
        let mut written = None;
        let y = match op {
            Indexed::Put { fresh: true, .. } => self.copied(x, x.dtype),
            Indexed::Add { fresh: true, .. }
            | Indexed::Scatter {
                in_place: false, ..
            } => self.empty(&x.shape, x.dtype),
            _ => {
                written = Some(x);
                x.same()
            }
        };
        if let (
            Indexed::Put {
                accumulate: true,
                marked,
                rows,
                ..
            },
            Some(values),
        ) = (op, values)
        {
            let places = Places {
                indices,
                rows: *rows,
                marked,
                checked: true,
            };
            let shape = looked_up_shape(marked, x, indices, *rows);
            let values = Tensor::new(expanded(values, &shape));
            self.accumulate_at(&places, &values, &y);
        } else {
            if written.is_none() && !matches!(op, Indexed::Put { .. }) {
                self.launch(Kernel::Copy, &[x], &[&y]);
            }
            let found = self.places_to_write(op, indices, values.map(|values| &**values));
            let written = match (values, op) {
                (None, Indexed::Scatter { value, .. }) => Err(value.unwrap_or(0.0)),
                (Some(values), _) => values.number.map_or(Ok(&**values), Err),
                (None, _) => Err(0.0),
            };
            self.write(op, &y, (indices, &found.1), written);
        }
        let values_like = values.map(|values| (values.shape.clone(), values.dtype));
        let of_host = values.is_some_and(|values| values.is_of_host);
        let put = match op {
            Indexed::Put { marked, rows, .. } => Some(looked_up_shape(marked, x, indices, *rows)),
            _ => None,
        };
        let count = indices.len();
        let op = op.clone();
        draft.finish_into(self, written, y, move |eager, gradient, saved| {
            let values_like = values_like.as_ref();
            let indices = || saved_indices(saved, count);
            let kept = wants[0].then(|| {
                let is_saved = !matches!(
                    op,
                    Indexed::Add { .. } | Indexed::Scatter { adds: true, .. }
                );
                let indices = if is_saved { indices() } else { Vec::new() };
                // Zeros like a number of the host's are one too.
                let values_like = values_like.filter(|_| !of_host);
                eager.gradient_of_overwritten(&op, gradient, (&indices, values_like))
            });
            let written = values_like.filter(|_| wants[1]).map(|(shape, _)| {
                let indices = indices();
                eager.gradient_of_written(&op, gradient, &indices, put.as_deref().unwrap_or(shape))
            });
            vec![kept, written]
        })
    }

    /// Writes values, or what stands for them, to their places. `found` are the positions of `index_put_`.
    fn write(
        &mut self,
        op: &Indexed,
        into: &TensorBody,
        (indices, found): (&[Tensor], &[Tensor]),
        values: Result<&TensorBody, f64>,
    ) {
        match op {
            Indexed::Put { marked, rows, .. } if found.is_empty() && rows.is_some() => {
                self.fill_masked(into, marked, &indices[0], values);
            }
            Indexed::Put { marked, .. } => self.overwrite_at(into, marked, found, values),
            Indexed::Add { dim, alpha, .. } => match (*alpha, values) {
                (Some(alpha), Ok(values)) => {
                    let how = (Combine::AddTimes(alpha), Ok(values));
                    self.write_along(into, *dim, &indices[0], how);
                }
                _ => self.write_along(into, *dim, &indices[0], (Combine::Add, values)),
            },
            Indexed::Scatter { dim, adds, .. } => {
                let combine = if *adds {
                    Combine::Add
                } else {
                    Combine::Replace
                };
                self.scatter_along(into, *dim, &indices[0], (combine, values));
            }
            _ => {}
        }
    }

    /// Writes one number wherever a mask is true.
    fn fill_masked(
        &mut self,
        into: &TensorBody,
        marked: &[bool],
        mask: &TensorBody,
        value: Result<&TensorBody, f64>,
    ) {
        // Dimensions behind those that the mask has repeat it.
        let first = marked.iter().position(|marked| *marked).unwrap_or(0);
        let rank = into.shape.len();
        let mut strides = vec![Extent::ZERO; rank];
        for (stride, own) in strides[first.min(rank)..].iter_mut().zip(&mask.strides) {
            *stride = *own;
        }
        let mask = mask.alias(into.shape.clone(), strides);
        let body = "result = mask ? (T)value : (T)old;";
        match value {
            Ok(value) => {
                let kernel = Generated::map("index_put_", ["mask", "value", "old"], body);
                self.launch(kernel, &[&mask, value, into], &[into]);
            }
            Err(number) => {
                let kernel = Generated::map("index_put_", ["mask", "old"], body);
                self.launch(kernel.with("value", number), &[&mask, into], &[into]);
            }
        }
    }

    /// What `index_put_` makes of indices before it overwrites what is there. One number of the host's under a
    /// mask is filled in (`canDispatchToMaskedFill`).
    fn places_to_write(
        &mut self,
        op: &Indexed,
        indices: &[Tensor],
        values: Option<&TensorBody>,
    ) -> (Vec<TensorBody>, Vec<Tensor>) {
        let Indexed::Put { rows, .. } = op else {
            return (Vec::new(), Vec::new());
        };
        let fills = rows.is_some() && values.is_none_or(|values| values.is_of_host);
        if fills {
            return (Vec::new(), Vec::new());
        }
        let found = self.positions(indices, *rows, Beyond::Nowhere);
        let copies = self.alike_indices(&found, &common_shape(&found));
        (copies, found)
    }

    /// The gradient of the values written: what is at their places.
    fn gradient_of_written(
        &mut self,
        op: &Indexed,
        gradient: &Tensor,
        indices: &[Tensor],
        shape: &[Extent],
    ) -> Tensor {
        let found = match op {
            Indexed::Put { rows, .. } => self.positions(indices, *rows, Beyond::Nowhere),
            _ => Vec::new(),
        };
        let copies = self.alike_indices(&found, &common_shape(&found));
        let result = Tensor::new(self.empty(shape, gradient.dtype));
        match op {
            Indexed::Put { marked, .. } => {
                self.look_up(true, gradient, (marked, &found), &result);
            }
            Indexed::Add { dim, .. } => self.select_along(gradient, *dim, &indices[0], &result),
            Indexed::Scatter { dim, .. } => {
                let kernel = placing::gather(gradient.shape.len(), *dim);
                self.launch(kernel, &[gradient, &indices[0]], &[&result]);
            }
            _ => {}
        }
        drop((copies, found));
        match op {
            Indexed::Add {
                alpha: Some(alpha), ..
            } => self.mul_scalar(&result, *alpha),
            // It is seen in the shape of what was added, which makes it a view.
            Indexed::Add { .. } => {
                let view = result.same();
                gradient_view(&result, view)
            }
            _ => result,
        }
    }

    /// What is kept for the derivatives of writing. What only one of them reads is kept only for that one;
    /// `index_add` asks what it added for its shape, and so keeps all of it.
    fn save_for_writing(
        &mut self,
        draft: &mut OpRecord,
        op: &Indexed,
        (indices, values): (&[Tensor], Option<&Tensor>),
        values_are_trained: bool,
    ) -> Result<(), Stop> {
        let adds = matches!(
            op,
            Indexed::Add { .. } | Indexed::Scatter { adds: true, .. }
        );
        if !adds || values_are_trained {
            for (name, index) in INDICES.into_iter().zip(indices) {
                draft.save(self, name, index)?;
            }
        }
        match (op, values) {
            (Indexed::Add { .. }, Some(source)) if values_are_trained => {
                draft.save(self, "source", source)
            }
            _ => Ok(()),
        }
    }

    /// The gradient of what was written into: adding leaves it as it is, overwriting clears parts of a copy.
    fn gradient_of_overwritten(
        &mut self,
        op: &Indexed,
        gradient: &Tensor,
        (indices, values): (&[Tensor], Option<&(Sizes, DType)>),
    ) -> Tensor {
        let adds = match op {
            Indexed::Add { .. } => true,
            Indexed::Scatter { adds, .. } => *adds,
            Indexed::Put { accumulate, .. } => *accumulate,
            _ => false,
        };
        if adds {
            return Tensor::clone(gradient);
        }
        let zeros = match (op, values) {
            (Indexed::Put { .. }, Some((shape, dtype))) => Some(self.empty(shape, *dtype)),
            _ => None,
        };
        let copy = self.row_major_copy(gradient);
        let found = self.places_to_write(op, indices, zeros.as_ref());
        self.write(op, &copy, (indices, &found.1), Err(0.0));
        Tensor::new(copy)
    }
}
