//! `torch.nn`'s modules: each has its parameters once it is made, and runs its `forward`.

use std::borrow::Cow;

use super::adapters::Adapter;
use super::argument::Argument;
use super::functional;
use super::module_path::ModulePath;
use super::operands::Tensors;
use super::pointwise::Pointwise as _;
use super::tracer::{Tensor, Tracer};
use crate::shape::DType;

/// `torch.nn.Linear`.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    place: ModulePath,
    pub(crate) weight: Tensor,
    pub(crate) bias: Option<Tensor>,
    adapter: Option<Box<Adapter>>,
}

impl Linear {
    pub(crate) fn new(
        tracer: &Tracer,
        path: impl AsRef<str>,
        [inputs, outputs]: [u64; 2],
        bias: bool,
    ) -> Linear {
        let path = path.as_ref();
        let own = Adapter::path_of_layer(tracer, path);
        Linear {
            weight: tracer.parameter(&format!("{own}.weight"), &[outputs, inputs]),
            bias: bias.then(|| tracer.parameter(&format!("{own}.bias"), &[outputs])),
            adapter: Adapter::of_layer(tracer, path, [inputs, outputs]),
            place: ModulePath::new(own, "torch.nn.modules.linear.Linear"),
        }
    }

    /// One whose weight is another module's.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "as every module takes its path"
    )]
    pub(crate) fn tied(path: String, weight: &Tensor, bias: Option<Tensor>) -> Linear {
        let tracer = weight.tracer();
        let [outputs, inputs] = [0, 1].map(|dim| weight.length(dim));
        let own = Adapter::path_of_layer(&tracer, &path);
        Linear {
            adapter: Adapter::of_layer(&tracer, &path, [inputs, outputs]),
            place: ModulePath::new(own, "torch.nn.modules.linear.Linear"),
            weight: weight.clone(),
            bias,
        }
    }

    pub(crate) fn forward(&self, x: impl Tensors) -> Tensor {
        Adapter::forward(self.adapter.as_deref(), x, |x| self.run(x))
    }

    fn run(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            functional::linear(x, &self.weight, self.bias.as_ref())
        })
    }
}

/// `torch.nn.Embedding`.
#[derive(Debug, Clone)]
pub(crate) struct Embedding {
    place: ModulePath,
    pub(crate) weight: Tensor,
    padding: Option<u64>,
    /// What its results are multiplied by.
    scale: Option<Tensor>,
    adapter: Option<Box<Adapter>>,
}

impl Embedding {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "as every module takes its path"
    )]
    pub(crate) fn new(tracer: &Tracer, path: String, sizes: [u64; 2]) -> Embedding {
        let own = Adapter::path_of_embedding(tracer, &path);
        Embedding {
            weight: tracer.parameter(&format!("{own}.weight"), &sizes),
            adapter: Adapter::of_embedding(tracer, &path, sizes),
            place: ModulePath::new(own, "torch.nn.modules.sparse.Embedding"),
            padding: None,
            scale: None,
        }
    }

    /// One whose weight is another module's.
    pub(crate) fn tied(path: String, weight: &Tensor) -> Embedding {
        Embedding {
            weight: weight.clone(),
            place: ModulePath::new(path, "torch.nn.modules.sparse.Embedding"),
            padding: None,
            scale: None,
            adapter: None,
        }
    }

    /// One at another path with the same weight.
    pub(crate) fn at(&self, path: String) -> Embedding {
        Embedding {
            place: self.place.at(path),
            ..self.clone()
        }
    }

    /// The same with an index that is not trained.
    #[must_use]
    pub(crate) fn padding(mut self, padding: Option<u64>) -> Embedding {
        self.padding = padding;
        self
    }

    /// The same as a class of the model's own, whose buffer `embed_scale` its results are multiplied by.
    #[must_use]
    pub(crate) fn scaled(self, tracer: &Tracer, class: String) -> Embedding {
        let path = self.place.path("embed_scale");
        Embedding {
            scale: Some(tracer.buffer(&path, &[], tracer.dtype())),
            ..self.class(class)
        }
    }

    pub(crate) fn forward(&self, indices: impl Tensors) -> Tensor {
        let how = (self.padding, self.scale.as_ref());
        let made = Adapter::embed(self.adapter.as_deref(), indices.tensor(), how, |indices| {
            let tracer = indices.tracer();
            tracer.in_module(&self.place, || self.look_up(indices))
        });
        made.and_drop(indices)
    }

    /// The same, called by a class of the model's own.
    pub(crate) fn look_up(&self, indices: impl Tensors) -> Tensor {
        let words = functional::embedding(indices, &self.weight, self.padding);
        match &self.scale {
            Some(scale) => words.mul(scale.to_dtype_of(self.weight.dtype())),
            None => words,
        }
    }

    /// The same with a weight that is not trained.
    pub(crate) fn frozen(tracer: &Tracer, path: String, [rows, width]: [u64; 2]) -> Embedding {
        Embedding {
            weight: tracer.frozen_parameter(&format!("{path}.weight"), &[rows, width]),
            place: ModulePath::new(path, "torch.nn.modules.sparse.Embedding"),
            padding: None,
            scale: None,
            adapter: None,
        }
    }

    /// The same as a class of the model's own.
    #[must_use]
    pub(crate) fn class(mut self, class: impl Into<Cow<'static, str>>) -> Embedding {
        self.place = self.place.of_class(class);
        self
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &ModulePath {
        &self.place
    }
}

