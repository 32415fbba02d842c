//! Modules of `torch.nn` and `torchvision.ops` that take one tensor and make one, and sequences of them: each as `self.name(x)` of the
//! module whose code runs.

use super::blocks::Norm;
use crate::tracing::{
    Argument, BatchNorm, Conv, Frame, Pointwise as _, Tensor, Tensors, Views as _,
};

/// `torch.nn.Sequential` or a class made of it, whose modules are called one after the other.
pub(super) struct Sequence<'a> {
    at: &'a Frame,
    count: u32,
    x: Tensor,
}

impl Sequence<'_> {
    /// Calls the next module, whose name is its number.
    pub(super) fn then(&mut self, module: impl FnOnce(&Frame, &str, &Tensor) -> Tensor) {
        self.named(&self.count.to_string(), module);
    }

    /// Calls a module that has a name.
    pub(super) fn named(
        &mut self,
        name: &str,
        module: impl FnOnce(&Frame, &str, &Tensor) -> Tensor,
    ) {
        self.count += 1;
        self.x = module(self.at, name, &self.x);
    }

    /// What the last one made.
    pub(super) fn made(&self) -> &Tensor {
        &self.x
    }

    /// Calls a linear layer next.
    pub(super) fn linear(&mut self, sizes: [u64; 2]) {
        self.then(|at, name, x| at.linear(name, sizes, true, x));
    }

    /// Calls a convolution of this kernel, stride and groups next, and its normalization.
    pub(super) fn conv_norm(
        &mut self,
        channels: [u64; 2],
        (kernel, stride, groups): (u64, u64, u64),
        norm: Norm,
    ) {
        self.then(|at, name, x| {
            let (path, square) = (at.path(name), [kernel; 2]);
            let conv = Conv::new(at.tracer(), path, channels, &square, groups, false);
            conv.stride(stride).padding(kernel / 2).forward(x)
        });
        self.then(|at, name, x| norm.call(at, name, channels[1], x));
    }

    /// Calls a dropout next.
    pub(super) fn dropout(&mut self, p: f64) {
        self.then(|at, name, x| at.dropout(name, p, x));
    }
}

