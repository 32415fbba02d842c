//! torchvision's ResNets, module by module (`torchvision/models/resnet.py`).

use crate::graph::{Builder, Content, Graph, GraphError, ModuleId, ValueId};
use crate::model::nn::{At, BatchNorm, Bias, Net, unary};
use crate::ops::{Elementwise, Loss, Pool};
use crate::program::{Placement, Unary};
use crate::shape::{DType, Extent, Window, is_oversize};

/// Which of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    D18,
    D34,
    D50,
    D101,
    D152,
}

/// One network of the family.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resnet {
    pub(super) depth: Depth,
    pub(super) image_size: [u64; 2],
    pub(super) num_classes: u64,
    pub(super) in_channels: u64,
}

/// Two 3 x 3 convolutions, or a 3 x 3 between two 1 x 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Basic,
    Bottleneck,
}

impl Block {
    const fn class(self) -> &'static str {
        match self {
            Block::Basic => "torchvision.models.resnet.BasicBlock",
            Block::Bottleneck => "torchvision.models.resnet.Bottleneck",
        }
    }

    /// How many times wider its result is than its 3 x 3 convolution.
    const fn expansion(self) -> u64 {
        match self {
            Block::Basic => 1,
            Block::Bottleneck => 4,
        }
    }
}

impl Depth {
    /// The block and how many of it each stage has.
    const fn stages(self) -> (Block, [usize; 4]) {
        match self {
            Depth::D18 => (Block::Basic, [2, 2, 2, 2]),
            Depth::D34 => (Block::Basic, [3, 4, 6, 3]),
            Depth::D50 => (Block::Bottleneck, [3, 4, 6, 3]),
            Depth::D101 => (Block::Bottleneck, [3, 4, 23, 3]),
            Depth::D152 => (Block::Bottleneck, [3, 8, 36, 3]),
        }
    }
}

/// The forward pass, with the loss.
pub(super) fn lower(resnet: &Resnet) -> Result<Graph, GraphError> {
    let (block, stages) = resnet.depth.stages();
    let [height, width] = resnet.image_size;
    let mut image = vec![Extent::BATCH];
    image.extend([resnet.in_channels, height, width].map(Extent::fixed));
    if is_oversize(&image) {
        return Err(GraphError {
            op: "conv2d",
            module: "conv1".into(),
            problem: format!("images of {image:?} are too large for any device"),
        });
    }

    let mut net = Net::new("torchvision.models.resnet.ResNet");
    let root = Builder::ROOT;
    let images = net.input("x", DType::Float32, image, Content::Normal);
    let stem = Window {
        stride: [1, 2, 2],
        padding: [0, 3, 3],
        ..Window::of([7, 7])
    };
    let mut x = net.conv2d(At::new("conv1", root), images, 64, stem, Bias::Without)?;
    x = net.batch_norm2d(At::new("bn1", root), x, BatchNorm::default())?;
    x = relu(&mut net, At::new("relu", root), x)?;
    let pool = Window {
        stride: [1, 2, 2],
        padding: [0, 1, 1],
        ..Window::of([3, 3])
    };
    let module = net.module(
        At::new("maxpool", root),
        "torch.nn.modules.pooling.MaxPool2d",
    );
    x = net.apply(module, Pool::Max(pool), &[x])?;

    for (stage, (planes, blocks)) in [64, 128, 256, 512].into_iter().zip(stages).enumerate() {
        let path = format!("layer{}", stage + 1);
        let module = net.module(
            At::new(&path, root),
            "torch.nn.modules.container.Sequential",
        );
        for index in 0..blocks {
            let residual = Residual {
                block,
                planes,
                stride: if stage > 0 && index == 0 { 2 } else { 1 },
                path: format!("{path}.{index}"),
            };
            x = residual.lower(&mut net, module, x)?;
        }
    }

    let module = net.module(
        At::new("avgpool", root),
        "torch.nn.modules.pooling.AdaptiveAvgPool2d",
    );
    x = net.apply(module, Pool::AdaptiveAverage([1; 3]), &[x])?;
    x = net.flatten(root, x, 1)?;
    x = net.linear(At::new("fc", root), x, resnet.num_classes, Bias::With)?;

    let content = Content::Below(resnet.num_classes);
    let labels = net.input("y", DType::Int64, vec![Extent::BATCH], content);
    let loss = net.apply(root, Loss::CROSS_ENTROPY, &[x, labels])?;
    Ok(net.finish(x, loss))
}

