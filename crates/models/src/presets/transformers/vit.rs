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
    classifier(sizes, class, |tracer| {
        let [height, width] = sizes.image;
        let patch = shape.patch;
        if height != width || !height.is_multiple_of(patch) {
            tracer.fail(
                "conv2d",
                format!(
                    "images of {height} x {width} pixels are not squares of whole patches of {patch} x {patch}"
                ),
            );
        }
        let class_token = tracer.parameter("class_token", &[1, 1, shape.width]);
        let channels = [sizes.channels, shape.width];
        let conv_proj = Conv::new(tracer, "conv_proj".into(), channels, &[patch; 2], 1, true);
        let side = height / patch;
        let encoder = new_encoder(tracer, side * side + 1, shape);
        let mut heads = Sequential::new("heads".into());
        let head = [shape.width, sizes.classes];
        heads.push(Linear::new(tracer, heads.at("head"), head, true));
        let conv_proj = conv_proj.stride(patch);
        let width = shape.width;
        move |x: &Tensor| {
            let mut x = process_input(x, &conv_proj, width);
            let batch = Size::from(x.size(0));
            let token = (&class_token).expand(&[batch, Size::REST, Size::REST]);
            x = x.tracer().cat_of(&[&token, &x], 1);
            x = encoder.forward(&x);
            x = (&x).select(1, 0);
            heads.forward(&x)
        }
    })
}

/// `_process_input`
fn process_input(x: &Tensor, conv_proj: &Conv, width: u64) -> Tensor {
    let batch = Size::from(x.size(0));
    let mut x = conv_proj.forward(x);
    let patches = x.length(2) * x.length(3);
    x = (&x).reshape(&[batch, width.into(), patches.into()]);
    (&x).permute(&[0, 2, 1])
}

/// `Encoder`.
fn new_encoder(tracer: &Tracer, length: u64, shape: &Shape) -> FnModule {
    let place = ModulePath::new("encoder", "torchvision.models.vision_transformer.Encoder");
    let sizes = [1, length, shape.width];
    let pos_embedding = tracer.parameter(&place.path("pos_embedding"), &sizes);
    let mut layers = Sequential::new(place.path("layers"));
    for layer in 0..shape.layers {
        let path = layers.at(&format!("encoder_layer_{layer}"));
        layers.push(new_block(tracer, path, shape));
    }
    let dropout = Dropout::new(place.path("dropout"), 0.0);
    let ln = LayerNorm::new(tracer, place.path("ln"), shape.width, EPS);
    FnModule::new(place, move |input| {
        let input = input.add(&pos_embedding);
        ln.on(layers.on(Module::forward(&dropout, &input)))
    })
}

/// `EncoderBlock`.
fn new_block(tracer: &Tracer, path: String, shape: &Shape) -> FnModule {
    let place = ModulePath::new(path, "torchvision.models.vision_transformer.EncoderBlock");
    let norm = |name| LayerNorm::new(tracer, place.path(name), shape.width, EPS);
    let class = "torchvision.models.vision_transformer.MLPBlock";
    let ln_1 = norm("ln_1");
    let self_attention = SelfAttention::new(tracer, place.path("self_attention"), shape);
    let dropout = Dropout::new(place.path("dropout"), 0.0);
    let ln_2 = norm("ln_2");
    let mlp = mlp(tracer, place.path("mlp"), class, [shape.width, shape.mlp]);
    FnModule::new(place, move |input| {
        let mut x = ln_1.forward(input);
        x = self_attention.forward(&x);
        x = dropout.forward(&x);
        x = (&x).add(input);
        let y = chain(&[&ln_2, &mlp], &x);
        (&x).add(&y).and_drop((x, y))
    })
}

/// `nn.MultiheadAttention(width, heads, batch_first=True)` of one tensor with itself, without weights in its answer.
struct SelfAttention {
    place: ModulePath,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor,
    heads: u64,
    width: u64,
}

impl SelfAttention {
    fn new(tracer: &Tracer, path: String, shape: &Shape) -> SelfAttention {
        let place = ModulePath::new(path, "torch.nn.modules.activation.MultiheadAttention");
        let width = shape.width;
        let parameter = |name, sizes: &[u64]| tracer.parameter(&place.path(name), sizes);
        SelfAttention {
            in_proj_weight: parameter("in_proj_weight", &[3 * width, width]),
            in_proj_bias: parameter("in_proj_bias", &[3 * width]),
            out_proj_weight: parameter("out_proj.weight", &[width, width]),
            out_proj_bias: parameter("out_proj.bias", &[width]),
            heads: shape.heads,
            width,
            place,
        }
    }

    fn forward(&self, query: &Tensor) -> Tensor {
        query.tracer().in_module(&self.place, || {
            let query = query.transpose(1, 0);
            let attn_output = self.multi_head_attention(&query);
            (&attn_output)
                .transpose(1, 0)
                .and_drop((query, attn_output))
        })
    }

    /// `_in_projection_packed`.
    fn in_projection(&self, query: &Tensor) -> [Tensor; 3] {
        let mut proj = functional::linear(query, &self.in_proj_weight, Some(&self.in_proj_bias));
        let sizes = vec![Size::from(3), self.width.into()];
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
    fn multi_head_attention(&self, query: &Tensor) -> Tensor {
        let length = query.length(0);
        let head_dim = self.width / self.heads;
        let batch = query.size(1);
        let mut projected = self.in_projection(query);
        for x in &mut projected {
            *x = (&*x)
                .view(&[length.into(), Size::REST, head_dim.into()])
                .transpose(0, 1);
        }
        for x in &mut projected {
            let sizes = [
                batch.into(),
                self.heads.into(),
                length.into(),
                head_dim.into(),
            ];
            *x = (&*x).view(&sizes);
        }
        let [q, k, v] = projected;
        let mut output = functional::attention(&q, &k, &v, Attention::default());
        output = (&output)
            .permute(&[2, 0, 1, 3])
            .contiguous()
            .view(&[Size::REST, self.width.into()]);
        let bias = Some(&self.out_proj_bias);
        output = functional::linear(&output, &self.out_proj_weight, bias);
        output = (&output).view(&[length.into(), batch.into(), self.width.into()]);
        output.and_drop((q, k, v))
    }
}
