//! Writing to places: what is copied, and what the derivatives keep and make.

use std::rc::Rc;

use super::{along, kernel};
use crate::ops::View;
use crate::ops::data_dependent::Beyond;
use crate::ops::elementwise::expanded;
use crate::ops::placing::Combine;
use crate::ops::prelude::*;
use crate::ops::view::gradient_view;

impl Eager {
    /// The tensor itself under another name, or a copy of it in its layout.
    fn target(&mut self, x: &Tensor, in_place: bool) -> TensorBody {
        if in_place {
            return x.same();
        }
        self.copied(x, x.dtype)
    }

    /// The tensor itself under another name, or a contiguous copy of it, whatever its layout is.
    pub(super) fn written_or_copied(&mut self, x: &Tensor, in_place: bool) -> TensorBody {
        if in_place {
            x.same()
        } else {
            self.row_major_copy(x)
        }
    }

    /// The tensor itself where it has this shape.
    pub fn expand_to(&mut self, x: &Tensor, shape: &[Extent]) -> Tensor {
        if *x.shape == *shape {
            Tensor::clone(x)
        } else {
            self.expand(x, shape)
        }
    }

    /// `index_copy`: the derivative asks what it wrote for its shape, and so keeps all of it.
    pub(super) fn index_copy(
        &mut self,
        [x, index, source]: [&Tensor; 3],
        dim: usize,
        in_place: bool,
    ) -> Output {
        let wants = [x.requires_grad(), source.requires_grad()];
        let mut draft = OpRecord::new(self, &[Some(x), Some(source)]);
        draft.save(self, "index", index)?;
        if wants[1] {
            draft.save(self, "source", source)?;
        }
        let y = self.written_or_copied(x, in_place);
        self.write_along(&y, dim, index, (Combine::Replace, Ok(&**source)));
        let shape = source.shape.clone();
        let written = in_place.then_some(x);
        draft.finish_into(self, written, y, move |eager, gradient, saved| {
            let index = saved.get("index");
            // What was written over gets none.
            let kept = wants[0].then(|| {
                let kept = eager.copy_as(gradient, gradient.dtype);
                eager.write_along(&kept, dim, index, (Combine::Replace, Err(0.0)));
                kept
            });
            let written = wants[1].then(|| {
                let selected = Tensor::new(eager.empty(&shape, gradient.dtype));
                eager.select_along(gradient, dim, index, &selected);
                let view = selected.same();
                gradient_view(&selected, view)
            });
            vec![kept, written]
        })
    }

