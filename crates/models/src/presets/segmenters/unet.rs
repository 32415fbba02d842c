//! A U-Net of four levels with transposed convolutions on the way up, as `tests/golden/presets/make.py` has it.

use crate::presets::prelude::*;

/// The U-Net.
pub(in crate::presets) const PRESETS: &[Entry] = &[entry(
    "unet",
    "a U-Net of four levels from 64 to 1024 channels with batch normalization; loss: cross entropy of each pixel",
    31_038_933,
    const { &image(256, 21) },
    build,
)];

/// Channels of each level.
const CHANNELS: [u64; 5] = [64, 128, 256, 512, 1024];

fn build(sizes: &Sizes) -> Result<Graph, GraphError> {
    segmenter(sizes, "UNet", |at, x| {
        if sizes.image.iter().any(|side| side % 16 != 0) {
            let problem = "height and width of its images have to be multiples of 16";
            at.tracer().fail_to_make("", "cat", problem.to_owned());
        }
        at.made(&["inc", "down", "up", "dec"]);
        let levels = || CHANNELS.windows(2).map(|pair| [pair[0], pair[1]]);
        let mut skips = Vec::new();
        let mut deepest = double_conv(at, "inc", [sizes.channels, CHANNELS[0]], x);
        for (index, channels) in levels().enumerate() {
            let pooled = max_pool(at, "pool", Pooling::new(2, 2, 0), &deepest);
            let deeper = double_conv(at, &format!("down.{index}"), channels, &pooled);
            drop(pooled);
            skips.push(std::mem::replace(&mut deepest, deeper));
        }
        let mut x = deepest;
        let upwards = levels().rev().map(|[narrow, wide]| [wide, narrow]);
        for ((index, channels), skip) in upwards.enumerate().zip(skips.into_iter().rev()) {
            let up = conv_transpose(at, &format!("up.{index}"), channels, &x);
            let both = at.tracer().cat([skip, up], 1);
            x = double_conv(at, &format!("dec.{index}"), channels, &both).and_drop(both);
        }
        at.conv("out", [CHANNELS[0], sizes.classes], &[1, 1], true)
            .forward(&x)
    })
}

/// Two convolutions with normalization and ReLU.
fn double_conv(at: &Frame, name: &str, [input, output]: [u64; 2], x: &Tensor) -> Tensor {
    sequential_of(at, (name, "DoubleConv"), x, |layers| {
        for channels in [[input, output], [output, output]] {
            layers.conv_norm(channels, (3, 1, 1), Norm::DEFAULT);
            layers.then(relu);
        }
    })
}

/// `torch.nn.ConvTranspose2d(input, output, 2, stride=2)`
fn conv_transpose(at: &Frame, name: &str, [input, output]: [u64; 2], x: &Tensor) -> Tensor {
    at.call_of(name, "torch.nn.modules.conv.ConvTranspose2d", |at| {
        let weight = at.parameter("weight", &[input, output, 2, 2]);
        let bias = at.parameter("bias", &[output]);
        at.tracer().call(
            "aten.conv_transpose2d.input",
            &[
                ("input", Argument::Tensor(x)),
                ("weight", Argument::Tensor(&weight)),
                ("bias", Argument::Tensor(&bias)),
                ("stride", Argument::Ints(vec![2, 2])),
            ],
        )
    })
}
