//! Writing to places: what is copied, and what the derivatives keep and make.

use std::rc::Rc;

use crate::eager::{Draft, Eager, Stop, Tensor, TensorBody};
use crate::ops::elementwise::expanded;
use crate::ops::view::gradient_view;
use crate::ops::{Context, Operator, View};
use crate::program::Kernel;
use crate::shape::{Extent, strides_like};

impl Eager {
    /// The tensor itself under another name, or a copy of it in its layout.
    fn target(&mut self, x: &Tensor, in_place: bool) -> TensorBody {
        if in_place {
            return x.alias(x.shape.clone(), x.strides.clone());
        }
        let strides = strides_like(&x.shape, &x.strides);
        let copy = self.empty_strided(&x.shape, strides, x.dtype);
        self.launch(Kernel::Copy, &[x], &[&copy]);
        copy
    }

    /// A new tensor like a gradient, which is copied into it.
    fn copy_of(&mut self, gradient: &Tensor) -> Tensor {
        Tensor::new(self.target(gradient, false))
    }

    /// The tensor itself where it has this shape.
    pub(crate) fn expand_to(&mut self, x: &Tensor, shape: &[Extent]) -> Tensor {
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
        in_place: bool,
    ) -> Result<Tensor, Stop> {
        let wants = [x.requires_grad(), source.requires_grad()];
        let mut draft = Draft::new(self, &[Some(x), Some(source)]);
        draft.save(self, "index", index)?;
        if wants[1] {
            draft.save(self, "source", source)?;
        }
        let y = if in_place {
            self.target(x, true)
        } else {
            self.empty(&x.shape, x.dtype)
        };
        self.launch(Kernel::MemoryOnly("index_copy"), &[x, index, source], &[&y]);
        let shape = source.shape.clone();
        let y = draft.finish_into(
            self,
            in_place.then_some(x),
            y,
            move |eager, gradients, _| {
                let Some(gradient) = &gradients[0] else {
                    return vec![None, None];
                };
                // What was written over gets none.
                let kept = wants[0].then(|| eager.copy_of(gradient));
                let written = wants[1].then(|| {
                    let selected = Tensor::new(eager.empty(&shape, gradient.dtype));
                    eager.launch(
                        Kernel::MemoryOnly("index_select"),
                        &[gradient],
                        &[&selected],
                    );
                    let view = selected.alias(selected.shape.clone(), selected.strides.clone());
                    gradient_view(&selected, view)
                });
                vec![kept, written]
            },
        );
        Ok(y)
    }

