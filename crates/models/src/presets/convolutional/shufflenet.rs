//! `torchvision/models/shufflenetv2.py`

use crate::presets::prelude::*;

/// torchvision's `ShuffleNets`.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("shufflenet_v2_x0_5", "torchvision's ShuffleNetV2, half as wide", 1_366_792, AT_224, |sizes| build(sizes, [24, 48, 96, 192, 1024])),
    entry("shufflenet_v2_x1_0", "torchvision's ShuffleNetV2", 2_278_604, AT_224, |sizes| build(sizes, [24, 116, 232, 464, 1024])),
    entry("shufflenet_v2_x1_5", "torchvision's ShuffleNetV2, 1.5 times as wide", 3_503_624, AT_224, |sizes| build(sizes, [24, 176, 352, 704, 1024])),
    entry("shufflenet_v2_x2_0", "torchvision's ShuffleNetV2, twice as wide", 7_393_996, AT_224, |sizes| build(sizes, [24, 244, 488, 976, 2048])),
];

/// Blocks of each stage.
const REPEATS: [u64; 3] = [4, 8, 4];

fn build(sizes: &Sizes, channels: [u64; 5]) -> Result<Graph, GraphError> {
    classifier(
        sizes,
        "torchvision.models.shufflenetv2.ShuffleNetV2",
        |tracer| {
            let mut conv1 = Sequential::new("conv1".into());
            conv(tracer, &mut conv1, [sizes.channels, channels[0]], (3, 2, 1));
            conv1.push(relu(conv1.next()));
            let maxpool = max_pool("maxpool".into(), Pooling::new(3, 2, 1));
            let widths = channels.windows(2).zip(REPEATS);
            let stages = widths.enumerate().map(|(index, (width, repeats))| {
                let mut stage = Sequential::new(format!("stage{}", index + 2));
                for block in 0..repeats {
                    let (input, stride) = if block == 0 {
                        (width[0], 2)
                    } else {
                        (width[1], 1)
                    };
                    let channels = [input, width[1]];
                    stage.push(new_inverted_residual(
                        tracer,
                        stage.next(),
                        channels,
                        stride,
                    ));
                }
                stage
            });
            let stages: Vec<Sequential> = stages.collect();
            let mut conv5 = Sequential::new("conv5".into());
            conv(tracer, &mut conv5, [channels[3], channels[4]], (1, 1, 1));
            conv5.push(relu(conv5.next()));
            let fc = Linear::new(tracer, "fc", [channels[4], sizes.classes], true);
            move |x: &Tensor| {
                let mut x = chain(&[&conv1, &maxpool, &stages, &conv5], x);
                x = (&x).mean(&[2, 3], false);
                fc.forward(&x)
            }
        },
    )
}

/// A convolution of this kernel, stride and groups, and a normalization.
fn conv(
    tracer: &Tracer,
    layers: &mut Sequential,
    channels: [u64; 2],
    (kernel, stride, groups): (u64, u64, u64),
) {
    let conv = Conv::new(tracer, layers.next(), channels, &[kernel; 2], groups, false);
    layers.push(conv.stride(stride).padding(kernel / 2));
    layers.push(batch_norm(tracer, layers.next(), channels[1]));
}

/// `channel_shuffle(x, 2)`
fn channel_shuffle(x: &Tensor) -> Tensor {
    let groups = 2_u64;
    let [batchsize, height, width] = [0, 2, 3].map(|dim| Size::from(x.size(dim)));
    let channels = x.length(1);
    let per_group = Size::from(channels / groups);
    let mut x = x.view(&[batchsize, groups.into(), per_group, height, width]);
    x = (&x).transpose(1, 2).contiguous();
    (&x).view(&[batchsize, channels.into(), height, width])
}

/// `InvertedResidual`.
fn new_inverted_residual(
    tracer: &Tracer,
    path: String,
    [input, output]: [u64; 2],
    stride: u64,
) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.shufflenetv2.InvertedResidual");
    let half = output / 2;
    let branch1 = (stride > 1).then(|| {
        let mut branch = Sequential::new(place.path("branch1"));
        conv(tracer, &mut branch, [input, input], (3, stride, input));
        conv(tracer, &mut branch, [input, half], (1, 1, 1));
        branch.push(relu(branch.next()));
        branch
    });
    let mut branch2 = Sequential::new(place.path("branch2"));
    let first = if stride > 1 { input } else { half };
    conv(tracer, &mut branch2, [first, half], (1, 1, 1));
    branch2.push(relu(branch2.next()));
    conv(tracer, &mut branch2, [half, half], (3, stride, half));
    conv(tracer, &mut branch2, [half, half], (1, 1, 1));
    branch2.push(relu(branch2.next()));
    FnModule::new(place, move |x| {
        let tracer = x.tracer();
        let mut out = if let Some(branch1) = &branch1 {
            tracer.cat([branch1.forward(x), branch2.forward(x)], 1)
        } else {
            let halves = x.chunk(2, 1);
            let [x1, x2] = [0, 1].map(|half| halves[half].clone());
            drop(halves);
            let out = tracer.cat([x1.clone(), branch2.forward(&x2)], 1);
            out.and_drop((x1, x2))
        };
        out = channel_shuffle(&out);
        out
    })
}
