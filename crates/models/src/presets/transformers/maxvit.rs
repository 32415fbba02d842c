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
    classifier(sizes, "torchvision.models.maxvit.MaxVit", |at, x| {
        let stem = sequential(at, "stem", x, |stem| {
            let first = mobile(ConvNorm::new(sizes.channels, STEM).stride(2));
            stem.then(|at, name, x| first.call(at, name, x));
            let second = ConvNorm::new(STEM, STEM).without_norm();
            stem.then(|at, name, x| second.without_activation().call(at, name, x));
        });
        let mut x = stem.clone();
        let mut grid = sizes.image.map(half);
        let total: u32 = LAYERS.iter().sum();
        let mut made = 0;
        let mut input = STEM;
        for (index, (output, layers)) in CHANNELS.into_iter().zip(LAYERS).enumerate() {
            grid = grid.map(half);
            if grid.iter().any(|length| !length.is_multiple_of(PARTITION)) {
                let [height, width] = sizes.image;
                let problem = format!(
                    "images of {height} x {width} pixels are {} x {} in block {index}, which {PARTITION} does not \
                     divide; multiples of 224 fit",
                    grid[0], grid[1]
                );
                at.tracer()
                    .fail_to_make(&format!("blocks.{index}"), "reshape", problem);
                grid = [PARTITION; 2];
            }
            let class = "torchvision.models.maxvit.MaxVitBlock";
            x = sequential_of(at, (&format!("blocks.{index}"), class), &x, |block| {
                for layer in 0..layers {
                    let p = STOCHASTIC_DEPTH / f64::from(total - 1) * f64::from(made);
                    let shape = Shape {
                        channels: [input, output],
                        stride: if layer == 0 { 2 } else { 1 },
                        grid,
                        p,
                    };
                    block.named(&format!("layers.{layer}"), |at, name, x| {
                        max_vit_layer(at, name, &shape, x)
                    });
                    input = output;
                    made += 1;
                }
            });
        }
        drop(stem);
        head(at, input, sizes.classes, &x)
    })
}

/// What a layer is made from.
struct Shape {
    channels: [u64; 2],
    stride: u64,
    grid: [u64; 2],
    p: f64,
}

/// The length after a convolution of stride 2.
fn half(length: u64) -> u64 {
    length.div_ceil(2)
}

fn mobile(conv: ConvNorm) -> ConvNorm {
    conv.norm(Norm::MOBILE).activation(gelu)
}

fn head(at: &Frame, width: u64, classes: u64, x: &Tensor) -> Tensor {
    sequential(at, "classifier", x, |head| {
        head.then(|at, name, x| adaptive_pool(at, name, 1, x));
        head.then(flatten);
        head.then(|at, name, x| at.layer_norm(name, width, EPS, x));
        head.linear([width, width]);
        head.then(tanh);
        head.then(|at, name, x| at.linear(name, [width, classes], false, x));
    })
}

/// `MaxVitLayer`.
fn max_vit_layer(at: &Frame, name: &str, shape: &Shape, x: &Tensor) -> Tensor {
    let class = "torchvision.models.maxvit.MaxVitLayer";
    sequential_of(at, (name, class), x, |outer| {
        outer.named("layers", |at, name, x| {
            sequential(at, name, x, |layers| {
                layers.named("MBconv", |at, name, x| {
                    at.call(name, "MBConv", |at| mb_conv(at, shape, x))
                });
                for (name, is_grid) in [("window_attention", false), ("grid_attention", true)] {
                    layers.named(name, |at, name, x| {
                        at.call(name, "PartitionAttentionLayer", |at| {
                            attention(at, shape, is_grid, x)
                        })
                    });
                }
            })
        });
    })
}

/// `MBConv`.
fn mb_conv(at: &Frame, shape: &Shape, x: &Tensor) -> Tensor {
    let ([input, output], stride) = (shape.channels, shape.stride);
    let res = if stride != 1 || input != output {
        sequential(at, "proj", x, |proj| {
            if stride == 2 {
                let pooling = Pooling::new(3, 2, 1);
                proj.then(|at, name, x| average_pool(at, name, pooling, x));
            }
            proj.then(|at, name, x| pointwise(at, name, [input, output], x));
        })
    } else {
        x.clone()
    };
    let mid = 4 * output;
    let layers = sequential(at, "layers", x, |layers| {
        layers.named("pre_norm", |at, name, x| {
            Norm::MOBILE.call(at, name, input, x)
        });
        let expand = mobile(ConvNorm::new(input, mid).kernel(1));
        layers.named("conv_a", |at, name, x| expand.call(at, name, x));
        let depthwise = mobile(ConvNorm::new(mid, mid).stride(stride).groups(mid));
        layers.named("conv_b", |at, name, x| depthwise.call(at, name, x));
        let activations: [Activation; 2] = [new_silu, sigmoid];
        layers.named("squeeze_excitation", |at, name, x| {
            squeeze_excitation(at, name, [mid, output / 4], activations, x)
        });
        layers.named("conv_c", |at, name, x| {
            pointwise(at, name, [mid, output], x)
        });
    });
    let x = stochastic_depth(at, "stochastic_depth", shape.p, layers);
    (&res).add(&x).and_drop((x, res))
}

fn pointwise(at: &Frame, name: &str, channels: [u64; 2], x: &Tensor) -> Tensor {
    at.conv(name, channels, &[1, 1], true).forward(x)
}

