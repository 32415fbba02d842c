//! The module whose `forward` runs, and the modules that it calls.

use std::borrow::Cow;
use std::rc::Rc;

use super::activation::Activation;
use super::module_path::{Code, ModulePath};
use super::modules::{Conv, Dropout, Embedding, LayerNorm, Linear};
use super::operands::Tensors;
use super::tracer::{Tensor, Tracer};
use crate::shape::DType;

/// A module whose code runs. A module that it calls is made where it is called first; one that is called again has the same parameters.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    tracer: Tracer,
    path: String,
    /// What the classes of the model's own code begin with.
    classes: Rc<str>,
}

impl Frame {
    /// The model itself.
    pub(crate) fn new(tracer: &Tracer, code: Code) -> Frame {
        Frame::of_classes(tracer, &code.class(""))
    }

    /// The same of a model whose classes begin so.
    pub(crate) fn of_classes(tracer: &Tracer, classes: &str) -> Frame {
        Frame {
            tracer: tracer.clone(),
            path: String::new(),
            classes: Rc::from(classes),
        }
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Something in it, whose code is not what runs.
    pub(crate) fn below(&self, name: &str) -> Frame {
        Frame {
            path: self.path(name),
            ..self.clone()
        }
    }

    /// The path of something in it.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// The class of the model's own code with this name.
    pub(crate) fn class(&self, name: &str) -> String {
        format!("{}{name}", self.classes)
    }

    /// Calls a module of a class of the model's own.
    pub(crate) fn call<T>(&self, name: &str, class: &str, code: impl FnOnce(&Frame) -> T) -> T {
        self.call_of(name, self.class(class), code)
    }

    /// Calls a module of any class.
    pub(crate) fn call_of<T>(
        &self,
        name: &str,
        class: impl Into<Cow<'static, str>>,
        code: impl FnOnce(&Frame) -> T,
    ) -> T {
        let inside = self.below(name);
        let place = ModulePath::new(inside.path.clone(), class);
        self.tracer.in_module(&place, || code(&inside))
    }

    /// Calls modules of a list, which is not called itself, one after the other.
    pub(crate) fn call_each(
        &self,
        (list, count): (&str, u64),
        class: &str,
        x: impl Tensors,
        code: impl Fn(&Frame, &Tensor) -> Tensor,
    ) -> Tensor {
        let mut states = x.tensor().clone();
        drop(x);
        for index in 0..count {
            let name = format!("{list}.{index}");
            states = self.call(&name, class, |at| code(at, &states));
        }
        states
    }

    /// Makes the modules that code calls, without calling them.
    pub(crate) fn make(&self, code: impl FnOnce()) {
        self.tracer.only_make(code);
    }

    /// Says in which order `__init__` makes modules, where `forward` calls them in another one.
    pub(crate) fn made(&self, names: &[&str]) {
        for name in names {
            self.tracer.register(&self.path(name));
        }
    }

    /// A parameter of its own.
    pub(crate) fn parameter(&self, name: &str, shape: &[u64]) -> Tensor {
        self.tracer.parameter(&self.path(name), shape)
    }

    /// A buffer of its own.
    pub(crate) fn buffer(&self, name: &str, shape: &[u64], dtype: DType) -> Tensor {
        self.tracer.buffer(&self.path(name), shape, dtype)
    }

    /// `self.name(x)` of a `torch.nn.Linear`.
    pub(crate) fn linear(
        &self,
        name: &str,
        sizes: [u64; 2],
        bias: bool,
        x: impl Tensors,
    ) -> Tensor {
        Linear::new(&self.tracer, self.path(name), sizes, bias).forward(x)
    }

    /// A `torch.nn.Embedding`, to be called.
    pub(crate) fn embedding(&self, name: &str, sizes: [u64; 2]) -> Embedding {
        Embedding::new(&self.tracer, self.path(name), sizes)
    }

    /// `self.name(x)` of a `torch.nn.LayerNorm`.
    pub(crate) fn layer_norm(&self, name: &str, width: u64, eps: f64, x: impl Tensors) -> Tensor {
        LayerNorm::new(&self.tracer, self.path(name), width, eps).forward(x)
    }

    /// `self.name(x)` of a `torch.nn.Dropout`.
    pub(crate) fn dropout(&self, name: &str, p: f64, x: impl Tensors) -> Tensor {
        Dropout::new(self.path(name), p).forward(x)
    }

    /// `self.name(x)` of the activation that a config names.
    pub(crate) fn activation(&self, name: &str, function: &str, x: impl Tensors) -> Tensor {
        Activation::named(&self.tracer, self.path(name), function).forward(x)
    }

    /// A convolution, to be called.
    pub(crate) fn conv(&self, name: &str, channels: [u64; 2], kernel: &[u64], bias: bool) -> Conv {
        Conv::new(&self.tracer, self.path(name), channels, kernel, 1, bias)
    }
}