    /// `index_fill` with a number.
    pub(super) fn index_fill(
        &mut self,
        [x, index]: [&Tensor; 2],
        in_place: bool,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "index", index)?;
        let y = self.target(x, in_place);
        self.launch(Kernel::MemoryOnly("index_fill"), &[index], &[&y]);
        let y = draft.finish_into(self, in_place.then_some(x), y, |eager, gradients, _| {
            vec![
                gradients[0]
                    .as_ref()
                    .map(|gradient| eager.copy_of(gradient)),
            ]
        });
        Ok(y)
    }

    /// `take`.
    pub(super) fn take(&mut self, x: &Tensor, index: &Tensor) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(x)]);
        draft.save(self, "index", index)?;
        draft.save(self, "self", x)?;
        let y = self.empty(&index.shape, x.dtype);
        self.launch(Kernel::MemoryOnly("take"), &[x, index], &[&y]);
        Ok(draft.finish_one(self, y, |eager, gradient, saved| {
            let x = saved.get("self");
            let strides = strides_like(&x.shape, &x.strides);
            let grad_x = eager.empty_strided(&x.shape, strides, x.dtype);
            eager.launch(Kernel::MemoryOnly("put_"), &[gradient], &[&grad_x]);
            Rc::new(grad_x)
        }))
    }

    /// `put`: what it writes gets what is taken.
    pub(super) fn put(
        &mut self,
        [x, index, source]: [&Tensor; 3],
        accumulate: bool,
        in_place: bool,
    ) -> Result<Tensor, Stop> {
        let wants = [x.requires_grad(), source.requires_grad()];
        let mut draft = Draft::new(self, &[Some(x), Some(source)]);
        draft.save(self, "index", index)?;
        draft.save(self, "source", source)?;
        let y = self.target(x, in_place);
        self.launch(Kernel::MemoryOnly("put_"), &[index, source], &[&y]);
        let like = (source.shape.clone(), source.dtype);
        let y = draft.finish_into(
            self,
            in_place.then_some(x),
            y,
            move |eager, gradients, _| {
                let Some(gradient) = &gradients[0] else {
                    return vec![None, None];
                };
                let kept = wants[0].then(|| {
                    if accumulate {
                        return Tensor::clone(gradient);
                    }
                    let zeros = eager.empty(&like.0, like.1);
                    let kept = eager.copy_of(gradient);
                    drop(zeros);
                    kept
                });
                let written = wants[1].then(|| {
                    let taken = Tensor::new(eager.empty(&like.0, gradient.dtype));
                    eager.launch(Kernel::MemoryOnly("take"), &[gradient], &[&taken]);
                    taken
                });
                vec![kept, written]
            },
        );
        Ok(y)
    }

    /// `masked_scatter`: as many elements of the source as the mask has true ones, which is taken to be all.
    pub(super) fn masked_scatter(
        &mut self,
        [x, mask, source]: [&Tensor; 3],
        in_place: bool,
    ) -> Result<Tensor, Stop> {
        let wants = [x.requires_grad(), source.requires_grad()];
        let shape = crate::shape::broadcast(&x.shape, &mask.shape).expect("checked when built");
        let seen = if in_place {
            Tensor::clone(x)
        } else {
            self.expand_to(x, &shape)
        };
        let mut draft = Draft::new(self, &[Some(&seen), Some(source)]);
        draft.save(self, "mask", mask)?;
        let y = if in_place {
            self.target(x, true)
        } else {
            // A contiguous one, whatever the layout was.
            let copy = self.empty(&shape, x.dtype);
            self.launch(Kernel::Copy, &[&seen], &[&copy]);
            copy
        };
        let written = Tensor::new(y.alias(y.shape.clone(), y.strides.clone()));
        self.scatter_masked(&written, mask, source);
        drop(written);
        let of_source = source.shape.clone();
        let rows = source.numel();
        let y = draft.finish_into(
            self,
            in_place.then_some(x),
            y,
            move |eager, gradients, saved| {
                let Some(gradient) = &gradients[0] else {
                    return vec![None, None];
                };
                let mask = saved.get("mask");
                let kept = wants[0].then(|| eager.copy_of(gradient));
                let written = wants[1].then(|| {
                    // All of a mask as large as the source are taken for as many as the source has.
                    let selected = eager.selected(gradient, mask, rows);
                    let view = expanded_flat(&selected, &of_source);
                    gradient_view(&selected, view)
                });
                vec![kept, written]
            },
        );
        Ok(y)
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
        let draft = Draft::new(self, &[Some(x), Some(source)]);
        let y = self.clone_with_strides(x);
        self.launch(Kernel::MemoryOnly("copy_"), &[source], &[&y]);
        let (like, view) = ((source.shape.clone(), source.dtype), view.clone());
        let results = context.results.to_vec();
        let context = (context.inference, context.parameters);
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let kept = wants[0].then(|| {
                let zeros = eager.empty(&like.0, like.1);
                let kept = eager.clone_with_strides(gradient);
                drop(zeros);
                Tensor::new(kept)
            });
            let written = wants[1].then(|| {
                let context = Context {
                    results: &results,
                    inference: context.0,
                    parameters: context.1,
                    noise: None,
                    goes_back_to: None,
                    asks_for: None,
                    of_buffer: false,
                };
                let bare = gradient.detached();
                let seen = view.run(eager, &[bare], &context);
                let seen = seen.expect("views do not stop").swap_remove(0);
                gradient_view(
                    gradient,
                    seen.alias(seen.shape.clone(), seen.strides.clone()),
                )
            });
            vec![kept, written]
        });
        y
    }

    /// `clone_preserve_strides`: a copy of the whole memory that a tensor is part of.
    fn clone_with_strides(&mut self, x: &Tensor) -> TensorBody {
        let whole = self.elements_of_storage(x);
        let copy = self.empty(&[whole], x.dtype);
        self.launch(Kernel::Copy, &[x], &[&copy]);
        let mut copy = copy.alias(x.shape.clone(), x.strides.clone());
        copy.offset = x.offset;
        copy
    }
}

/// The first elements of a flat tensor under another shape.
fn expanded_flat(flat: &Tensor, shape: &[Extent]) -> TensorBody {
    let seen = flat.alias(shape.to_vec(), crate::shape::contiguous_strides(shape));
    expanded(&seen, shape)
}
