//! `torchvision/ops/misc.py` and `stochastic_depth.py`

use super::layers::{Activation, adaptive_pool, relu, sequential_of};
use crate::shape::DType;
use crate::tracing::{
    Argument, BatchNorm, Conv, Frame, Pointwise as _, Size, Tensor, Tensors, Tracer,
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

    pub(super) fn call(self, at: &Frame, name: &str, channels: u64, x: &Tensor) -> Tensor {
        let (momentum, eps) = (self.momentum, self.eps);
        BatchNorm::new(at.tracer(), at.path(name), channels, momentum, eps).forward(x)
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

    pub(super) fn call(self, at: &Frame, name: &str, x: &Tensor) -> Tensor {
        let class = "torchvision.ops.misc.Conv2dNormActivation";
        self.call_as(at, (name, class), x)
    }

    /// The same as a class made of it.
    pub(super) fn call_as(self, at: &Frame, of: (&str, &'static str), x: &Tensor) -> Tensor {
        sequential_of(at, of, x, |layers| {
            let bias = self.norm.is_none();
            let kernel = [self.kernel; 2];
            let padding = (self.kernel - 1) / 2 * self.dilation;
            layers.then(|at, name, x| {
                let path = at.path(name);
                let conv = Conv::new(at.tracer(), path, self.channels, &kernel, self.groups, bias);
                let conv = conv.stride(self.stride).padding(padding);
                conv.dilation(self.dilation).forward(x)
            });
            if let Some(norm) = self.norm {
                layers.then(|at, name, x| norm.call(at, name, self.channels[1], x));
            }
            if let Some(activation) = self.activation {
                layers.then(activation);
            }
        })
    }
}

/// `SqueezeExcitation`.
pub(super) fn squeeze_excitation(
    at: &Frame,
    name: &str,
    [input, squeeze]: [u64; 2],
    [activation, scale_activation]: [Activation; 2],
    x: &Tensor,
) -> Tensor {
    at.call_of(name, "torchvision.ops.misc.SqueezeExcitation", |at| {
        let conv = |name, channels, x: &Tensor| at.conv(name, channels, &[1, 1], true).forward(x);
        let mut scale = adaptive_pool(at, "avgpool", 1, x);
        scale = conv("fc1", [input, squeeze], &scale);
        scale = activation(at, "activation", &scale);
        scale = conv("fc2", [squeeze, input], &scale);
        scale = scale_activation(at, "scale_activation", &scale);
        (&scale).mul(x)
    })
}

/// `StochasticDepth(p, "row")`.
pub(super) fn stochastic_depth(at: &Frame, name: &str, p: f64, input: impl Tensors) -> Tensor {
    if p == 0.0 {
        return input.tensor().clone();
    }
    let class = "torchvision.ops.stochastic_depth.StochasticDepth";
    let made = at.call_of(name, class, |at| {
        let input = input.tensor();
        let survival_rate = 1.0 - p;
        let mut size = vec![Size::from(input.size(0))];
        size.resize(input.shape().len(), Size::from(1));
        let noise = empty(at.tracer(), &size, input.dtype().dtype);
        noise.change_in_place(
            "aten.bernoulli_.float",
            &[("p", Argument::Float(survival_rate))],
        );
        if survival_rate > 0.0 {
            let rate = [("other", Argument::Float(survival_rate))];
            noise.change_in_place("aten.div_.Tensor", &rate);
        }
        input.mul(&noise)
    });
    made.and_drop(input)
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
    at: &Frame,
    of: (&str, &'static str),
    [width, hidden]: [u64; 2],
    x: &Tensor,
) -> Tensor {
    sequential_of(at, of, x, |layers| {
        layers.linear([width, hidden]);
        layers.then(super::layers::gelu);
        layers.dropout(0.0);
        layers.linear([hidden, width]);
        layers.dropout(0.0);
    })
}
