//! Tensors as the compiler sees them: storage, shape, strides and history, but no values.

use crate::shape::{
    DType, Extent, MemoryFormat, Sizes, contiguous_strides, is_channels_last, numel, strides_match,
};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

use super::autograd::GradFn;
use super::recorder::Storage;
use crate::program::View;

/// A handle to a tensor, as a Python name or a C++ `Tensor` is one.
pub(crate) type Tensor = Rc<TensorBody>;

/// A tensor: some elements of a storage, and where they came from.
#[derive(Debug)]
pub(crate) struct TensorBody {
    /// Read and written as if its fields were this struct's own. What the graph saves of a tensor shares them.
    elements: Rc<Elements>,
    /// Where its gradient goes, when it needs one; writing into it or a view of it in place changes that.
    pub(crate) history: RefCell<Option<History>>,
    /// The tensor that this one is a view of, which is no view itself. A gradient that is a view is never accumulated
    /// into in place.
    pub(crate) base: Option<Tensor>,
    /// How often it was written into in place; of a view, how often its base was when the history was made.
    pub(super) version: Cell<u32>,
}

/// Some elements of a storage.
#[derive(Debug, Clone)]
pub(crate) struct Elements {
    pub(crate) storage: Rc<Storage>,
    pub(crate) dtype: DType,
    pub(crate) offset: Extent,
    pub(crate) shape: Sizes,
    pub(crate) strides: Sizes,
    /// Whether it is a number in the host's memory.
    pub(crate) is_of_host: bool,
    /// That number, where it is known: no kernel reads the host's memory.
    pub(crate) number: Option<f64>,
}

/// Where the gradient of a tensor goes.
#[derive(Debug, Clone)]
pub(crate) enum History {
    /// To the operation that made it, as its n-th result.
    Made(Rc<GradFn>, usize),
    /// Into the `.grad` of a parameter.
    Leaf(Rc<Leaf>),
}

/// A trained parameter.
#[derive(Debug)]
pub(crate) struct Leaf {
    /// Its place in `model.parameters()`.
    pub(crate) index: usize,
    /// Its path.
    pub(crate) path: Arc<str>,
    /// Its strides: a gradient with others is copied, not kept.
    pub(crate) strides: Sizes,
    /// `.grad`.
    pub(crate) grad: RefCell<Option<Tensor>>,
}

impl Deref for TensorBody {
    type Target = Elements;

    fn deref(&self) -> &Elements {
        &self.elements
    }
}

impl DerefMut for TensorBody {
    fn deref_mut(&mut self) -> &mut Elements {
        Rc::make_mut(&mut self.elements)
    }
}

impl From<Elements> for TensorBody {
    /// A tensor without history.
    fn from(elements: Elements) -> TensorBody {
        TensorBody {
            elements: Rc::new(elements),
            history: RefCell::default(),
            base: None,
            version: Cell::default(),
        }
    }
}

impl TensorBody {
    /// A scratch buffer seen as a tensor.
    pub(crate) fn over(storage: &Rc<Storage>, shape: impl Into<Sizes>, dtype: DType) -> TensorBody {
        let shape = shape.into();
        let strides = contiguous_strides(&shape).into();
        TensorBody::from(Elements {
            storage: Rc::clone(storage),
            dtype,
            offset: Extent::ZERO,
            shape,
            strides,
            is_of_host: false,
            number: None,
        })
    }

    pub(crate) fn numel(&self) -> Extent {
        numel(&self.shape)
    }

    pub(crate) fn requires_grad(&self) -> bool {
        self.history.borrow().is_some() || self.is_outdated()
    }

    /// The parameter this is, if it is one that is trained.
    pub(crate) fn leaf(&self) -> Option<Rc<Leaf>> {
        match &*self.history.borrow() {
            Some(History::Leaf(leaf)) => Some(Rc::clone(leaf)),
            Some(History::Made(..)) | None => None,
        }
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        strides_match(&self.shape, &self.strides, &contiguous_strides(&self.shape))
    }

    /// The memory format that operations on planes choose for what they make of it: PyTorch's
    /// `suggest_memory_format`.
    pub(crate) fn suggested_format(&self) -> MemoryFormat {
        if is_channels_last(&self.shape, &self.strides) {
            MemoryFormat::ChannelsLast
        } else {
            MemoryFormat::Contiguous
        }
    }

    /// Whether the elements lie in this order without gaps.
    pub(crate) fn is_in(&self, format: MemoryFormat) -> bool {
        strides_match(&self.shape, &self.strides, &format.strides(&self.shape))
    }

    /// The memory it covers, for a launch.
    pub(crate) fn view(&self) -> View {
        View {
            tensor: self.storage.id(),
            dtype: self.dtype,
            offset: self.offset,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
        }
    }

    /// Another view of the same memory, without history.
    pub(crate) fn alias(&self, shape: impl Into<Sizes>, strides: impl Into<Sizes>) -> TensorBody {
        TensorBody::from(Elements {
            storage: Rc::clone(&self.storage),
            dtype: self.dtype,
            offset: self.offset,
            shape: shape.into(),
            strides: strides.into(),
            is_of_host: self.is_of_host,
            number: self.number,
        })
    }

    /// The same, as a view of `base`.
    pub(crate) fn based_on(self, base: Tensor) -> TensorBody {
        TensorBody {
            base: Some(base),
            ..self
        }
    }

    /// The real parts of complex numbers, where they are.
    pub(crate) fn real_part(&self) -> TensorBody {
        let two = Extent::fixed(2);
        let strides: Sizes = self.strides.iter().map(|stride| *stride * two).collect();
        let mut view = self.alias(self.shape.clone(), strides);
        view.dtype = self.dtype.real();
        view.offset = self.offset * two;
        view
    }

    /// The same tensor without history: what the graph saves.
    pub(crate) fn detached(&self) -> Tensor {
        Rc::new(TensorBody {
            elements: Rc::clone(&self.elements),
            history: RefCell::default(),
            base: None,
            version: Cell::default(),
        })
    }
}