/// `torch.nn.LayerNorm`.
#[derive(Debug, Clone)]
pub(crate) struct LayerNorm {
    place: ModulePath,
    /// The last dimensions, over which it goes.
    lengths: Vec<u64>,
    eps: f64,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl LayerNorm {
    pub(crate) fn new(tracer: &Tracer, path: String, width: u64, eps: f64) -> LayerNorm {
        LayerNorm::over(tracer, path, &[width], eps)
    }

    /// One over the last dimensions, of these lengths.
    pub(crate) fn over(tracer: &Tracer, path: String, lengths: &[u64], eps: f64) -> LayerNorm {
        LayerNorm {
            weight: Some(tracer.parameter(&format!("{path}.weight"), lengths)),
            bias: Some(tracer.parameter(&format!("{path}.bias"), lengths)),
            ..LayerNorm::without_weights(path, lengths, eps)
        }
    }

    /// One without weights: `elementwise_affine=False`.
    pub(crate) fn plain(path: String, width: u64, eps: f64) -> LayerNorm {
        LayerNorm::without_weights(path, &[width], eps)
    }

    fn without_weights(path: String, lengths: &[u64], eps: f64) -> LayerNorm {
        LayerNorm {
            place: ModulePath::new(path, "torch.nn.modules.normalization.LayerNorm"),
            lengths: lengths.to_vec(),
            eps,
            weight: None,
            bias: None,
        }
    }

    /// The same as a class of the model's own.
    #[must_use]
    pub(crate) fn class(mut self, class: impl Into<Cow<'static, str>>) -> LayerNorm {
        self.place = self.place.of_class(class);
        self
    }

    pub(crate) fn forward(&self, x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.in_module(&self.place, || self.normalized(x.tensor()));
        made.and_drop(x)
    }

    /// The same of a class that rearranges what it is given, and what it makes of it.
    pub(crate) fn around(
        &self,
        x: &Tensor,
        before: impl FnOnce(&Tensor) -> Tensor,
        after: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let mut features = before(x);
            features = self.normalized(&features);
            features = after(&features);
            features
        })
    }

    fn normalized(&self, x: &Tensor) -> Tensor {
        let lengths = self.lengths.iter().map(|length| length.cast_signed());
        let mut arguments = vec![
            ("input", Argument::Tensor(x)),
            ("normalized_shape", Argument::Ints(lengths.collect())),
        ];
        let weight = self.weight.as_ref();
        let bias = self.bias.as_ref();
        arguments.extend(weight.map(|weight| ("weight", Argument::Tensor(weight))));
        arguments.extend(bias.map(|bias| ("bias", Argument::Tensor(bias))));
        arguments.push(("eps", Argument::Float(self.eps)));
        x.tracer().call("aten.layer_norm.default", &arguments)
    }
}

/// `torch.nn.Dropout`.
#[derive(Debug, Clone)]
pub(crate) struct Dropout {
    place: ModulePath,
    p: f64,
}

impl Dropout {
    pub(crate) fn new(path: String, p: f64) -> Dropout {
        Dropout {
            place: ModulePath::new(path, "torch.nn.modules.dropout.Dropout"),
            p,
        }
    }

    pub(crate) fn forward(&self, x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.in_module(&self.place, || functional::dropout(x.tensor(), self.p));
        made.and_drop(x)
    }
}

/// A convolution along one or two dimensions.
#[derive(Debug, Clone)]
pub(crate) struct Conv {
    place: ModulePath,
    target: &'static str,
    pub(crate) weight: Tensor,
    bias: Option<Tensor>,
    /// `stride`, `padding` and `dilation`, a number for each dimension, and `groups`.
    pub(crate) stride: Vec<i64>,
    pub(crate) padding: Vec<i64>,
    pub(crate) dilation: Vec<i64>,
    groups: u64,
}

