//! Modules of `torch.nn` and `torchvision.ops` that take one tensor and make one, and sequences of them.

pub(super) use crate::tracing::{AnyModule, Module, chain};
use crate::tracing::{
    Argument, BatchNorm, FnModule, ModulePath, Pointwise as _, Tensor, Tensors, Tracer, Views as _,
};

/// `torch.nn.Sequential` and classes made of it.
pub(super) struct Sequential {
    place: ModulePath,
    modules: Vec<AnyModule>,
}

impl Sequential {
    pub(super) fn new(path: String) -> Sequential {
        Sequential::of_class(path, "torch.nn.modules.container.Sequential")
    }

    /// One whose class is made of `Sequential`.
    pub(super) fn of_class(path: String, class: &'static str) -> Sequential {
        Sequential {
            place: ModulePath::new(path, class),
            modules: Vec::new(),
        }
    }

    /// The same as a class made of it.
    #[must_use]
    pub(super) fn class(mut self, class: &'static str) -> Sequential {
        self.place = self.place.of_class(class);
        self
    }

    /// The path of the module that is added next.
    pub(super) fn next(&self) -> String {
        self.at(&self.modules.len().to_string())
    }

    /// The path of a module that has a name.
    pub(super) fn at(&self, name: &str) -> String {
        self.place.path(name)
    }

    /// Adds a module.
    pub(super) fn push(&mut self, module: impl Module + 'static) {
        self.modules.push(Box::new(module));
    }
}

impl Module for Sequential {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer()
            .in_module(&self.place, || self.modules.forward(x))
    }
}

/// Makes an activation at a path.
pub(super) type Activation = fn(String) -> FnModule;

/// Declares activations as modules.
macro_rules! activations {
    ($($(#[$meta:meta])* $name:ident: $class:literal, $function:expr);+ $(;)?) => {
        $(
            $(#[$meta])*
            pub(super) fn $name(path: String) -> FnModule {
                FnModule::new(ModulePath::new(path, concat!("torch.nn.modules.activation.", $class)), $function)
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
pub(super) fn dropout_in_place(path: String, p: f64) -> FnModule {
    FnModule::new(
        ModulePath::new(path, "torch.nn.modules.dropout.Dropout"),
        move |x| {
            let how = [("p", Argument::Float(p)), ("train", Argument::Bool(true))];
            changed(x, "aten.dropout_.default", &how)
        },
    )
}

/// `torch.nn.Flatten(1)`
pub(super) fn flatten(path: String) -> FnModule {
    FnModule::new(
        ModulePath::new(path, "torch.nn.modules.flatten.Flatten"),
        |x| flat(x),
    )
}

/// `torchvision.ops.Permute`
pub(super) fn permute(path: String, dims: [i64; 4]) -> FnModule {
    FnModule::new(
        ModulePath::new(path, "torchvision.ops.misc.Permute"),
        move |x| x.permute(&dims),
    )
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
pub(super) fn max_pool(path: String, pooling: Pooling) -> FnModule {
    let class = "torch.nn.modules.pooling.MaxPool2d";
    FnModule::new(ModulePath::new(path, class), move |x| pooling.max(x))
}

/// `torch.nn.AvgPool2d`
pub(super) fn average_pool(path: String, pooling: Pooling) -> FnModule {
    let class = "torch.nn.modules.pooling.AvgPool2d";
    FnModule::new(ModulePath::new(path, class), move |x| pooling.average(x))
}

/// `torch.nn.AdaptiveAvgPool2d(size)`
pub(super) fn adaptive_pool(path: String, size: i64) -> FnModule {
    let class = "torch.nn.modules.pooling.AdaptiveAvgPool2d";
    FnModule::new(ModulePath::new(path, class), move |x| {
        adaptive_average(x, size)
    })
}

/// `F.adaptive_avg_pool2d(x, size)`
pub(super) fn adaptive_average(x: &Tensor, size: i64) -> Tensor {
    let size = Argument::Ints(vec![size; 2]);
    x.apply("aten.adaptive_avg_pool2d.default", &[("output_size", size)])
}

/// The `forward` of most classifiers: features, an average of this size, and what makes classes of it.
pub(super) fn pooled(
    features: impl Module,
    size: i64,
    classifier: impl Module,
) -> impl Fn(&Tensor) -> Tensor {
    let avgpool = adaptive_pool("avgpool".into(), size);
    move |x| {
        let x = flat(chain(&[&features, &avgpool], x));
        classifier.forward(&x)
    }
}

/// `torch.nn.BatchNorm2d(channels)` with PyTorch's defaults.
pub(super) fn batch_norm(tracer: &Tracer, path: String, channels: u64) -> BatchNorm {
    BatchNorm::new(tracer, path, channels, 0.1, 1e-5)
}

/// `torch.flatten(x, 1)`, after which `x` is named no more.
pub(super) fn flat(x: impl Tensors) -> Tensor {
    x.flatten(1, -1)
}
