//! `torchvision/models/maxvit.py`

use crate::presets::layers::{average_pool, flatten, gelu, new_silu, sigmoid, tanh};
use crate::presets::prelude::*;
use crate::shape::DType;
use crate::tracing::Tensors as _;

/// torchvision's `MaxViT`.
pub(in crate::presets) const PRESETS: &[Entry] = &[entry(
    "maxvit_t",
    "torchvision's MaxViT, tiny",
    30_919_624,
    AT_224,
    build,
)];

const STEM: u64 = 64;
const CHANNELS: [u64; 4] = [64, 128, 256, 512];
const LAYERS: [u32; 4] = [2, 2, 5, 2];
const HEAD: u64 = 32;
const PARTITION: u64 = 7;
const STOCHASTIC_DEPTH: f64 = 0.2;
const EPS: f64 = 1e-5;

fn build(sizes: &Sizes) -> Result<Graph, GraphError> {
    classifier(sizes, "torchvision.models.maxvit.MaxVit", |tracer| {
        let mut stem = Sequential::new("stem".into());
        let first = ConvNorm::new(sizes.channels, STEM).stride(2);
        stem.push(mobile(first).make(tracer, stem.next()));
        let second = ConvNorm::new(STEM, STEM)
            .without_norm()
            .without_activation();
        stem.push(second.make(tracer, stem.next()));
        let mut grid = sizes.image.map(half);
        let total: u32 = LAYERS.iter().sum();
        let mut made = 0;
        let mut input = STEM;
        let mut blocks = Vec::new();
        for (index, (output, layers)) in CHANNELS.into_iter().zip(LAYERS).enumerate() {
            grid = grid.map(half);
            if grid.iter().any(|length| !length.is_multiple_of(PARTITION)) {
                let [height, width] = sizes.image;
                tracer.fail(
                    "reshape",
                    format!(
                        "images of {height} x {width} pixels are {} x {} in block {index}, which {PARTITION} does not \
                         divide; multiples of 224 fit",
                        grid[0], grid[1]
                    ),
                );
                grid = [PARTITION; 2];
            }
            let class = "torchvision.models.maxvit.MaxVitBlock";
            let mut block = Sequential::of_class(format!("blocks.{index}"), class);
            for layer in 0..layers {
                let p = STOCHASTIC_DEPTH / f64::from(total - 1) * f64::from(made);
                let path = block.at(&format!("layers.{layer}"));
                let channels = [input, output];
                let stride = if layer == 0 { 2 } else { 1 };
                block.push(max_vit_layer(tracer, path, channels, stride, grid, p));
                input = output;
                made += 1;
            }
            blocks.push(Box::new(block) as AnyModule);
        }

        let classifier = head(tracer, input, sizes.classes);
        move |x: &Tensor| {
            let mut x = stem.forward(x);
            x = blocks.forward(&x);
            classifier.forward(&x)
        }
    })
}

/// The length after a convolution of stride 2.
fn half(length: u64) -> u64 {
    length.div_ceil(2)
}

fn mobile(conv: ConvNorm) -> ConvNorm {
    conv.norm(Norm::MOBILE).activation(gelu)
}

fn head(tracer: &Tracer, width: u64, classes: u64) -> Sequential {
    let mut head = Sequential::new("classifier".into());
    head.push(adaptive_pool(head.next(), 1));
    head.push(flatten(head.next()));
    head.push(LayerNorm::new(tracer, head.next(), width, EPS));
    head.push(Linear::new(tracer, head.next(), [width, width], true));
    head.push(tanh(head.next()));
    head.push(Linear::new(tracer, head.next(), [width, classes], false));
    head
}

/// `MaxVitLayer`.
fn max_vit_layer(
    tracer: &Tracer,
    path: String,
    channels: [u64; 2],
    stride: u64,
    grid: [u64; 2],
    p: f64,
) -> Sequential {
    let mut outer = Sequential::of_class(path, "torchvision.models.maxvit.MaxVitLayer");
    let mut layers = Sequential::new(outer.at("layers"));
    layers.push(new_mb_conv(
        tracer,
        layers.at("MBconv"),
        channels,
        stride,
        p,
    ));
    for (name, is_grid) in [("window_attention", false), ("grid_attention", true)] {
        let path = layers.at(name);
        layers.push(Attention::new(tracer, path, channels[1], grid, is_grid, p));
    }
    outer.push(layers);
    outer
}

