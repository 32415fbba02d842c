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
    classifier(sizes, "torchvision.models.resnet.ResNet", |tracer| {
        let wide = 512 * shape.kind.expansion();
        let body = body(tracer, &ModulePath::new("", ""), sizes.channels, shape);
        let fc = Linear::new(tracer, "fc", [wide, sizes.classes], true);
        pooled(body, 1, fc)
    })
}

/// Everything before the pooling, below a module.
pub(in crate::presets) fn body(
    tracer: &Tracer,
    below: &ModulePath,
    channels: u64,
    shape: &Shape,
) -> Vec<AnyModule> {
    let mut inplanes = 64;
    let conv1 = Conv::new(
        tracer,
        below.path("conv1"),
        [channels, inplanes],
        &[7, 7],
        1,
        false,
    );
    let mut modules: Vec<AnyModule> = vec![
        Box::new(conv1.stride(2).padding(3)),
        Box::new(batch_norm(tracer, below.path("bn1"), inplanes)),
        Box::new(relu(below.path("relu"))),
        Box::new(max_pool(below.path("maxpool"), Pooling::new(3, 2, 1))),
    ];
    let mut dilation = 1;
    let dilates = [&[false][..], &shape.replace_stride_with_dilation].concat();
    let stages = [64, 128, 256, 512].into_iter().zip(shape.layers);
    for (index, ((planes, blocks), dilate)) in stages.zip(dilates).enumerate() {
        let mut stride = if index == 0 { 1 } else { 2 };
        let previous_dilation = dilation;
        if dilate {
            dilation *= stride;
            stride = 1;
        }
        let mut layer = Sequential::new(below.path(&format!("layer{}", index + 1)));
        for block in 0..blocks {
            let residual = Residual {
                shape,
                channels: [inplanes, planes],
                stride: if block == 0 { stride } else { 1 },
                dilation: if block == 0 {
                    previous_dilation
                } else {
                    dilation
                },
            };
            match shape.kind {
                Kind::Basic => layer.push(new_basic_block(tracer, layer.next(), &residual)),
                Kind::Bottleneck => layer.push(new_bottleneck(tracer, layer.next(), &residual)),
            }
            inplanes = planes * shape.kind.expansion();
        }
        modules.push(Box::new(layer));
    }
    modules
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
    /// What the input goes through where the result has another shape. Python makes it before the block, which registers
    /// it last.
    fn downsample(&self, tracer: &Tracer, path: String) -> Option<Sequential> {
        let [inplanes, planes] = self.channels;
        let wide = planes * self.shape.kind.expansion();
        if self.stride == 1 && inplanes == wide {
            return None;
        }
        let mut layers = Sequential::new(path);
        layers.push(conv1x1(tracer, layers.next(), [inplanes, wide]).stride(self.stride));
        layers.push(batch_norm(tracer, layers.next(), wide));
        Some(layers)
    }
}

fn conv3x3(tracer: &Tracer, path: String, channels: [u64; 2], groups: u64) -> Conv {
    Conv::new(tracer, path, channels, &[3, 3], groups, false).padding(1)
}

fn conv1x1(tracer: &Tracer, path: String, channels: [u64; 2]) -> Conv {
    Conv::new(tracer, path, channels, &[1, 1], 1, false)
}

/// `BasicBlock`.
fn new_basic_block(tracer: &Tracer, path: String, block: &Residual<'_>) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.resnet.BasicBlock");
    let [inplanes, planes] = block.channels;
    let conv1 = conv3x3(tracer, place.path("conv1"), [inplanes, planes], 1);
    let conv1 = conv1.stride(block.stride);
    let bn1 = batch_norm(tracer, place.path("bn1"), planes);
    let relu = relu(place.path("relu"));
    let conv2 = conv3x3(tracer, place.path("conv2"), [planes, planes], 1);
    let bn2 = batch_norm(tracer, place.path("bn2"), planes);
    let downsample = block.downsample(tracer, place.path("downsample"));
    FnModule::new(place, move |x| {
        let mut identity = x.clone();
        let out = chain(&[&conv1, &bn1, &relu, &conv2, &bn2], x);
        if let Some(downsample) = &downsample {
            identity = downsample.forward(x);
        }
        out.add_in_place(&identity);
        relu.forward(&out)
    })
}

/// `Bottleneck`.
fn new_bottleneck(tracer: &Tracer, path: String, block: &Residual<'_>) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.resnet.Bottleneck");
    let [inplanes, planes] = block.channels;
    let Shape {
        groups,
        width_per_group,
        ..
    } = *block.shape;
    let width = planes * width_per_group / 64 * groups;
    let wide = planes * block.shape.kind.expansion();
    let conv1 = conv1x1(tracer, place.path("conv1"), [inplanes, width]);
    let bn1 = batch_norm(tracer, place.path("bn1"), width);
    let conv2 = conv3x3(tracer, place.path("conv2"), [width, width], groups)
        .stride(block.stride)
        .padding(block.dilation)
        .dilation(block.dilation);
    let bn2 = batch_norm(tracer, place.path("bn2"), width);
    let conv3 = conv1x1(tracer, place.path("conv3"), [width, wide]);
    let bn3 = batch_norm(tracer, place.path("bn3"), wide);
    let relu = relu(place.path("relu"));
    let downsample = block.downsample(tracer, place.path("downsample"));
    FnModule::new(place, move |x| {
        let mut identity = x.clone();
        let out = chain(&[&conv1, &bn1, &relu, &conv2, &bn2, &relu, &conv3, &bn3], x);
        if let Some(downsample) = &downsample {
            identity = downsample.forward(x);
        }
        out.add_in_place(&identity);
        relu.forward(&out)
    })
}
