//! What finding elements by their values takes.

use std::rc::Rc;

use super::cub::{count_bytes, scan_bytes, select_bytes};
use super::kernel::{self, Beyond};
use crate::ops::elementwise::expanded;
use crate::ops::embedding::{ALL_BITS, radix_bytes};
use crate::ops::placing::Combine;
use crate::ops::prelude::*;

impl Eager {
    /// `nonzero`: how many there are, then where. `nonzero_cuda_out_impl` in `Nonzero.cu`.
    pub fn nonzero(&mut self, x: &Tensor, rows: Extent, beyond: Beyond) -> Tensor {
        let (card, all) = (self.capability, x.numel());
        let dense = self.dense_copy(x);
        let _count = self.scratch(4);
        drop(
            self.scratch_by("count of nonzero", (card, all), |(card, all), batch| {
                count_bytes(card, all.at(batch))
            }),
        );
        // It is made turned round: all places along the first dimension are neighbours.
        let rank = Extent::fixed(x.shape.len() as u64);
        let places = self.empty_strided(&[rows, rank], vec![Extent::ONE, rows], DType::Int64);
        drop(
            self.scratch_by("places of nonzero", (card, all), |(card, all), batch| {
                select_bytes(card, all.at(batch))
            }),
        );
        if !x.shape.is_empty() {
            self.launch(
                kernel::nonzero(x.shape.len(), beyond),
                &[&dense],
                &[&places],
            );
        }
        Tensor::new(places)
    }

    /// `nonzero`, seen as one tensor for each dimension.
    pub fn places(&mut self, x: &Tensor, rows: Extent, beyond: Beyond) -> Vec<Tensor> {
        let all = self.nonzero(x, rows, beyond);
        Eager::columns_of(&all, x.shape.len())
    }

    /// The columns of places that [`Eager::nonzero`] found.
    fn columns_of(all: &Tensor, rank: usize) -> Vec<Tensor> {
        let rows = all.shape[0];
        let along = |dim: usize| {
            let mut places = all.alias(vec![rows], vec![Extent::ONE]);
            places.offset = Extent::fixed(dim as u64) * rows;
            Tensor::new(places)
        };
        (0..rank).map(along).collect()
    }

