//! What is written in place into tensors that have views, and into views.
//!
//! See Note [Writing into views].

use std::rc::Rc;

use super::autograd::{Backward, Edge, GradFn, Slot};
use super::process::Eager;
use super::tensor::{History, Tensor, TensorBody};
use crate::program::Kernel;
use crate::shape::{DType, Extent, Sizes, numel};

/// Which elements of its base a view covers.
#[derive(Debug, Clone)]
struct ViewGeometry {
    dtype: DType,
    offset: Extent,
    shape: Sizes,
    strides: Sizes,
}

impl ViewGeometry {
    fn of(view: &TensorBody, base: &TensorBody) -> ViewGeometry {
        ViewGeometry {
            dtype: view.dtype,
            // Only a flattened parameter starts elsewhere than its memory, and no view of one is written into.
            offset: view.offset.checked_sub(base.offset).unwrap_or(view.offset),
            shape: view.shape.clone(),
            strides: view.strides.clone(),
        }
    }

    /// The same elements of another tensor that lies as the base does.
    fn on(&self, base: &TensorBody) -> TensorBody {
        let mut view = base.alias(self.shape.clone(), self.strides.clone());
        (view.dtype, view.offset) = (self.dtype, self.offset);
        view
    }
}

impl TensorBody {
    /// Whether this is a view of something that has been written into since its history was made, and has one now.
    pub(super) fn is_outdated(&self) -> bool {
        let base = self.base.as_ref();
        base.is_some_and(|base| base.version != self.version && base.history.borrow().is_some())
    }

    /// Notes that it was written into: views of the same base go out of date.
    pub fn count_write(&self) {
        let base = self.base.as_deref().unwrap_or(self);
        base.version.set(base.version.get() + 1);
    }
}

/// Makes `y` a view of `x`, where it shares its memory: what is written into one of them in place is in the other's
/// history.
pub fn viewed(x: &Tensor, mut y: Tensor) -> Tensor {
    if let Some(body) = Rc::get_mut(&mut y)
        && Rc::ptr_eq(&body.storage, &x.storage)
    {
        let base = x.base.as_ref().unwrap_or(x);
        body.version = base.version.clone();
        body.base = Some(Tensor::clone(base));
    }
    y
}

impl Eager {
    /// Where a tensor's gradient goes: of a view whose base was written into since, first to that base
    /// (`VariableHooks::grad_fn` in `variable.cpp`).
    pub(super) fn history_of(&self, tensor: &TensorBody) -> Option<History> {
        if let Some(base) = &tensor.base
            && tensor.is_outdated()
        {
            let edges = vec![Edge::of(self, base)];
            let node = GradFn::record(
                self,
                1,
                edges,
                as_strided_backward(tensor, base),
                Vec::new(),
            );
            tensor.history.replace(Some(History::Made(node, 0)));
            tensor.version.set(base.version.get());
        }
        tensor.history.borrow().clone()
    }

    /// What was `written` into goes on with the history of that (`rebase_history` in `variable.cpp`): a view's base
    /// gets it, wrapped in `CopySlices`, and the view one through its base.
    pub(super) fn rewrite_history(
        &mut self,
        written: &Tensor,
        mut edges: Vec<Edge>,
        formula: Backward,
        saved: Vec<(&'static str, Slot)>,
    ) {
        written.count_write();
        let Some(base) = &written.base else {
            let node = GradFn::record(self, 1, edges, formula, saved);
            written.history.replace(Some(History::Made(node, 0)));
            return;
        };
        edges[0] = Edge::of(self, base);
        let formula = copy_slices(written, base, &edges, formula);
        let node = GradFn::record(self, 1, edges, formula, saved);
        base.history.replace(Some(History::Made(node, 0)));
        // The view's is made at once.
        let _ = self.history_of(written);
    }
}

/// `CopySlices::apply` (`functions/tensor.cpp`): the base's gradient is copied, the formula gets a copy of the part that
/// was written into, and what it makes of that goes back there.
fn copy_slices(
    view: &TensorBody,
    base: &TensorBody,
    edges: &[Edge],
    formula: Backward,
) -> Backward {
    let place = ViewGeometry::of(view, base);
    let (shape, strides) = (base.shape.clone(), base.strides.clone());
    let (count, wanted) = (edges.len(), edges[0].is_wanted());
    Box::new(move |eager, gradients, saved| {
        let Some(gradient) = &gradients[0] else {
            return vec![None; count];
        };
        let result = Tensor::new(eager.empty_strided(&shape, strides, gradient.dtype));
        eager.launch(Kernel::Copy, &[gradient], &[&result]);
        let part = place.on(&result);
        let copy = Tensor::new(eager.empty(&part.shape, part.dtype));
        eager.launch(Kernel::Copy, &[&part], &[&copy]);
        let mut outgoing = formula(eager, &[Some(copy)], saved);
        let of_part = outgoing[0].take().filter(|_| wanted);
        if let Some(of_part) = &of_part {
            eager.launch(Kernel::Copy, &[of_part], &[&part]);
            outgoing[0] = Some(Tensor::clone(&result));
        }
        drop((of_part, part, result));
        outgoing
    })
}

/// `as_strided_backward` (`FunctionsManual.cpp`): zeros as large as the base, with the gradient where the view is, seen as
/// the base. A view of all elements as numbers of another kind is undone (its function is replayed).
fn as_strided_backward(view: &TensorBody, base: &TensorBody) -> Backward {
    let place = ViewGeometry::of(view, base);
    let bytes = |tensor: &TensorBody| tensor.numel() * Extent::fixed(tensor.dtype.size());
    let is_whole = view.dtype != base.dtype && bytes(view) == bytes(base);
    let (shape, strides, dtype) = (base.shape.clone(), base.strides.clone(), base.dtype);
    Box::new(move |eager, gradients, _| {
        let Some(gradient) = &gradients[0] else {
            return vec![None];
        };
        if is_whole {
            let mut seen = gradient.alias(shape, strides);
            seen.dtype = dtype;
            return vec![Some(Tensor::new(seen.based_on(Tensor::clone(gradient))))];
        }
        // What was expanded is summed up first.
        let lengths = place.shape.iter().zip(place.strides.iter());
        let squeezed: Sizes = lengths
            .map(|(length, stride)| match *stride {
                Extent::ZERO => Extent::ONE,
                _ => *length,
            })
            .collect();
        let gradient = if squeezed == place.shape {
            Tensor::clone(gradient)
        } else {
            eager.sum_to(gradient, &squeezed)
        };
        let memory = Tensor::new(eager.zeros(&[numel(&shape)], dtype));
        let mut inside = place.on(&memory);
        inside.shape = squeezed;
        eager.launch(Kernel::Copy, &[&gradient], &[&inside]);
        drop(inside);
        let seen = memory
            .alias(shape, strides)
            .based_on(Tensor::clone(&memory));
        vec![Some(Tensor::new(seen))]
    })
}