impl Conv {
    /// `torch.nn.Conv2d` or, with a kernel of one dimension, `torch.nn.Conv1d`; with a stride of one and no padding.
    pub(crate) fn new(
        tracer: &Tracer,
        path: String,
        [inputs, outputs]: [u64; 2],
        kernel: &[u64],
        groups: u64,
        bias: bool,
    ) -> Conv {
        if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let problem = format!(
                "{groups} groups do not divide {inputs} input and {outputs} output channels"
            );
            tracer.fail_at(path.clone(), "conv2d", problem);
        }
        let mut shape = vec![outputs, inputs / groups.max(1)];
        shape.extend(kernel);
        let weight = tracer.parameter(&format!("{path}.weight"), &shape);
        let bias = bias.then(|| tracer.parameter(&format!("{path}.bias"), &[outputs]));
        let (target, class) = match kernel {
            [_] => ("aten.conv1d.default", "torch.nn.modules.conv.Conv1d"),
            _ => ("aten.conv2d.default", "torch.nn.modules.conv.Conv2d"),
        };
        Conv {
            place: ModulePath::new(path, class),
            target,
            weight,
            bias,
            stride: vec![1; kernel.len()],
            padding: vec![0; kernel.len()],
            dilation: vec![1; kernel.len()],
            groups,
        }
    }

    /// The same with another stride in all dimensions.
    #[must_use]
    pub(crate) fn stride(mut self, stride: u64) -> Conv {
        self.stride.fill(stride.cast_signed());
        self
    }

    /// The same with a stride for each dimension.
    #[must_use]
    pub(crate) fn strides(mut self, strides: &[u64]) -> Conv {
        for (stride, given) in self.stride.iter_mut().zip(strides) {
            *stride = given.cast_signed();
        }
        self
    }

    /// The same with another padding in all dimensions.
    #[must_use]
    pub(crate) fn padding(mut self, padding: u64) -> Conv {
        self.padding.fill(padding.cast_signed());
        self
    }

    /// The same with another dilation in all dimensions.
    #[must_use]
    pub(crate) fn dilation(mut self, dilation: u64) -> Conv {
        self.dilation.fill(dilation.cast_signed());
        self
    }

    pub(crate) fn forward(&self, x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.in_module(&self.place, || {
            let mut arguments = vec![
                ("input", Argument::Tensor(x.tensor())),
                ("weight", Argument::Tensor(&self.weight)),
            ];
            let bias = self.bias.as_ref();
            arguments.extend(bias.map(|bias| ("bias", Argument::Tensor(bias))));
            arguments.push(("stride", Argument::Ints(self.stride.clone())));
            arguments.push(("padding", Argument::Ints(self.padding.clone())));
            arguments.push(("dilation", Argument::Ints(self.dilation.clone())));
            let groups = i64::try_from(self.groups).unwrap_or(i64::MAX);
            arguments.push(("groups", Argument::Int(groups)));
            tracer.call(self.target, &arguments)
        });
        made.and_drop(x)
    }
}

/// `torch.nn.BatchNorm2d` in training mode.
#[derive(Debug, Clone)]
pub(crate) struct BatchNorm {
    place: ModulePath,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    tracked: Tensor,
    momentum: f64,
    eps: f64,
}

impl BatchNorm {
    pub(crate) fn new(
        tracer: &Tracer,
        path: String,
        channels: u64,
        momentum: f64,
        eps: f64,
    ) -> BatchNorm {
        let of = |name: &str| format!("{path}.{name}");
        // Statistics are stored in the dtype that the model is made in, as `.to(dtype)` does to all floats.
        let dtype = tracer.dtype();
        BatchNorm {
            weight: tracer.parameter(&of("weight"), &[channels]),
            bias: tracer.parameter(&of("bias"), &[channels]),
            mean: tracer.buffer(&of("running_mean"), &[channels], dtype),
            var: tracer.buffer(&of("running_var"), &[channels], dtype),
            tracked: tracer.buffer(&of("num_batches_tracked"), &[], DType::Int64),
            place: ModulePath::new(path, "torch.nn.modules.batchnorm.BatchNorm2d"),
            momentum,
            eps,
        }
    }

    pub(crate) fn forward(&self, x: impl Tensors) -> Tensor {
        let tracer = x.tensor().tracer();
        let made = tracer.in_module(&self.place, || {
            self.tracked
                .change_in_place("aten.add_.Tensor", &[("other", Argument::Int(1))]);
            tracer.call(
                "aten.batch_norm.default",
                &[
                    ("input", Argument::Tensor(x.tensor())),
                    ("weight", Argument::Tensor(&self.weight)),
                    ("bias", Argument::Tensor(&self.bias)),
                    ("running_mean", Argument::Tensor(&self.mean)),
                    ("running_var", Argument::Tensor(&self.var)),
                    ("training", Argument::Bool(true)),
                    ("momentum", Argument::Float(self.momentum)),
                    ("eps", Argument::Float(self.eps)),
                    ("cudnn_enabled", Argument::Bool(true)),
                ],
            )
        });
        made.and_drop(x)
    }
}
