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
pub type Tensor = Rc<TensorBody>;

/// A tensor: some elements of a storage, and where they came from.
#[derive(Debug)]
pub struct TensorBody {
    /// Read and written as if its fields were this struct's own. What the graph saves of a tensor shares them.
    elements: Rc<Elements>,
    /// Where its gradient goes, when it needs one; writing into it or a view of it in place changes that.
    pub history: RefCell<Option<History>>,
    /// The tensor that this one is a view of, which is no view itself. A gradient that is a view is never accumulated
    /// into in place.
    pub base: Option<Tensor>,
    /// How often it was written into in place; of a view, how often its base was when the history was made.
    pub(super) version: Cell<u32>,
}

/// Some elements of a storage.
#[derive(Debug, Clone)]
pub struct Elements {
    pub storage: Rc<Storage>,
    pub dtype: DType,
    pub offset: Extent,
    pub shape: Sizes,
    pub strides: Sizes,
    /// Whether it is a number in the host's memory.
    pub is_of_host: bool,
    /// That number, where it is known: no kernel reads the host's memory.
    pub number: Option<f64>,
}

/// Where the gradient of a tensor goes.
#[derive(Debug, Clone)]
pub enum History {
    /// To the operation that made it, as its n-th result.
    Made(Rc<GradFn>, usize),
    /// Into the `.grad` of a parameter.
    Leaf(Rc<Leaf>),
}

/// A trained parameter.
#[derive(Debug)]
pub struct Leaf {
    /// Its place in `model.parameters()`.
    pub index: usize,
    /// Its path.
    pub path: Arc<str>,
    /// Its strides: a gradient with others is copied, not kept.
    pub strides: Sizes,
    /// `.grad`.
    pub grad: RefCell<Option<Tensor>>,
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
    pub fn over(storage: &Rc<Storage>, shape: impl Into<Sizes>, dtype: DType) -> TensorBody {
        let shape = shape.into();
        let strides = contiguous_strides(&shape);
        TensorBody::of(Rc::clone(storage), shape, strides, dtype)
    }

    /// All of a storage.
    pub(super) fn of(
        storage: Rc<Storage>,
        shape: Sizes,
        strides: impl Into<Sizes>,
        dtype: DType,
    ) -> TensorBody {
        TensorBody::from(Elements {
            storage,
            dtype,
            offset: Extent::ZERO,
            shape,
            strides: strides.into(),
            is_of_host: false,
            number: None,
        })
    }

    pub fn numel(&self) -> Extent {
        numel(&self.shape)
    }

    pub fn requires_grad(&self) -> bool {
        self.history.borrow().is_some() || self.is_outdated()
    }

    /// The parameter this is, if it is one that is trained.
    pub fn leaf(&self) -> Option<Rc<Leaf>> {
        match &*self.history.borrow() {
            Some(History::Leaf(leaf)) => Some(Rc::clone(leaf)),
            Some(History::Made(..)) | None => None,
        }
    }

    pub fn is_contiguous(&self) -> bool {
        strides_match(&self.shape, &self.strides, &contiguous_strides(&self.shape))
    }

    /// The memory format that operations on planes choose for what they make of it: PyTorch's
    /// `suggest_memory_format`.
    pub fn suggested_format(&self) -> MemoryFormat {
        if is_channels_last(&self.shape, &self.strides) {
            MemoryFormat::ChannelsLast
        } else {
            MemoryFormat::Contiguous
        }
    }

    /// Whether the elements lie in this order without gaps.
    pub fn is_in(&self, format: MemoryFormat) -> bool {
        strides_match(&self.shape, &self.strides, &format.strides(&self.shape))
    }

    /// The memory it covers, for a launch.
    pub fn view(&self) -> View {
        View {
            tensor: self.storage.id(),
            dtype: self.dtype,
            offset: self.offset,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
        }
    }

    /// Another view of the same memory, without history.
    pub fn alias(&self, shape: impl Into<Sizes>, strides: impl Into<Sizes>) -> TensorBody {
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

    /// The same elements, without history.
    pub fn same(&self) -> TensorBody {
        TensorBody {
            elements: Rc::clone(&self.elements),
            history: RefCell::default(),
            base: None,
            version: Cell::default(),
        }
    }

    /// The same, as a view of `base`.
    pub fn based_on(self, base: Tensor) -> TensorBody {
        TensorBody {
            base: Some(base),
            ..self
        }
    }

    /// The real parts of complex numbers, where they are.
    pub fn real_part(&self) -> TensorBody {
        let two = Extent::fixed(2);
        let strides: Sizes = self.strides.iter().map(|stride| *stride * two).collect();
        let mut view = self.alias(self.shape.clone(), strides);
        view.dtype = self.dtype.real();
        view.offset = self.offset * two;
        view
    }

    /// The same tensor without history: what the graph saves.
    pub fn detached(&self) -> Tensor {
        Rc::new(self.same())
    }
}
