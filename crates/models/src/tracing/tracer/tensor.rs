//! Names that hold tensors of the graph that is being traced.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use super::{AsksFor, State, Tracer};
use crate::graph::ValueId;
use crate::shape::Extent;

/// A name of a tensor.
#[derive(Clone)]
pub(crate) struct Tensor(pub(super) Rc<Shared>);

pub(super) struct Shared {
    pub(super) state: Rc<RefCell<State>>,
    /// What it stands for, and stood for before it was changed in place.
    pub(super) values: RefCell<Vec<ValueId>>,
    /// Whether an operator made it; parameters and the batch outlive the pass.
    pub(super) is_made: bool,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?})", self.0.values.borrow())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_made {
            return;
        }
        let mut state = self.state.borrow_mut();
        let Some(last) = state.builder.nodes().len().checked_sub(1) else {
            return;
        };
        if !state.is_over {
            let values = self.values.borrow();
            let gone = state.releases.after.entry(last).or_default();
            gone.extend(values.iter());
        }
    }
}

impl Tensor {
    /// What traces it.
    pub(crate) fn tracer(&self) -> Tracer {
        Tracer(Rc::clone(&self.0.state))
    }

    pub(in crate::tracing) fn id(&self) -> ValueId {
        let values = self.0.values.borrow();
        *values.last().expect("a tensor has a value")
    }

    /// `x.shape`.
    pub(crate) fn shape(&self) -> Vec<Extent> {
        self.0.state.borrow().builder.value(self.id()).shape.clone()
    }

    /// `x.shape[dim]`, counted from the end where `dim` is negative; 1 where there is no such dimension, which only
    /// happens after something did not fit.
    pub(crate) fn size(&self, dim: isize) -> Extent {
        let shape = self.shape();
        let index = if dim < 0 {
            shape.len().checked_sub(dim.unsigned_abs())
        } else {
            Some(dim.unsigned_abs())
        };
        let length = index.and_then(|index| shape.get(index));
        length.copied().unwrap_or(Extent::ONE)
    }

    /// `x.shape[dim]`, which does not depend on the batch.
    pub(crate) fn length(&self, dim: isize) -> u64 {
        self.size(dim).as_fixed().unwrap_or(1)
    }

    /// `x.dtype`, as code that converts to it asks for it.
    pub(crate) fn dtype(&self) -> AsksFor {
        let state = self.0.state.borrow();
        AsksFor {
            dtype: state.builder.value(self.id()).dtype,
            of: self.0.is_made.then(|| self.id()),
        }
    }

    /// Itself, after what a Python function let go of when it returned it, in this order: [`Scopes`](super).
    #[must_use]
    pub(crate) fn and_drop<T>(self, names: T) -> Tensor {
        drop(names);
        self
    }

    /// The name now stands for what an operator in place has made of the tensor.
    pub(in crate::tracing) fn becomes(&self, changed: &Tensor) {
        let changed = std::mem::take(&mut *changed.0.values.borrow_mut());
        self.0.values.borrow_mut().extend(changed);
    }

    /// `x.to(y.dtype)`.
    pub(in crate::tracing) fn asked_for(self, asked: AsksFor) -> Tensor {
        self.0.state.borrow_mut().note_asked(asked);
        self
    }
}