    /// `masked_select(x, mask)`: a look-up with both expanded. Its gradient is put into zeros.
    pub fn masked_select(&mut self, x: &Tensor, mask: &Tensor, rows: Extent) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "mask", mask)?;
        draft.save(self, "self", x)?;
        let y = self.selected(x, mask, rows, Beyond::Repeat);
        let y = Rc::try_unwrap(y).expect("made just now");
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            let (x, mask) = (saved.get("self"), saved.get("mask"));
            let shape = broadcast(&x.shape, &mask.shape).expect("checked when built");
            let zeros = eager.zeros_like(&expanded(x, &shape), gradient.dtype);
            let zeros = Tensor::new(zeros);
            eager.scatter_masked(&zeros, mask, gradient);
            zeros
        }))
    }

    /// The elements of `x` where `mask` is true, both expanded to a common shape.
    pub fn selected(&mut self, x: &Tensor, mask: &Tensor, rows: Extent, beyond: Beyond) -> Tensor {
        let shape = broadcast(&x.shape, &mask.shape).expect("checked when built");
        let mask = Tensor::new(expanded(mask, &shape));
        let places = self.nonzero(&mask, rows, beyond);
        let y = self.empty(&[rows], x.dtype);
        let (rank, seen) = (shape.len(), expanded(x, &shape));
        let columns = Eager::columns_of(&places, rank);
        self.look_up(true, &seen, (&vec![true; rank], &columns), &y);
        Tensor::new(y)
    }

    /// `masked_scatter_`: which element goes where follows from sums of the mask. `IndexKernel.cpp` and
    /// `masked_scatter.cu` of PyTorch's CUDA backend.
    pub fn scatter_masked(&mut self, into: &Tensor, mask: &Tensor, source: &Tensor) {
        let all = into.numel();
        let mask = Tensor::new(expanded(mask, &into.shape));
        let sums = self.empty(&into.shape, DType::Int64);
        let dense = self.dense_copy(&mask);
        drop(self.scratch_by("sums of a mask", all, |all, batch| {
            scan_bytes(all.at(batch))
        }));
        let source = self.dense_copy(source);
        self.launch(kernel::counted(dense.shape.len()), &[&dense], &[&sums]);
        let kernel = kernel::masked_scatter();
        self.launch(kernel, &[&dense, &sums, &source], &[into]);
    }

    /// `repeat_interleave(repeats)`: sums of the repetitions, the last of which is how many there are.
    pub fn repeated_places(&mut self, repeats: &Tensor, rows: Extent) -> Tensor {
        let all = repeats.numel();
        let sums = self.empty(&repeats.shape, DType::Int64);
        drop(self.scratch_by("sums of repetitions", all, |all, batch| {
            scan_bytes(all.at(batch))
        }));
        self.launch(kernel::counted(repeats.shape.len()), &[repeats], &[&sums]);
        let places = self.empty(&[rows], repeats.dtype);
        self.computed(places, kernel::repeated_places(), &[&sums])
    }

    /// `bincount`: the smallest and the largest element are read by the host first.
    pub fn bincount(&mut self, x: &Tensor, rows: Extent) -> Tensor {
        let dense = self.dense_copy(x);
        self.extreme_position(x.numel());
        self.extreme_position(x.numel());
        let counts = self.zeros(&[rows], DType::Int64);
        self.scatter_along(&counts, 0, &dense, (Combine::Add, Err(1.0)));
        Tensor::new(counts)
    }

    /// `_unique2`: elements are sorted, with where they were if that is asked for; those that differ from the one
    /// before are kept. `UniqueCub.cu`.
    pub fn unique(
        &mut self,
        x: &Tensor,
        rows: Extent,
        [inverse, counts]: [bool; 2],
        sorts: bool,
    ) -> Vec<Tensor> {
        let (card, all, dtype) = (self.capability, x.numel(), x.dtype);
        let dense = self.dense_copy(x);
        let flat = [all];
        let mut sorted = Vec::new();
        if sorts {
            sorted.push(self.empty(&flat, dtype));
            if inverse {
                sorted.extend([(); 2].map(|()| self.empty(&flat, DType::Int64)));
            }
            drop(
                self.scratch_by("radix sort", (card, all), |(card, all), batch| {
                    radix_bytes(card, all.at(batch), ALL_BITS)
                }),
            );
        }
        let places = inverse.then(|| self.empty(&x.shape, DType::Int64));
        if inverse {
            drop(self.scratch_by("sums of distinct", all, |all, batch| {
                scan_bytes(all.at(batch))
            }));
        }
        // As many as there are elements, cut to those that are distinct afterwards.
        let whole = Tensor::new(self.empty(&flat, dtype));
        let found = self.scratch(8);
        let many = counts.then(|| Tensor::new(self.empty(&flat, DType::Int64)));
        drop(
            self.scratch_by("distinct elements", (card, all), |(card, all), batch| {
                select_bytes(card, all.at(batch))
            }),
        );
        let run: &TensorBody = match sorted.first() {
            Some(sorted) => {
                let seen = sorted.alias(dense.shape.clone(), dense.strides.clone());
                self.launch(Kernel::Copy, &[&dense], &[&seen]);
                self.launch(kernel::sorted_in_place(), &[], &[sorted]);
                sorted
            }
            None => &dense,
        };
        let places_in_run = places.as_ref().filter(|_| !sorts);
        let mut outputs: Vec<&TensorBody> = vec![&whole];
        outputs.extend(places_in_run);
        outputs.extend(many.as_deref());
        let kernel = kernel::distinct(run.shape.len(), places_in_run.is_some(), many.is_some());
        self.launch(kernel, &[run], &outputs);
        if let (true, Some(places)) = (sorts, &places) {
            self.launch(kernel::search_sorted(), &[&dense, &whole], &[places]);
        }
        drop((found, sorted));
        let first = |tensor: &Tensor| Tensor::new(tensor.alias(vec![rows], vec![Extent::ONE]));
        let nothing = |eager: &mut Eager| Tensor::new(eager.empty(&[Extent::ZERO], DType::Int64));
        let places = match places {
            Some(places) => Tensor::new(places),
            None => nothing(self),
        };
        let many = match &many {
            Some(many) => first(many),
            None => nothing(self),
        };
        vec![first(&whole), places, many]
    }
}
