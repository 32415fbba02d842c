//! What takes one tensor and makes one, and several of them one after the other.

use super::activation::Activation;
use super::modules::{BatchNorm, Conv, Dropout, FnModule, LayerNorm, Linear};
use super::operands::Tensors;
use super::tracer::Tensor;

/// What takes one tensor and makes one.
pub(crate) trait Module {
    fn forward(&self, x: &Tensor) -> Tensor;

    /// The same of a tensor that is named no more, as in `outer(inner(x))`.
    fn on(&self, x: Tensor) -> Tensor {
        let made = self.forward(&x);
        made.and_drop(x)
    }
}

macro_rules! modules {
    ($($module:ident),+) => {
        $(impl Module for $module {
            fn forward(&self, x: &Tensor) -> Tensor {
                $module::forward(self, x)
            }
        })+
    };
}

modules!(
    Activation, BatchNorm, Conv, Dropout, FnModule, LayerNorm, Linear
);

/// A module of any class.
pub(crate) type AnyModule = Box<dyn Module>;

macro_rules! pointers {
    ($($pointer:ty),+) => {
        $(impl Module for $pointer {
            fn forward(&self, x: &Tensor) -> Tensor {
                (**self).forward(x)
            }

            fn on(&self, x: Tensor) -> Tensor {
                (**self).on(x)
            }
        })+
    };
}

pointers!(AnyModule, &dyn Module);

/// `for module in modules: x = module(x)`
impl<M: Module> Module for Vec<M> {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.on(x.clone())
    }

    fn on(&self, x: Tensor) -> Tensor {
        self.iter().fold(x, |x, module| module.on(x))
    }
}

/// `x = module(x)` for one module after the other, each in a line of its own in Python.
pub(crate) fn chain(modules: &[&dyn Module], x: impl Tensors) -> Tensor {
    let first = x.tensor().clone();
    drop(x);
    modules.iter().fold(first, |x, module| module.on(x))
}
