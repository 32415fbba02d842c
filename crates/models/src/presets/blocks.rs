//! `torchvision/ops/misc.py` and `stochastic_depth.py`

use super::layers::{Activation, Module, Sequential, adaptive_pool, chain, relu};
use crate::shape::DType;
use crate::tracing::{
    Argument, BatchNorm, Conv, Dropout, FnModule, Linear, ModulePath, Pointwise as _, Size, Tensor,
    Tracer,
};

/// What `nn.BatchNorm2d` is called with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub(super) momentum: f64,
    pub(super) eps: f64,
}

impl Norm {
    /// PyTorch's.
    pub(super) const DEFAULT: Norm = Norm {
        momentum: 0.1,
        eps: 1e-5,
    };

    /// Those of the networks that were searched for in TensorFlow.
    pub(super) const MOBILE: Norm = Norm {
        momentum: 0.01,
        eps: 0.001,
    };

    pub(super) fn make(self, tracer: &Tracer, path: String, channels: u64) -> BatchNorm {
        BatchNorm::new(tracer, path, channels, self.momentum, self.eps)
    }
}

/// `Conv2dNormActivation`: a convolution with half its kernel as padding, a normalization and an activation.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConvNorm {
    channels: [u64; 2],
    kernel: u64,
    stride: u64,
    groups: u64,
    dilation: u64,
    norm: Option<Norm>,
    activation: Option<Activation>,
}

impl ConvNorm {
    /// With a kernel of 3 x 3 and a ReLU in place.
    pub(super) const fn new(inputs: u64, outputs: u64) -> ConvNorm {
        ConvNorm {
            channels: [inputs, outputs],
            kernel: 3,
            stride: 1,
            groups: 1,
            dilation: 1,
            norm: Some(Norm::DEFAULT),
            activation: Some(relu),
        }
    }

    pub(super) const fn kernel(self, kernel: u64) -> ConvNorm {
        ConvNorm { kernel, ..self }
    }

    pub(super) const fn stride(self, stride: u64) -> ConvNorm {
        ConvNorm { stride, ..self }
    }

    pub(super) const fn groups(self, groups: u64) -> ConvNorm {
        ConvNorm { groups, ..self }
    }

    pub(super) const fn dilation(self, dilation: u64) -> ConvNorm {
        ConvNorm { dilation, ..self }
    }

    pub(super) const fn norm(self, norm: Norm) -> ConvNorm {
        ConvNorm {
            norm: Some(norm),
            ..self
        }
    }

    /// With a bias in place of a normalization.
    pub(super) const fn without_norm(self) -> ConvNorm {
        ConvNorm { norm: None, ..self }
    }

    pub(super) const fn activation(self, activation: Activation) -> ConvNorm {
        ConvNorm {
            activation: Some(activation),
            ..self
        }
    }

    pub(super) const fn without_activation(self) -> ConvNorm {
        ConvNorm {
            activation: None,
            ..self
        }
    }

    pub(super) fn make(self, tracer: &Tracer, path: String) -> Sequential {
        let class = "torchvision.ops.misc.Conv2dNormActivation";
        let mut layers = Sequential::of_class(path, class);
        let bias = self.norm.is_none();
        let kernel = [self.kernel; 2];
        let conv = Conv::new(
            tracer,
            layers.next(),
            self.channels,
            &kernel,
            self.groups,
            bias,
        );
        let padding = (self.kernel - 1) / 2 * self.dilation;
        layers.push(
            conv.stride(self.stride)
                .padding(padding)
                .dilation(self.dilation),
        );
        if let Some(norm) = self.norm {
            layers.push(norm.make(tracer, layers.next(), self.channels[1]));
        }
        if let Some(activation) = self.activation {
            layers.push(activation(layers.next()));
        }
        layers
    }
}

/// `SqueezeExcitation`.
pub(super) fn squeeze_excitation(
    tracer: &Tracer,
    path: String,
    [input, squeeze]: [u64; 2],
    [activation, scale_activation]: [Activation; 2],
) -> FnModule {
    let place = ModulePath::new(path, "torchvision.ops.misc.SqueezeExcitation");
    let conv = |name, channels| Conv::new(tracer, place.path(name), channels, &[1, 1], 1, true);
    let avgpool = adaptive_pool(place.path("avgpool"), 1);
    let fc1 = conv("fc1", [input, squeeze]);
    let fc2 = conv("fc2", [squeeze, input]);
    let activation = activation(place.path("activation"));
    let scale_activation = scale_activation(place.path("scale_activation"));
    let scale = move |input: &Tensor| {
        chain(
            &[&avgpool, &fc1, &activation, &fc2, &scale_activation],
            input,
        )
    };
    FnModule::new(place, move |input| {
        let scale = scale(input);
        (&scale).mul(input)
    })
}

/// `StochasticDepth(p, "row")`.
pub(super) struct StochasticDepth {
    place: ModulePath,
    p: f64,
}

impl StochasticDepth {
    pub(super) fn new(path: String, p: f64) -> StochasticDepth {
        StochasticDepth {
            place: ModulePath::new(path, "torchvision.ops.stochastic_depth.StochasticDepth"),
            p,
        }
    }
}

impl Module for StochasticDepth {
    fn forward(&self, input: &Tensor) -> Tensor {
        if self.p == 0.0 {
            return input.clone();
        }
        let tracer = input.tracer();
        tracer.in_module(&self.place, || {
            let survival_rate = 1.0 - self.p;
            let mut size = vec![Size::from(input.size(0))];
            size.resize(input.shape().len(), Size::from(1));
            let noise = empty(&tracer, &size, input.dtype().dtype);
            noise.change_in_place(
                "aten.bernoulli_.float",
                &[("p", Argument::Float(survival_rate))],
            );
            if survival_rate > 0.0 {
                let rate = [("other", Argument::Float(survival_rate))];
                noise.change_in_place("aten.div_.Tensor", &rate);
            }
            input.mul(&noise)
        })
    }
}

/// `torch.empty(size, dtype=dtype)`
fn empty(tracer: &Tracer, size: &[Size], dtype: DType) -> Tensor {
    tracer.call(
        "aten.empty.memory_format",
        &[
            ("size", Argument::Sizes(size.to_vec())),
            ("dtype", Argument::DType(dtype)),
        ],
    )
}

/// `MLP(width, [hidden, width], activation_layer=nn.GELU, inplace=None, dropout=0.0)`, as a class made of it.
pub(super) fn mlp(
    tracer: &Tracer,
    path: String,
    class: &'static str,
    [width, hidden]: [u64; 2],
) -> Sequential {
    let mut layers = Sequential::of_class(path, class);
    layers.push(Linear::new(tracer, layers.next(), [width, hidden], true));
    layers.push(super::layers::gelu(layers.next()));
    layers.push(Dropout::new(layers.next(), 0.0));
    layers.push(Linear::new(tracer, layers.next(), [hidden, width], true));
    layers.push(Dropout::new(layers.next(), 0.0));
    layers
}