/// One residual block.
struct Residual {
    block: Block,
    planes: u64,
    stride: u64,
    path: String,
}

impl Residual {
    fn lower(
        &self,
        net: &mut Net,
        parent: ModuleId,
        input: ValueId,
    ) -> Result<ValueId, GraphError> {
        let module = net.module(At::new(&self.path, parent), self.block.class());
        let planes = self.planes;
        let wide = planes * self.block.expansion();
        let narrows = net.value(input).shape[1] != Extent::fixed(wide);
        // (output channels, kernel, stride) of each convolution. torchvision puts the stride on the 3 x 3.
        let convolutions = match self.block {
            Block::Basic => vec![(planes, 3, self.stride), (planes, 3, 1)],
            Block::Bottleneck => vec![(planes, 1, 1), (planes, 3, self.stride), (wide, 1, 1)],
        };
        let last = convolutions.len() - 1;

        let mut x = input;
        for (index, (channels, kernel, stride)) in convolutions.into_iter().enumerate() {
            let conv = format!("{}.conv{}", self.path, index + 1);
            let norm = format!("{}.bn{}", self.path, index + 1);
            let window = square(kernel, stride);
            x = net.conv2d(At::new(&conv, module), x, channels, window, Bias::Without)?;
            x = net.batch_norm2d(At::new(&norm, module), x, BatchNorm::default())?;
            if index < last {
                x = self.relu(net, module, index, x)?;
            }
        }
        let identity = if self.stride != 1 || narrows {
            self.downsample(net, module, input, wide)?
        } else {
            input
        };
        x = net.apply(module, Elementwise::of("aten.add_.Tensor"), &[x, identity])?;
        self.relu(net, module, last, x)
    }

    fn downsample(
        &self,
        net: &mut Net,
        block: ModuleId,
        input: ValueId,
        channels: u64,
    ) -> Result<ValueId, GraphError> {
        let path = format!("{}.downsample", self.path);
        let module = net.module(
            At::new(&path, block),
            "torch.nn.modules.container.Sequential",
        );
        let (conv, norm) = (format!("{path}.0"), format!("{path}.1"));
        let window = square(1, self.stride);
        let x = net.conv2d(
            At::new(&conv, module),
            input,
            channels,
            window,
            Bias::Without,
        )?;
        net.batch_norm2d(At::new(&norm, module), x, BatchNorm::default())
    }

    /// The block has one `relu` module and calls it after each convolution.
    fn relu(
        &self,
        net: &mut Net,
        parent: ModuleId,
        earlier: usize,
        input: ValueId,
    ) -> Result<ValueId, GraphError> {
        let path = format!("{}.relu", self.path);
        let at = At {
            path: &path,
            parent,
            earlier: u32::try_from(earlier).expect("a block has two or three convolutions"),
        };
        relu(net, at, input)
    }
}

/// A convolution that keeps the size but for its stride.
fn square(kernel: u64, stride: u64) -> Window {
    Window {
        stride: [1, stride, stride],
        padding: [0, kernel / 2, kernel / 2],
        ..Window::of([kernel, kernel])
    }
}

fn relu(net: &mut Net, at: At<'_>, input: ValueId) -> Result<ValueId, GraphError> {
    let module = net.module(at, "torch.nn.modules.activation.ReLU");
    net.apply(module, unary(Unary::Relu, Placement::InPlace), &[input])
}
