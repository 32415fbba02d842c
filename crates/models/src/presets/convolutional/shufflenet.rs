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
    let class = "torchvision.models.shufflenetv2.ShuffleNetV2";
    classifier(sizes, class, |at, x| {
        let mut x = sequential(at, "conv1", x, |conv1| {
            conv1.conv_norm([sizes.channels, channels[0]], (3, 2, 1), Norm::DEFAULT);
            conv1.then(relu);
        });
        x = max_pool(at, "maxpool", Pooling::new(3, 2, 1), &x);
        for (index, (width, repeats)) in channels.windows(2).zip(REPEATS).enumerate() {
            x = sequential(at, &format!("stage{}", index + 2), &x, |stage| {
                for block in 0..repeats {
                    let (input, stride) = if block == 0 {
                        (width[0], 2)
                    } else {
                        (width[1], 1)
                    };
                    let channels = [input, width[1]];
                    stage.then(|at, name, x| {
                        at.call(name, "InvertedResidual", |at| {
                            inverted_residual(at, channels, stride, x)
                        })
                    });
                }
            });
        }
        x = sequential(at, "conv5", &x, |conv5| {
            conv5.conv_norm([channels[3], channels[4]], (1, 1, 1), Norm::DEFAULT);
            conv5.then(relu);
        });
        x = (&x).mean(&[2, 3], false);
        at.linear("fc", [channels[4], sizes.classes], true, &x)
    })
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
fn inverted_residual(at: &Frame, [input, output]: [u64; 2], stride: u64, x: &Tensor) -> Tensor {
    let half = output / 2;
    let branch2 = |x: &Tensor| {
        let first = if stride > 1 { input } else { half };
        sequential(at, "branch2", x, |branch2| {
            branch2.conv_norm([first, half], (1, 1, 1), Norm::DEFAULT);
            branch2.then(relu);
            branch2.conv_norm([half, half], (3, stride, half), Norm::DEFAULT);
            branch2.conv_norm([half, half], (1, 1, 1), Norm::DEFAULT);
            branch2.then(relu);
        })
    };
    let mut out = if stride > 1 {
        let branch1 = sequential(at, "branch1", x, |branch1| {
            branch1.conv_norm([input, input], (3, stride, input), Norm::DEFAULT);
            branch1.conv_norm([input, half], (1, 1, 1), Norm::DEFAULT);
            branch1.then(relu);
        });
        at.tracer().cat([branch1, branch2(x)], 1)
    } else {
        let halves = x.chunk(2, 1);
        let [x1, x2] = [0, 1].map(|half| halves[half].clone());
        drop(halves);
        let out = at.tracer().cat([x1.clone(), branch2(&x2)], 1);
        out.and_drop((x1, x2))
    };
    out = channel_shuffle(&out);
    out
}
