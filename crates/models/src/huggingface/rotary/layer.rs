//! Layers of decoders with rotary embeddings.

use super::attention::Attention;
use super::decoder::{Block, Decoder};
use super::experts::{Block as Experts, Products};
use super::latent::LatentAttention;
use super::mlp::mlp;
use super::norm::Norm;
use super::rotation::Rotations;
use crate::huggingface::generation::GenerationInputs;
use crate::huggingface::prelude::*;

/// What a layer is given besides its states: rotations, a mask, and what is kept of earlier tokens.
pub(super) type Around<'a> = (
    &'a Rotations,
    Option<&'a Tensor>,
    Option<&'a GenerationInputs<'a>>,
);

/// `LlamaDecoderLayer`, and those of other families.
pub(super) struct Layer {
    place: ModulePath,
    self_attn: SelfAttention,
    mlp: FeedForward,
    norms: Norms,
    added: Added,
}

/// The attention of a layer.
type SelfAttention = Box<dyn Fn(&Tensor, Around<'_>) -> Tensor>;

/// The feed-forward part of a layer.
type FeedForward = Box<dyn Fn(&Tensor, Option<&GenerationInputs<'_>>) -> Tensor>;

/// Norms of a layer; those that a family has.
#[derive(Default)]
struct Norms {
    before_attention: Option<Norm>,
    after_attention: Option<Norm>,
    before_mlp: Option<Norm>,
    after_mlp: Option<Norm>,
}

/// How results are added to what a part was given.
enum Added {
    Plain,
    Scaled(f64),
    Dropout([Dropout; 2]),
    /// Both at once.
    Together(Dropout),
}

impl Layer {
    pub(super) fn new(tracer: &Tracer, path: String, config: &Decoder, layer: u64) -> Layer {
        let place = ModulePath::new(path, config.class("DecoderLayer"));
        let path = place.path("self_attn");
        let self_attn: SelfAttention = if let Some(ranks) = config.ranks {
            let attention = LatentAttention::new(tracer, path, config, (layer, ranks));
            Box::new(move |x, around| attention.forward(x, around))
        } else {
            let attention = Attention::new(tracer, path, config, layer);
            Box::new(move |x, around| attention.forward(x, around))
        };
        let path = place.path("mlp");
        let mlp: FeedForward = if let Some(mixture) = config.mixture_of(layer) {
            let experts = Experts::new(tracer, path, config, mixture);
            Box::new(move |x, past| {
                let products = match past {
                    Some(past) if past.is_decoding => Products::Batched,
                    _ => Products::Grouped,
                };
                experts.forward(x, products)
            })
        } else {
            let dense = mlp(tracer, path, config, config.intermediate);
            Box::new(move |x, _| dense.forward(x))
        };
        let norm = |name: &str| Some(config.norm(tracer, place.path(name), config.width));
        let before = || Norms {
            before_attention: norm("input_layernorm"),
            before_mlp: norm("post_attention_layernorm"),
            ..Norms::default()
        };
        let dropout = |name: &str, p| Dropout::new(place.path(name), p);
        let (norms, added) = match config.block {
            Block::Before => (before(), Added::Plain),
            Block::BeforeAndScaled(scale) => (before(), Added::Scaled(scale)),
            Block::BeforeAndDropout(p) => {
                let names = ["resid_attn_dropout", "resid_mlp_dropout"];
                (before(), Added::Dropout(names.map(|name| dropout(name, p))))
            }
            Block::Around => {
                let norms = Norms {
                    before_attention: norm("input_layernorm"),
                    after_attention: norm("post_attention_layernorm"),
                    before_mlp: norm("pre_feedforward_layernorm"),
                    after_mlp: norm("post_feedforward_layernorm"),
                };
                (norms, Added::Plain)
            }
            Block::After => {
                let norms = Norms {
                    after_attention: norm("post_attention_layernorm"),
                    after_mlp: norm("post_feedforward_layernorm"),
                    ..Norms::default()
                };
                (norms, Added::Plain)
            }
            Block::SideBySide(p) => {
                let norms = Norms {
                    before_attention: norm("input_layernorm"),
                    ..Norms::default()
                };
                (norms, Added::Together(dropout("resid_dropout", p)))
            }
        };
        Layer {
            place,
            self_attn,
            mlp,
            norms,
            added,
        }
    }

    pub(super) fn forward(&self, x: &Tensor, around: Around<'_>) -> Tensor {
        x.tracer().in_module(&self.place, || {
            if let Added::Together(dropout) = &self.added {
                return self.side_by_side(x, around, dropout);
            }
            let mut hidden_states = normalized(x.clone(), self.norms.before_attention.as_ref());
            hidden_states = (self.self_attn)(&hidden_states, around);
            hidden_states = normalized(hidden_states, self.norms.after_attention.as_ref());
            hidden_states = self.add(x, &hidden_states, 0);
            let residual = hidden_states.clone();
            hidden_states = normalized(hidden_states, self.norms.before_mlp.as_ref());
            hidden_states = (self.mlp)(&hidden_states, around.2);
            hidden_states = normalized(hidden_states, self.norms.after_mlp.as_ref());
            hidden_states = self.add(&residual, &hidden_states, 1);
            hidden_states.and_drop(residual)
        })
    }

    /// `residual + hidden_states` after the attention, which is part 0, or the feed-forward, which is part 1.
    fn add(&self, residual: &Tensor, hidden_states: &Tensor, part: usize) -> Tensor {
        match &self.added {
            Added::Scaled(scale) => residual.add(hidden_states.mul_number(*scale)),
            Added::Dropout(dropouts) => residual.add(dropouts[part].forward(hidden_states)),
            Added::Plain | Added::Together(_) => residual.add(hidden_states),
        }
    }

    /// `PhiDecoderLayer.forward`.
    fn side_by_side(&self, x: &Tensor, around: Around<'_>, dropout: &Dropout) -> Tensor {
        let mut hidden_states = normalized(x.clone(), self.norms.before_attention.as_ref());
        let mut attn_outputs = (self.self_attn)(&hidden_states, around);
        attn_outputs = dropout.forward(&attn_outputs);
        let feed_forward = dropout.forward((self.mlp)(&hidden_states, around.2));
        hidden_states = (&attn_outputs).add(&feed_forward).add(x);
        hidden_states.and_drop((attn_outputs, feed_forward))
    }
}

/// `hidden_states = norm(hidden_states)`, where there is such a norm.
fn normalized(mut hidden_states: Tensor, norm: Option<&Norm>) -> Tensor {
    if let Some(norm) = norm {
        hidden_states = norm.forward(&hidden_states);
    }
    hidden_states
}
