//! `torchvision/models/vision_transformer.py`

use crate::presets::prelude::*;
use crate::tracing::Tensors as _;
use crate::tracing::functional::{self, Attention};

/// torchvision's vision transformers.
#[rustfmt::skip] // A row a line.
pub(in crate::presets) const PRESETS: &[Entry] = &[
    entry("vit_b_16", "torchvision's ViT-B/16", 86_567_656, AT_224, |sizes| build(sizes, &Shape::base(16))),
    entry("vit_b_32", "torchvision's ViT-B/32", 88_224_232, AT_224, |sizes| build(sizes, &Shape::base(32))),
    entry("vit_l_16", "torchvision's ViT-L/16", 304_326_632, AT_224, |sizes| build(sizes, &Shape::large(16))),
    entry("vit_l_32", "torchvision's ViT-L/32", 306_535_400, AT_224, |sizes| build(sizes, &Shape::large(32))),
    entry("vit_h_14", "torchvision's ViT-H/14", 632_045_800, AT_224, |sizes| build(sizes, &Shape::HUGE)),
];

/// Which of the family.
#[derive(Debug, Clone, Copy)]
struct Shape {
    patch: u64,
    layers: u64,
    heads: u64,
    width: u64,
    mlp: u64,
}

impl Shape {
    const HUGE: Shape = Shape {
        patch: 14,
        layers: 32,
        heads: 16,
        width: 1280,
        mlp: 5120,
    };

    const fn base(patch: u64) -> Shape {
        Shape {
            patch,
            layers: 12,
            heads: 12,
            width: 768,
            mlp: 3072,
        }
    }

    const fn large(patch: u64) -> Shape {
        Shape {
            patch,
            layers: 24,
            heads: 16,
            width: 1024,
            mlp: 4096,
        }
    }
}

const EPS: f64 = 1e-6;

fn build(sizes: &Sizes, shape: &Shape) -> Result<Graph, GraphError> {
    let class = "torchvision.models.vision_transformer.VisionTransformer";
    classifier(sizes, class, |at, x| {
        let [height, width] = sizes.image;
        let patch = shape.patch;
        if height != width || !height.is_multiple_of(patch) {
            let problem = format!(
                "images of {height} x {width} pixels are not squares of whole patches of {patch} x {patch}"
            );
            at.tracer().fail_to_make("", "conv2d", problem);
        }
        let mut x = process_input(at, [sizes.channels, shape.width], patch, x);
        let batch = Size::from(x.size(0));
        let class_token = at.parameter("class_token", &[1, 1, shape.width]);
        let token = (&class_token).expand(&[batch, Size::REST, Size::REST]);
        x = at.tracer().cat_of(&[&token, &x], 1);
        let side = height / patch;
        x = encoder(at, side * side + 1, shape, &x);
        x = (&x).select(1, 0);
        sequential(at, "heads", &x, |heads| {
            let sizes = [shape.width, sizes.classes];
            heads.named("head", |at, name, x| at.linear(name, sizes, true, x));
        })
    })
}

/// `_process_input`
fn process_input(at: &Frame, channels: [u64; 2], patch: u64, x: &Tensor) -> Tensor {
    let batch = Size::from(x.size(0));
    let conv_proj = at.conv("conv_proj", channels, &[patch; 2], true);
    let mut x = conv_proj.stride(patch).forward(x);
    let patches = x.length(2) * x.length(3);
    x = (&x).reshape(&[batch, channels[1].into(), patches.into()]);
    (&x).permute(&[0, 2, 1])
}

/// `Encoder`.
fn encoder(at: &Frame, length: u64, shape: &Shape, x: &Tensor) -> Tensor {
    at.call("encoder", "Encoder", |at| {
        let pos_embedding = at.parameter("pos_embedding", &[1, length, shape.width]);
        let input = x.add(&pos_embedding);
        let dropped = at.dropout("dropout", 0.0, &input);
        let layers = sequential(at, "layers", &dropped, |layers| {
            for layer in 0..shape.layers {
                layers.named(&format!("encoder_layer_{layer}"), |at, name, x| {
                    at.call(name, "EncoderBlock", |at| block(at, shape, x))
                });
            }
        });
        at.layer_norm("ln", shape.width, EPS, layers.and_drop(dropped))
    })
}

/// `EncoderBlock`.
fn block(at: &Frame, shape: &Shape, input: &Tensor) -> Tensor {
    let norm = |name, x: &Tensor| at.layer_norm(name, shape.width, EPS, x);
    let of = ("mlp", "torchvision.models.vision_transformer.MLPBlock");
    let mut x = norm("ln_1", input);
    x = self_attention(at, shape, &x);
    x = at.dropout("dropout", 0.0, x);
    x = (&x).add(input);
    let normed = norm("ln_2", &x);
    let y = mlp(at, of, [shape.width, shape.mlp], &normed).and_drop(normed);
    (&x).add(&y).and_drop((x, y))
}

/// `nn.MultiheadAttention(width, heads, batch_first=True)` of one tensor with itself, without weights in its answer.
fn self_attention(at: &Frame, shape: &Shape, query: &Tensor) -> Tensor {
    at.call_of(
        "self_attention",
        "torch.nn.modules.activation.MultiheadAttention",
        |at| {
            let query = query.transpose(1, 0);
            let attn_output = multi_head_attention(at, shape, &query);
            (&attn_output)
                .transpose(1, 0)
                .and_drop((query, attn_output))
        },
    )
}

/// `_in_projection_packed`.
fn in_projection(at: &Frame, width: u64, query: &Tensor) -> [Tensor; 3] {
    let weight = at.parameter("in_proj_weight", &[3 * width, width]);
    let bias = at.parameter("in_proj_bias", &[3 * width]);
    let mut proj = functional::linear(query, &weight, Some(&bias));
    let sizes = vec![Size::from(3), width.into()];
    let how = [
        ("dim", Argument::Int(-1)),
        ("sizes", Argument::Sizes(sizes)),
    ];
    let unflat = (&proj).apply("aten.unflatten.int", &how);
    proj = unflat
        .unsqueeze(0)
        .transpose(0, -2)
        .squeeze(-2)
        .contiguous();
    [0, 1, 2].map(|index| (&proj).select(0, index))
}

/// `F.multi_head_attention_forward`
fn multi_head_attention(at: &Frame, shape: &Shape, query: &Tensor) -> Tensor {
    let (width, length): (u64, Size) = (shape.width, query.length(0).into());
    let (heads, head_dim) = (shape.heads.into(), (width / shape.heads).into());
    let batch = query.size(1).into();
    let mut projected = in_projection(at, width, query);
    for x in &mut projected {
        let apart = [length, Size::REST, head_dim];
        *x = (&*x).view(&apart).transpose(0, 1);
    }
    for x in &mut projected {
        *x = (&*x).view(&[batch, heads, length, head_dim]);
    }
    let [q, k, v] = projected;
    let mut output = functional::attention(&q, &k, &v, Attention::default());
    output = (&output)
        .permute(&[2, 0, 1, 3])
        .contiguous()
        .view(&[Size::REST, width.into()]);
    let weight = at.parameter("out_proj.weight", &[width, width]);
    let bias = at.parameter("out_proj.bias", &[width]);
    output = functional::linear(&output, &weight, Some(&bias));
    output = (&output).view(&[length, batch, width.into()]);
    output.and_drop((q, k, v))
}
