//! `torchvision/models/resnet.py`

use crate::presets::prelude::*;

/// torchvision's ResNets.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("resnet18", "torchvision's ResNet-18", 11_689_512, AT_224, |sizes| build(sizes, &Shape::basic([2, 2, 2, 2]))),
    entry("resnet34", "torchvision's ResNet-34", 21_797_672, AT_224, |sizes| build(sizes, &Shape::basic([3, 4, 6, 3]))),
    entry("resnet50", "torchvision's ResNet-50", 25_557_032, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 4, 6, 3]))),
    entry("resnet101", "torchvision's ResNet-101", 44_549_160, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 4, 23, 3]))),
    entry("resnet152", "torchvision's ResNet-152", 60_192_808, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 8, 36, 3]))),
    entry("resnext50_32x4d", "torchvision's ResNeXt-50, 32 groups of 4 channels", 25_028_904, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 4, 6, 3]).groups(32, 4))),
    entry("resnext101_32x8d", "torchvision's ResNeXt-101, 32 groups of 8 channels", 88_791_336, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 4, 23, 3]).groups(32, 8))),
    entry("resnext101_64x4d", "torchvision's ResNeXt-101, 64 groups of 4 channels", 83_455_272, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 4, 23, 3]).groups(64, 4))),
    entry("wide_resnet50_2", "torchvision's Wide ResNet-50-2", 68_883_240, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 4, 6, 3]).groups(1, 128))),
    entry("wide_resnet101_2", "torchvision's Wide ResNet-101-2", 126_886_696, AT_224, |sizes| build(sizes, &Shape::bottleneck([3, 4, 23, 3]).groups(1, 128))),
];

/// Which of the family.
#[derive(Debug, Clone, Copy)]
pub(in crate::presets) struct Shape {
    kind: Kind,
    /// Blocks of each stage.
    layers: [u64; 4],
    groups: u64,
    width_per_group: u64,
    /// Whether the last stages widen their kernels instead of halving the image.
    replace_stride_with_dilation: [bool; 3],
}

/// Two 3 x 3 convolutions, or a 3 x 3 between two 1 x 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Basic,
    Bottleneck,
}

impl Kind {
    /// How many times wider its result is than its 3 x 3 convolution.
    const fn expansion(self) -> u64 {
        match self {
            Kind::Basic => 1,
            Kind::Bottleneck => 4,
        }
    }
}

impl Shape {
    const fn basic(layers: [u64; 4]) -> Shape {
        Shape {
            kind: Kind::Basic,
            layers,
            groups: 1,
            width_per_group: 64,
            replace_stride_with_dilation: [false; 3],
        }
    }

    pub(in crate::presets) const fn bottleneck(layers: [u64; 4]) -> Shape {
        Shape {
            kind: Kind::Bottleneck,
            ..Shape::basic(layers)
        }
    }

    /// With wider kernels in place of smaller images, in the last three stages.
    pub(in crate::presets) const fn dilated(
        self,
        replace_stride_with_dilation: [bool; 3],
    ) -> Shape {
        Shape {
            replace_stride_with_dilation,
            ..self
        }
    }

    const fn groups(self, groups: u64, width_per_group: u64) -> Shape {
        Shape {
            groups,
            width_per_group,
            ..self
        }
    }
}

fn build(sizes: &Sizes, shape: &Shape) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.resnet.ResNet", |at, x| {
        let wide = 512 * shape.kind.expansion();
        let body = body(at, sizes.channels, shape, x);
        pooled(at, body, 1, |x| {
            at.linear("fc", [wide, sizes.classes], true, x)
        })
    })
}