/// `MBConv`.
fn new_mb_conv(
    tracer: &Tracer,
    path: String,
    [input, output]: [u64; 2],
    stride: u64,
    p: f64,
) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.maxvit.MBConv");
    let should_proj = stride != 1 || input != output;
    let proj = should_proj.then(|| {
        let mut proj = Sequential::new(place.path("proj"));
        if stride == 2 {
            proj.push(average_pool(proj.next(), Pooling::new(3, 2, 1)));
        }
        proj.push(pointwise(tracer, proj.next(), [input, output]));
        proj
    });
    let mid = 4 * output;
    let mut layers = Sequential::new(place.path("layers"));
    layers.push(Norm::MOBILE.make(tracer, layers.at("pre_norm"), input));
    let expand = ConvNorm::new(input, mid).kernel(1);
    layers.push(mobile(expand).make(tracer, layers.at("conv_a")));
    let depthwise = ConvNorm::new(mid, mid).stride(stride).groups(mid);
    layers.push(mobile(depthwise).make(tracer, layers.at("conv_b")));
    let activations: [Activation; 2] = [new_silu, sigmoid];
    let squeezed = [mid, output / 4];
    let path = layers.at("squeeze_excitation");
    layers.push(squeeze_excitation(tracer, path, squeezed, activations));
    layers.push(pointwise(tracer, layers.at("conv_c"), [mid, output]));
    let stochastic_depth = StochasticDepth::new(place.path("stochastic_depth"), p);
    FnModule::new(place, move |x| {
        let res = match &proj {
            Some(proj) => proj.forward(x),
            None => x.clone(),
        };
        let x = stochastic_depth.on(layers.forward(x));
        (&res).add(&x).and_drop((x, res))
    })
}
fn pointwise(tracer: &Tracer, path: String, channels: [u64; 2]) -> Conv {
    Conv::new(tracer, path, channels, &[1, 1], 1, true)
}

/// `PartitionAttentionLayer`: of windows, or of a grid of pixels from all over the image.
struct Attention {
    place: ModulePath,
    is_grid: bool,
    /// Pixels of a window in each direction, and windows in each direction.
    side: [u64; 2],
    counts: [u64; 2],
    attn_layer: Sequential,
    mlp_layer: Sequential,
    stochastic_dropout: StochasticDepth,
}

impl Attention {
    fn new(
        tracer: &Tracer,
        path: String,
        width: u64,
        grid: [u64; 2],
        is_grid: bool,
        p: f64,
    ) -> Attention {
        let place = ModulePath::new(path, "torchvision.models.maxvit.PartitionAttentionLayer");
        let mut attn_layer = Sequential::new(place.path("attn_layer"));
        attn_layer.push(LayerNorm::new(tracer, attn_layer.next(), width, EPS));
        attn_layer.push(MultiHead::new(tracer, attn_layer.next(), width));
        attn_layer.push(Dropout::new(attn_layer.next(), 0.0));
        let mut mlp_layer = Sequential::new(place.path("mlp_layer"));
        mlp_layer.push(LayerNorm::new(tracer, mlp_layer.next(), width, EPS));
        mlp_layer.push(Linear::new(
            tracer,
            mlp_layer.next(),
            [width, 4 * width],
            true,
        ));
        mlp_layer.push(gelu(mlp_layer.next()));
        mlp_layer.push(Linear::new(
            tracer,
            mlp_layer.next(),
            [4 * width, width],
            true,
        ));
        mlp_layer.push(Dropout::new(mlp_layer.next(), 0.0));
        // Python takes the number of partitions from the height alone.
        let side = if is_grid {
            grid[0] / PARTITION
        } else {
            PARTITION
        };
        Attention {
            is_grid,
            side: [side; 2],
            counts: grid.map(|length| length / side),
            attn_layer,
            mlp_layer,
            stochastic_dropout: StochasticDepth::new(place.path("stochastic_dropout"), p),
            place,
        }
    }

    /// `WindowPartition`.
    fn partition(&self) -> FnModule {
        let ([p, _], [rows, columns]) = (self.side, self.counts);
        let class = "torchvision.models.maxvit.WindowPartition";
        FnModule::new(
            ModulePath::new(self.place.path("partition_op"), class),
            move |x| {
                let batch = Size::from(x.size(0));
                let channels = Size::from(x.length(1));
                let side = Size::from(p);
                let x = x.reshape(&[batch, channels, rows.into(), side, columns.into(), side]);
                let x = (&x).permute(&[0, 2, 4, 3, 5, 1]).and_drop(x);
                let sizes = [batch, (rows * columns).into(), (p * p).into(), channels];
                (&x).reshape(&sizes).and_drop(x)
            },
        )
    }

    /// `WindowDepartition`.
    fn departition(&self) -> FnModule {
        let ([p, _], [rows, columns]) = (self.side, self.counts);
        let class = "torchvision.models.maxvit.WindowDepartition";
        FnModule::new(
            ModulePath::new(self.place.path("departition_op"), class),
            move |x| {
                let batch = Size::from(x.size(0));
                let channels = Size::from(x.length(3));
                let side = Size::from(p);
                let x = x.reshape(&[batch, rows.into(), columns.into(), side, side, channels]);
                let x = (&x).permute(&[0, 5, 1, 3, 2, 4]).and_drop(x);
                let sizes = [batch, channels, (rows * p).into(), (columns * p).into()];
                (&x).reshape(&sizes).and_drop(x)
            },
        )
    }