/// `self.name(x)` of a `torch.nn.Sequential`.
pub(super) fn sequential(
    at: &Frame,
    name: &str,
    x: &Tensor,
    modules: impl FnOnce(&mut Sequence<'_>),
) -> Tensor {
    sequential_of(
        at,
        (name, "torch.nn.modules.container.Sequential"),
        x,
        modules,
    )
}

/// The same of a class made of it.
pub(super) fn sequential_of(
    at: &Frame,
    (name, class): (&str, &'static str),
    x: &Tensor,
    modules: impl FnOnce(&mut Sequence<'_>),
) -> Tensor {
    at.call_of(name, class, |at| {
        let mut sequence = Sequence {
            at,
            count: 0,
            x: x.clone(),
        };
        modules(&mut sequence);
        sequence.x
    })
}

/// Calls an activation.
pub(super) type Activation = fn(&Frame, &str, &Tensor) -> Tensor;

/// Declares activations as modules.
macro_rules! activations {
    ($($(#[$meta:meta])* $name:ident: $class:literal, $function:expr);+ $(;)?) => {
        $(
            $(#[$meta])*
            pub(super) fn $name(at: &Frame, name: &str, x: &Tensor) -> Tensor {
                let function: fn(&Tensor) -> Tensor = $function;
                at.call_of(name, concat!("torch.nn.modules.activation.", $class), |_| function(x))
            }
        )+
    };
}

activations! {
    /// `torch.nn.ReLU(inplace=True)`
    relu: "ReLU", relu_in_place;
    /// `torch.nn.ReLU()`
    new_relu: "ReLU", |x| x.relu();
    /// `torch.nn.ReLU6(inplace=True)`
    relu6: "ReLU6", |x| changed(
        x,
        "aten.hardtanh_.default",
        &[("min_val", Argument::Float(0.0)), ("max_val", Argument::Float(6.0))],
    );
    /// `torch.nn.SiLU(inplace=True)`
    silu: "SiLU", |x| changed(x, "aten.silu_.default", &[]);
    /// `torch.nn.SiLU()`
    new_silu: "SiLU", |x| x.silu();
    /// `torch.nn.Hardswish(inplace=True)`
    hardswish: "Hardswish", |x| changed(x, "aten.hardswish_.default", &[]);
    /// `torch.nn.Hardsigmoid()`
    hardsigmoid: "Hardsigmoid", |x| x.hardsigmoid();
    /// `torch.nn.Sigmoid()`
    sigmoid: "Sigmoid", |x| x.sigmoid();
    /// `torch.nn.GELU()`
    gelu: "GELU", |x| x.gelu("none");
    /// `torch.nn.Tanh()`
    tanh: "Tanh", |x| x.tanh();
}

/// `F.relu(x, inplace=True)`
pub(super) fn relu_in_place(x: &Tensor) -> Tensor {
    changed(x, "aten.relu_.default", &[])
}

/// `x`, after a function in place.
fn changed(x: &Tensor, target: &'static str, arguments: &[(&str, Argument<'_>)]) -> Tensor {
    x.change_in_place(target, arguments);
    x.clone()
}

/// `torch.nn.Dropout(p, inplace=True)`
pub(super) fn dropout_in_place(at: &Frame, name: &str, p: f64, x: &Tensor) -> Tensor {
    at.call_of(name, "torch.nn.modules.dropout.Dropout", |_| {
        let how = [("p", Argument::Float(p)), ("train", Argument::Bool(true))];
        changed(x, "aten.dropout_.default", &how)
    })
}

/// `torch.nn.Flatten(1)`
pub(super) fn flatten(at: &Frame, name: &str, x: &Tensor) -> Tensor {
    at.call_of(name, "torch.nn.modules.flatten.Flatten", |_| flat(x))
}

/// `torchvision.ops.Permute`
pub(super) fn permute(at: &Frame, name: &str, dims: [i64; 4], x: &Tensor) -> Tensor {
    at.call_of(name, "torchvision.ops.misc.Permute", |_| x.permute(&dims))
}

/// How a window moves over an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pooling {
    pub(super) kernel: i64,
    pub(super) stride: i64,
    pub(super) padding: i64,
    pub(super) ceil: bool,
}

impl Pooling {
    pub(super) const fn new(kernel: i64, stride: i64, padding: i64) -> Pooling {
        Pooling {
            kernel,
            stride,
            padding,
            ceil: false,
        }
    }

    /// The same with windows at the end that lie partly outside.
    pub(super) const fn ceil(self) -> Pooling {
        Pooling { ceil: true, ..self }
    }

    /// `F.max_pool2d(x, ...)`
    pub(super) fn max(self, x: &Tensor) -> Tensor {
        self.pool("aten.max_pool2d.default", x)
    }

    /// `F.avg_pool2d(x, ...)`
    pub(super) fn average(self, x: &Tensor) -> Tensor {
        self.pool("aten.avg_pool2d.default", x)
    }

    fn pool(self, target: &'static str, x: &Tensor) -> Tensor {
        let both = |number: i64| Argument::Ints(vec![number; 2]);
        x.apply(
            target,
            &[
                ("kernel_size", both(self.kernel)),
                ("stride", both(self.stride)),
                ("padding", both(self.padding)),
                ("ceil_mode", Argument::Bool(self.ceil)),
            ],
        )
    }
}

/// `torch.nn.MaxPool2d`
pub(super) fn max_pool(at: &Frame, name: &str, pooling: Pooling, x: &Tensor) -> Tensor {
    at.call_of(name, "torch.nn.modules.pooling.MaxPool2d", |_| {
        pooling.max(x)
    })
}

/// `torch.nn.AvgPool2d`
pub(super) fn average_pool(at: &Frame, name: &str, pooling: Pooling, x: &Tensor) -> Tensor {
    at.call_of(name, "torch.nn.modules.pooling.AvgPool2d", |_| {
        pooling.average(x)
    })
}

/// `torch.nn.AdaptiveAvgPool2d(size)`
pub(super) fn adaptive_pool(at: &Frame, name: &str, size: i64, x: &Tensor) -> Tensor {
    let class = "torch.nn.modules.pooling.AdaptiveAvgPool2d";
    at.call_of(name, class, |_| adaptive_average(x, size))
}

/// `F.adaptive_avg_pool2d(x, size)`
pub(super) fn adaptive_average(x: &Tensor, size: i64) -> Tensor {
    let size = Argument::Ints(vec![size; 2]);
    x.apply("aten.adaptive_avg_pool2d.default", &[("output_size", size)])
}

/// What most classifiers make of features: an average of this size, and classes of it.
pub(super) fn pooled(
    at: &Frame,
    features: Tensor,
    size: i64,
    classifier: impl FnOnce(&Tensor) -> Tensor,
) -> Tensor {
    let pooled = adaptive_pool(at, "avgpool", size, &features).and_drop(features);
    let x = flat(pooled);
    classifier(&x)
}

/// `torch.nn.BatchNorm2d(channels)` with PyTorch's defaults.
pub(super) fn batch_norm(at: &Frame, name: &str, channels: u64, x: &Tensor) -> Tensor {
    BatchNorm::new(at.tracer(), at.path(name), channels, 0.1, 1e-5).forward(x)
}

/// `torch.flatten(x, 1)`, after which `x` is named no more.
pub(super) fn flat(x: impl Tensors) -> Tensor {
    x.flatten(1, -1)
}
