//! What a config says of a decoder with rotary embeddings, and in what families differ.

use super::attention::QueryNorms;
use super::experts::Mixture;
use super::latent::Ranks;
use super::mlp::Layers;
use super::norm::{Formula, norm};
use super::rotation::Rotation;
use crate::huggingface::shape::Shape;
use crate::tracing::{Frame, Tensor, Tensors};

/// A model of this kind.
#[expect(
    clippy::struct_excessive_bools,
    reason = "most are options of a config, each by itself"
)]
pub(super) struct Decoder {
    /// The folder of transformers that the code is in, such as `llama`.
    pub(super) folder: &'static str,
    /// What the names of its classes begin with, such as `Llama`.
    pub(super) prefix: &'static str,
    pub(super) shape: Shape,
    /// Whether its class has tokens that begin, end and fill a text, where the config says none.
    pub(super) tokens: [bool; 3],
    pub(super) is_tied: bool,
    /// Whether the layer that makes logits has a bias.
    pub(super) head_bias: bool,

    pub(super) norm: Formula,

    pub(super) mlp: Layers,
    pub(super) mlp_bias: bool,

    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    /// `o_proj`, or what else the last layer of attention is called.
    pub(super) output_name: &'static str,
    /// Whether one layer makes queries, keys and values.
    pub(super) is_projected_as_one: bool,
    pub(super) query_norms: QueryNorms,
    pub(super) query_norm_names: [&'static str; 2],
    /// Whether queries, keys and values are all made before any is taken apart into heads: `modeling_olmo.py`.
    pub(super) is_projected_before_heads: bool,
    /// What they are clamped to then.
    pub(super) clip: Option<f64>,
    /// What scores are scaled by.
    pub(super) scale: f64,

    /// Widths of compressed keys and values, if attention compresses them.
    pub(super) ranks: Option<Ranks>,
    pub(super) mixture: Option<Mixture>,

    pub(super) rotation: Rotation,
    /// Layers without rotation, if there are any.
    pub(super) unrotated: Vec<bool>,
    /// Kinds of layers that have frequencies of their own, in the order of their buffers; none if all share them.
    pub(super) rotations: Vec<(&'static str, Rotation)>,
    pub(super) windows: Windows,

    pub(super) block: Block,
    pub(super) embedding: Scaled,
    /// Dropout of embeddings.
    pub(super) embedding_dropout: Option<f64>,
    pub(super) final_norm: &'static str,
    /// What logits are divided by.
    pub(super) logits_scaling: Option<f64>,
    /// What logits are kept within by a hyperbolic tangent.
    pub(super) softcap: Option<f64>,
}

/// Which layers attend to near tokens only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Windows {
    /// None.
    None,
    /// All of them: `modeling_mistral.py`.
    All(u64),
    /// Some of them.
    Some {
        window: Option<u64>,
        /// Whether each layer does.
        layers: Vec<bool>,
        /// Whether the mask is made even if no layer has a window: `modeling_gemma2.py`.
        always: bool,
    },
}

/// How a layer is put together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Block {
    /// Norms before each part: `LlamaDecoderLayer`.
    Before,
    /// Before each part and after it: `Gemma2DecoderLayer`.
    Around,
    /// After each part: `Olmo2DecoderLayer`.
    After,
    /// Before each part, and results are scaled before they are added: `GraniteDecoderLayer`.
    BeforeAndScaled(f64),
    /// Before each part, and dropout after it: `Phi3DecoderLayer`.
    BeforeAndDropout(f64),
    /// One norm before both parts, side by side, with dropout: `PhiDecoderLayer`.
    SideBySide(f64),
}

/// What embeddings are scaled by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scaled {
    Not,
    /// A buffer: `GemmaTextScaledWordEmbedding`.
    Buffer,
    /// A number: `modeling_granite.py`.
    Number(f64),
}

impl Decoder {
    /// What the names of the family's classes begin with.
    pub(super) fn classes(&self) -> String {
        let (folder, prefix) = (self.folder, self.prefix);
        format!("transformers.models.{folder}.modeling_{folder}.{prefix}")
    }

    /// `self.name(x)` of a norm of the family.
    pub(super) fn norm(&self, at: &Frame, name: &str, width: u64, x: impl Tensors) -> Tensor {
        norm(at, name, self.norm, (width, self.shape.eps), x)
    }

    pub(super) fn is_rotated(&self, layer: u64) -> bool {
        !of_layer(&self.unrotated, layer)
    }

    /// The experts of a layer.
    pub(super) fn mixture_of(&self, layer: u64) -> Option<&Mixture> {
        let mixture = self.mixture.as_ref();
        mixture.filter(|mixture| of_layer(&mixture.layers, layer))
    }

    /// All that is rotated by.
    pub(super) fn rotations(&self) -> impl Iterator<Item = &Rotation> {
        let own = self.rotations.iter().map(|(_, rotation)| rotation);
        own.chain([&self.rotation])
    }

    /// Which of the rotations a layer has.
    pub(super) fn rotation_of(&self, layer: u64) -> usize {
        match self.rotations.len() {
            2 => usize::from(self.has_window(layer)),
            _ => 0,
        }
    }

    /// How many tokens a layer attends to, where those are the near ones only.
    pub(super) fn window_of(&self, layer: u64) -> Option<u64> {
        match &self.windows {
            Windows::None => None,
            Windows::All(window) => Some(*window),
            Windows::Some { window, .. } => window.filter(|_| self.has_window(layer)),
        }
    }

    /// Whether a layer attends to near tokens only.
    pub(super) fn has_window(&self, layer: u64) -> bool {
        match &self.windows {
            Windows::None => false,
            Windows::All(_) => true,
            Windows::Some { layers, .. } => of_layer(layers, layer),
        }
    }
}

fn of_layer(flags: &[bool], layer: u64) -> bool {
    let layer = usize::try_from(layer).ok();
    let flag = layer.and_then(|layer| flags.get(layer));
    flag.is_some_and(|flag| *flag)
}
