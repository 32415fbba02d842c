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
    segmenter(sizes, "UNet", |tracer| {
        if sizes.image.iter().any(|side| side % 16 != 0) {
            let problem = "height and width of its images have to be multiples of 16";
            tracer.fail("cat", problem.to_owned());
        }
        let levels = || {
            CHANNELS
                .windows(2)
                .map(|pair| [pair[0], pair[1]])
                .enumerate()
        };
        let path = |name: &str, index: usize| format!("{name}.{index}");
        let inc = double_conv(tracer, "inc".into(), [sizes.channels, CHANNELS[0]]);
        let down =
            levels().map(|(index, channels)| double_conv(tracer, path("down", index), channels));
        let down: Vec<Sequential> = down.collect();
        let upwards = || {
            levels()
                .rev()
                .map(|(_, [narrow, wide])| [wide, narrow])
                .enumerate()
        };
        let up = upwards()
            .map(|(index, channels)| new_conv_transpose(tracer, path("up", index), channels));
        let up: Vec<FnModule> = up.collect();
        let dec =
            upwards().map(|(index, channels)| double_conv(tracer, path("dec", index), channels));
        let pool = max_pool("pool".into(), Pooling::new(2, 2, 0));
        let dec: Vec<Sequential> = dec.collect();
        let out = Conv::new(
            tracer,
            "out".into(),
            [CHANNELS[0], sizes.classes],
            &[1, 1],
            1,
            true,
        );
        move |x: &Tensor| {
            let tracer = x.tracer();
            let mut skips = Vec::new();
            let mut deepest = inc.forward(x);
            for down in &down {
                let deeper = down.on(pool.forward(&deepest));
                skips.push(std::mem::replace(&mut deepest, deeper));
            }
            let mut x = deepest;
            for ((up, dec), skip) in up.iter().zip(&dec).zip(skips.into_iter().rev()) {
                x = dec.on(tracer.cat([skip, up.forward(&x)], 1));
            }
            out.forward(&x)
        }
    })
}

/// Two convolutions with normalization and ReLU.
fn double_conv(tracer: &Tracer, path: String, [input, output]: [u64; 2]) -> Sequential {
    let mut layers = Sequential::of_class(path, "DoubleConv");
    for channels in [[input, output], [output, output]] {
        let conv = Conv::new(tracer, layers.next(), channels, &[3, 3], 1, false);
        layers.push(conv.padding(1));
        layers.push(batch_norm(tracer, layers.next(), output));
        layers.push(relu(layers.next()));
    }
    layers
}

/// `torch.nn.ConvTranspose2d(input, output, 2, stride=2)`
fn new_conv_transpose(tracer: &Tracer, path: String, [input, output]: [u64; 2]) -> FnModule {
    let weight = tracer.parameter(&format!("{path}.weight"), &[input, output, 2, 2]);
    let bias = tracer.parameter(&format!("{path}.bias"), &[output]);
    FnModule::new(
        ModulePath::new(path, "torch.nn.modules.conv.ConvTranspose2d"),
        move |x| {
            let tracer = x.tracer();
            tracer.call(
                "aten.conv_transpose2d.input",
                &[
                    ("input", Argument::Tensor(x)),
                    ("weight", Argument::Tensor(&weight)),
                    ("bias", Argument::Tensor(&bias)),
                    ("stride", Argument::Ints(vec![2, 2])),
                ],
            )
        },
    )
}