    /// `index_fill` with a number.
    pub(super) fn index_fill(
        &mut self,
        [x, index]: [&Tensor; 2],
        (dim, value): (usize, f64),
        in_place: bool,
    ) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "index", index)?;
        let y = self.target(x, in_place);
        self.write_along(&y, dim, index, (Combine::Replace, Err(value)));
        let written = in_place.then_some(x);
        draft.finish_into(self, written, y, move |eager, gradient, saved| {
            let kept = eager.copy_as(gradient, gradient.dtype);
            let cleared = (Combine::Replace, Err(0.0));
            eager.write_along(&kept, dim, saved.get("index"), cleared);
            vec![Some(kept)]
        })
    }

    /// `take`.
    pub(super) fn take(&mut self, x: &Tensor, index: &Tensor) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "index", index)?;
        draft.save(self, "self", x)?;
        let y = self.empty(&index.shape, x.dtype);
        self.launch(kernel::take(), &[x, index], &[&y]);
        Ok(draft.finish_one(self, y, |eager, gradient, saved| {
            let x = saved.get("self");
            let grad_x = eager.zeros_like(x, x.dtype);
            let added = (Combine::Add, Ok(&**gradient));
            eager.put_flat(&grad_x, saved.get("index"), added);
            Rc::new(grad_x)
        }))
    }

    /// `take_along_dim`, which is `gather` of operands that are expanded or flattened.
    pub(super) fn take_along(&mut self, x: &Tensor, index: &Tensor, dim: Option<usize>) -> Output {
        let Some(dim) = dim else {
            let flat = self.reshape(x, &[x.numel()]);
            let places = self.reshape(index, &[index.numel()]);
            return self.gather(&flat, &places, 0);
        };
        let [of_x, of_index] = along(&x.shape, &index.shape, dim).expect("checked when built");
        let (x, index) = (self.expand_to(x, &of_x), self.expand_to(index, &of_index));
        self.gather(&x, &index, dim)
    }

    /// `put`: what it writes gets what is taken.
    pub(super) fn put(
        &mut self,
        [x, index, source]: [&Tensor; 3],
        accumulate: bool,
        in_place: bool,
    ) -> Output {
        let wants = [x.requires_grad(), source.requires_grad()];
        let mut draft = OpRecord::new(self, &[Some(x), Some(source)]);
        draft.save(self, "index", index)?;
        draft.save(self, "source", source)?;
        let y = self.target(x, in_place);
        let combine = if accumulate {
            Combine::Add
        } else {
            Combine::Replace
        };
        self.put_flat(&y, index, (combine, Ok(&**source)));
        let like = (source.shape.clone(), source.dtype);
        let written = in_place.then_some(x);
        draft.finish_into(self, written, y, move |eager, gradient, saved| {
            let index = saved.get("index");
            let kept = wants[0].then(|| {
                if accumulate {
                    return Tensor::clone(gradient);
                }
                let _zeros = eager.empty(&like.0, like.1);
                let kept = eager.copy_as(gradient, gradient.dtype);
                eager.put_flat(&kept, index, (Combine::Replace, Err(0.0)));
                kept
            });
            let written = wants[1].then(|| {
                let taken = Tensor::new(eager.empty(&like.0, gradient.dtype));
                eager.launch(kernel::take(), &[gradient, index], &[&taken]);
                taken
            });
            vec![kept, written]
        })
    }

    /// `masked_scatter`: as many elements of the source as the mask has true ones, which is taken to be all.
    pub(super) fn masked_scatter(
        &mut self,
        [x, mask, source]: [&Tensor; 3],
        in_place: bool,
    ) -> Output {
        let wants = [x.requires_grad(), source.requires_grad()];
        let shape = broadcast(&x.shape, &mask.shape).expect("checked when built");
        let seen = if in_place {
            Tensor::clone(x)
        } else {
            self.expand_to(x, &shape)
        };
        let mut draft = OpRecord::new(self, &[Some(&seen), Some(source)]);
        draft.save(self, "mask", mask)?;
        let y = self.written_or_copied(&seen, in_place);
        let written = Tensor::new(y.same());
        self.scatter_masked(&written, mask, source);
        drop(written);
        let of_source = source.shape.clone();
        let rows = source.numel();
        let written = in_place.then_some(x);
        draft.finish_into(self, written, y, move |eager, gradient, saved| {
            let mask = saved.get("mask");
            let kept = wants[0].then(|| {
                let kept = eager.copy_as(gradient, gradient.dtype);
                let seen = expanded(mask, &kept.shape);
                eager.launch(kernel::cleared_under_mask(), &[&seen, gradient], &[&kept]);
                kept
            });
            let written = wants[1].then(|| {
                // All of a mask as large as the source are taken for as many as the source has.
                let selected = eager.selected(gradient, mask, rows, Beyond::Nowhere);
                let view = expanded_flat(&selected, &of_source);
                gradient_view(&selected, view)
            });
            vec![kept, written]
        })
    }

    /// `select_scatter` and its like: a copy of all that the first operand's memory holds, and the gradient
    /// with zeros in the place.
    pub(super) fn scatter_into(
        &mut self,
        [x, source]: [&Tensor; 2],
        view: &View,
        context: &Context<'_>,
    ) -> Tensor {
        let wants = [x.requires_grad(), source.requires_grad()];
        let draft = OpRecord::new(self, &[Some(x), Some(source)]);
        let y = self.clone_with_strides(x);
        let results = context.results.to_vec();
        let context = (context.inference, context.parameters);
        let place = move |eager: &mut Eager, whole: &TensorBody, view: &View| {
            let context = Context {
                results: &results,
                inference: context.0,
                parameters: context.1,
                noise: None,
                goes_back_to: None,
                asks_for: None,
                of_buffer: false,
            };
            let bare = Tensor::new(whole.same());
            let seen = view.run(eager, &[bare], &context);
            seen.expect("views do not stop").swap_remove(0)
        };
        let into = place(self, &y, view);
        self.launch(Kernel::Copy, &[source], &[&into]);
        drop(into);
        let (like, view) = ((source.shape.clone(), source.dtype), view.clone());
        draft.finish_single(self, y, move |eager, gradient, _| {
            let kept = wants[0].then(|| {
                let _zeros = eager.empty(&like.0, like.1);
                let kept = eager.clone_with_strides(gradient);
                let cleared = place(eager, &kept, &view);
                eager.launch(Kernel::Fill(0.0), &[], &[&cleared]);
                Tensor::new(kept)
            });
            let written = wants[1].then(|| {
                let seen = place(eager, gradient, &view);
                gradient_view(gradient, seen.same())
            });
            vec![kept, written]
        })
    }

    /// `clone_preserve_strides`: a copy of the whole memory that a tensor is part of.
    fn clone_with_strides(&mut self, x: &Tensor) -> TensorBody {
        let whole = self.elements_of_storage(x);
        let copy = self.empty(&[whole], x.dtype);
        let mut copy = copy.alias(x.shape.clone(), x.strides.clone());
        copy.offset = x.offset;
        // What else that memory holds is never read.
        self.launch(Kernel::Copy, &[x], &[&copy]);
        copy
    }
}

/// The first elements of a flat tensor under another shape.
fn expanded_flat(flat: &Tensor, shape: &[Extent]) -> TensorBody {
    let seen = flat.alias(shape.to_vec(), contiguous_strides(shape));
    expanded(&seen, shape)
}