    /// `SwapAxes(-2, -3)` in a grid, else nothing.
    fn swap(&self, name: &str, x: &Tensor) -> Tensor {
        if !self.is_grid {
            return x.clone();
        }
        let place = ModulePath::new(self.place.path(name), "torchvision.models.maxvit.SwapAxes");
        x.tracer().in_module(&place, || {
            let axes = [("axis0", Argument::Int(-2)), ("axis1", Argument::Int(-3))];
            x.apply("aten.swapaxes.default", &axes)
        })
    }
}

impl Module for Attention {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.tracer().in_module(&self.place, || {
            let depth = &self.stochastic_dropout;
            let mut x = self.partition().forward(x);
            x = self.swap("partition_swap", &x);
            x = (&x).add(depth.on(self.attn_layer.forward(&x)));
            x = (&x).add(depth.on(self.mlp_layer.forward(&x)));
            x = self.swap("departition_swap", &x);
            self.departition().forward(&x)
        })
    }
}

/// `RelativePositionalMultiHeadAttention`.
struct MultiHead {
    place: ModulePath,
    relative_position_bias_table: Tensor,
    to_qkv: Linear,
    merge: Linear,
    relative_position_index: Tensor,
    width: u64,
}

impl MultiHead {
    fn new(tracer: &Tracer, path: String, width: u64) -> MultiHead {
        let class = "torchvision.models.maxvit.RelativePositionalMultiHeadAttention";
        let place = ModulePath::new(path, class);
        let reach = 2 * PARTITION - 1;
        let table = place.path("relative_position_bias_table");
        let index = place.path("relative_position_index");
        let positions = PARTITION * PARTITION;
        MultiHead {
            relative_position_bias_table: tracer.parameter(&table, &[reach * reach, width / HEAD]),
            to_qkv: Linear::new(tracer, place.path("to_qkv"), [width, 3 * width], true),
            merge: Linear::new(tracer, place.path("merge"), [width, width], true),
            relative_position_index: tracer.buffer(&index, &[positions, positions], DType::Int64),
            width,
            place,
        }
    }

    fn positional_bias(&self) -> Tensor {
        let positions = Size::from(PARTITION * PARTITION);
        let bias_index = (&self.relative_position_index).view(&[Size::REST]);
        let mut bias = (&self.relative_position_bias_table)
            .index(&[Some(&bias_index)])
            .view(&[positions, positions, Size::REST]);
        bias = (&bias).permute(&[2, 0, 1]).contiguous();
        (&bias).unsqueeze(0).and_drop((bias_index, bias))
    }
}

impl Module for MultiHead {
    fn forward(&self, x: &Tensor) -> Tensor {
        let tracer = x.tracer();
        tracer.in_module(&self.place, || {
            let [batch, groups, positions] = [0, 1, 2].map(|dim| Size::from(x.size(dim)));
            let heads = Size::from(self.width / HEAD);
            let by_head = [batch, groups, positions, heads, HEAD.into()];
            let qkv = self.to_qkv.forward(x);
            let mut parts = (&qkv).chunk(3, -1);
            for part in &mut parts {
                *part = (&*part).reshape(&by_head).permute(&[0, 1, 3, 2, 4]);
            }
            let v = parts.pop();
            let k = parts.pop();
            let q = parts.pop();
            let (Some(q), Some(mut k), Some(v)) = (q, k, v) else {
                return qkv;
            };
            let scale_factor = (self.width as f64).powf(-0.5);
            k = (&k).mul_number(scale_factor);
            let einsum = |equation, a: &Tensor, b: &Tensor| {
                let tensors = Argument::Tensors(vec![a, b]);
                let equation = Argument::Text(equation);
                tracer.call(
                    "aten.einsum.default",
                    &[("equation", equation), ("tensors", tensors)],
                )
            };
            let mut dot_prod = einsum("B G H I D, B G H J D -> B G H I J", &q, &k);
            let pos_bias = self.positional_bias();
            dot_prod = (&dot_prod).add(&pos_bias).softmax(-1, None);
            let mut out = einsum("B G H I J, B G H J D -> B G H I D", &dot_prod, &v);
            let sizes = [batch, groups, positions, self.width.into()];
            out = (&out).permute(&[0, 1, 3, 2, 4]).reshape(&sizes);
            out = self.merge.forward(&out);
            out.and_drop((qkv, q, k, v, dot_prod, pos_bias))
        })
    }
}