/// Everything before the pooling.
pub(in crate::presets) fn body(at: &Frame, channels: u64, shape: &Shape, x: &Tensor) -> Tensor {
    let mut inplanes = 64;
    let conv1 = at.conv("conv1", [channels, inplanes], &[7, 7], false);
    let mut x = conv1.stride(2).padding(3).forward(x);
    x = batch_norm(at, "bn1", inplanes, &x);
    x = relu(at, "relu", &x);
    x = max_pool(at, "maxpool", Pooling::new(3, 2, 1), &x);
    let mut dilation = 1;
    let dilates = [&[false][..], &shape.replace_stride_with_dilation].concat();
    let stages = [64, 128, 256, 512].into_iter().zip(shape.layers);
    for (index, ((planes, blocks), dilate)) in stages.zip(dilates).enumerate() {
        let mut stride = if index == 0 { 1 } else { 2 };
        let mut residual = Residual {
            shape,
            channels: [inplanes, planes],
            stride,
            dilation,
        };
        if dilate {
            dilation *= stride;
            stride = 1;
            residual.stride = stride;
        }
        x = sequential(at, &format!("layer{}", index + 1), &x, |layer| {
            for _ in 0..blocks {
                layer.then(|at, name, x| match shape.kind {
                    Kind::Basic => residual.basic(at, name, x),
                    Kind::Bottleneck => residual.bottleneck(at, name, x),
                });
                inplanes = planes * shape.kind.expansion();
                residual = Residual {
                    shape,
                    channels: [inplanes, planes],
                    stride: 1,
                    dilation,
                };
            }
        });
    }
    x
}

/// What a residual block is made from.
struct Residual<'a> {
    shape: &'a Shape,
    /// Of its input, and of its 3 x 3 convolution before groups and width.
    channels: [u64; 2],
    stride: u64,
    dilation: u64,
}

impl Residual<'_> {
    /// The sum with the input, or with what it goes through where the result has another shape, which Python registers last.
    fn added(&self, at: &Frame, out: Tensor, x: &Tensor) -> Tensor {
        let [inplanes, planes] = self.channels;
        let wide = planes * self.shape.kind.expansion();
        let mut identity = x.clone();
        if self.stride != 1 || inplanes != wide {
            identity = sequential(at, "downsample", x, |layers| {
                layers.then(|at, name, x| conv1x1(at, name, [inplanes, wide], self.stride, x));
                layers.then(|at, name, x| batch_norm(at, name, wide, x));
            });
        }
        out.add_in_place(&identity);
        let made = relu(at, "relu", &out);
        drop(out);
        made.and_drop(identity)
    }

    /// `BasicBlock`.
    fn basic(&self, at: &Frame, name: &str, x: &Tensor) -> Tensor {
        let [inplanes, planes] = self.channels;
        at.call_of(name, "torchvision.models.resnet.BasicBlock", |at| {
            let conv = |name, channels| at.conv(name, channels, &[3, 3], false).padding(1);
            let mut out = conv("conv1", [inplanes, planes])
                .stride(self.stride)
                .forward(x);
            out = batch_norm(at, "bn1", planes, &out);
            out = relu(at, "relu", &out);
            out = conv("conv2", [planes, planes]).forward(out);
            out = batch_norm(at, "bn2", planes, &out);
            self.added(at, out, x)
        })
    }

    /// `Bottleneck`.
    fn bottleneck(&self, at: &Frame, name: &str, x: &Tensor) -> Tensor {
        let [inplanes, planes] = self.channels;
        let groups = self.shape.groups;
        let width = planes * self.shape.width_per_group / 64 * groups;
        let wide = planes * self.shape.kind.expansion();
        at.call_of(name, "torchvision.models.resnet.Bottleneck", |at| {
            let mut out = conv1x1(at, "conv1", [inplanes, width], 1, x);
            out = batch_norm(at, "bn1", width, &out);
            out = relu(at, "relu", &out);
            let path = at.path("conv2");
            let conv2 = Conv::new(at.tracer(), path, [width, width], &[3, 3], groups, false);
            let conv2 = conv2.stride(self.stride).padding(self.dilation);
            out = conv2.dilation(self.dilation).forward(out);
            out = batch_norm(at, "bn2", width, &out);
            out = relu(at, "relu", &out);
            out = conv1x1(at, "conv3", [width, wide], 1, &out);
            out = batch_norm(at, "bn3", wide, &out);
            self.added(at, out, x)
        })
    }
}

fn conv1x1(at: &Frame, name: &str, channels: [u64; 2], stride: u64, x: &Tensor) -> Tensor {
    let conv = at.conv(name, channels, &[1, 1], false);
    conv.stride(stride).forward(x)
}