/// `PartitionAttentionLayer`: of windows, or of a grid of pixels from all over the image.
fn attention(at: &Frame, shape: &Shape, is_grid: bool, x: &Tensor) -> Tensor {
    let width = shape.channels[1];
    // Python takes the number of partitions from the height alone.
    let side = if is_grid {
        shape.grid[0] / PARTITION
    } else {
        PARTITION
    };
    let counts = shape.grid.map(|length| length / side);
    let depth = |x: Tensor| stochastic_depth(at, "stochastic_dropout", shape.p, x);
    // `SwapAxes(-2, -3)` in a grid, else nothing.
    let swap = |name: &str, x: &Tensor| {
        if !is_grid {
            return x.clone();
        }
        at.call(name, "SwapAxes", |_| {
            let axes = [("axis0", Argument::Int(-2)), ("axis1", Argument::Int(-3))];
            x.apply("aten.swapaxes.default", &axes)
        })
    };
    let attend = |x: &Tensor| {
        sequential(at, "attn_layer", x, |layers| {
            layers.then(|at, name, x| at.layer_norm(name, width, EPS, x));
            layers.then(|at, name, x| {
                let class = "RelativePositionalMultiHeadAttention";
                at.call(name, class, |at| multi_head(at, width, x))
            });
            layers.dropout(0.0);
        })
    };
    let forwarded = |x: &Tensor| {
        sequential(at, "mlp_layer", x, |layers| {
            layers.then(|at, name, x| at.layer_norm(name, width, EPS, x));
            layers.linear([width, 4 * width]);
            layers.then(gelu);
            layers.linear([4 * width, width]);
            layers.dropout(0.0);
        })
    };
    let mut x = at.call("partition_op", "WindowPartition", |_| {
        partitioned(side, counts, x)
    });
    x = swap("partition_swap", &x);
    x = (&x).add(depth(attend(&x)));
    x = (&x).add(depth(forwarded(&x)));
    x = swap("departition_swap", &x);
    at.call("departition_op", "WindowDepartition", |_| {
        departitioned(side, counts, &x)
    })
}

/// `WindowPartition`, of so many pixels in each direction.
fn partitioned(p: u64, [rows, columns]: [u64; 2], x: &Tensor) -> Tensor {
    let batch = Size::from(x.size(0));
    let channels = Size::from(x.length(1));
    let side = Size::from(p);
    let x = x.reshape(&[batch, channels, rows.into(), side, columns.into(), side]);
    let x = (&x).permute(&[0, 2, 4, 3, 5, 1]).and_drop(x);
    let sizes = [batch, (rows * columns).into(), (p * p).into(), channels];
    (&x).reshape(&sizes).and_drop(x)
}

/// `WindowDepartition`.
fn departitioned(p: u64, [rows, columns]: [u64; 2], x: &Tensor) -> Tensor {
    let batch = Size::from(x.size(0));
    let channels = Size::from(x.length(3));
    let side = Size::from(p);
    let x = x.reshape(&[batch, rows.into(), columns.into(), side, side, channels]);
    let x = (&x).permute(&[0, 5, 1, 3, 2, 4]).and_drop(x);
    let sizes = [batch, channels, (rows * p).into(), (columns * p).into()];
    (&x).reshape(&sizes).and_drop(x)
}

/// `get_relative_positional_bias`
fn positional_bias(at: &Frame, heads: u64) -> Tensor {
    let positions = PARTITION * PARTITION;
    let reach = 2 * PARTITION - 1;
    let table = at.parameter("relative_position_bias_table", &[reach * reach, heads]);
    let index = at.buffer(
        "relative_position_index",
        &[positions, positions],
        DType::Int64,
    );
    let positions = Size::from(positions);
    let bias_index = (&index).view(&[Size::REST]);
    let mut bias = (&table)
        .index(&[Some(&bias_index)])
        .view(&[positions, positions, Size::REST]);
    bias = (&bias).permute(&[2, 0, 1]).contiguous();
    (&bias).unsqueeze(0).and_drop((bias_index, bias))
}

/// `RelativePositionalMultiHeadAttention`.
fn multi_head(at: &Frame, width: u64, x: &Tensor) -> Tensor {
    let [batch, groups, positions] = [0, 1, 2].map(|dim| Size::from(x.size(dim)));
    let by_head = [batch, groups, positions, (width / HEAD).into(), HEAD.into()];
    let qkv = at.linear("to_qkv", [width, 3 * width], true, x);
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
    let scale_factor = (width as f64).powf(-0.5);
    k = (&k).mul_number(scale_factor);
    let einsum = |equation, a: &Tensor, b: &Tensor| {
        let tensors = Argument::Tensors(vec![a, b]);
        let how = [("equation", Argument::Text(equation)), ("tensors", tensors)];
        at.tracer().call("aten.einsum.default", &how)
    };
    let mut dot_prod = einsum("B G H I D, B G H J D -> B G H I J", &q, &k);
    let pos_bias = positional_bias(at, width / HEAD);
    dot_prod = (&dot_prod).add(&pos_bias).softmax(-1, None);
    let mut out = einsum("B G H I J, B G H J D -> B G H I D", &dot_prod, &v);
    let sizes = [batch, groups, positions, width.into()];
    out = (&out).permute(&[0, 1, 3, 2, 4]).reshape(&sizes);
    out = at.linear("merge", [width, width], true, out);
    out.and_drop((qkv, q, k, v, dot_prod, pos_bias))
}
