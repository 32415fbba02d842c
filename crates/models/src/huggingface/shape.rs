//! Sizes that most configs have, by each class's names for them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::config::Config;
use crate::request_error::RequestError;

/// What the config of a class says of these sizes where it says nothing else: its own names of them, and its defaults.
static DEFAULTS: LazyLock<BTreeMap<String, Map<String, Value>>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("defaults.json")).expect("a test reads the table")
});

/// Sizes of a model; nothing where its class has no such size.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape {
    pub(super) vocabulary: u64,
    pub(super) positions: u64,
    /// Kinds of text.
    pub(super) types: u64,
    pub(super) width: u64,
    /// As wide as the model where the class has no such size.
    pub(super) embedding_width: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    /// As many as of queries where the config says no number.
    pub(super) kv_heads: u64,
    pub(super) head_dim: u64,
    /// Four times the width where the config says none.
    pub(super) intermediate: u64,
    pub(super) activation: String,
    pub(super) eps: f64,
    pub(super) dropout: f64,
    pub(super) attention_dropout: f64,
    pub(super) padding: Option<u64>,
}

impl Shape {
    /// What the config of a class says.
    pub(super) fn of(config: &Config<'_>) -> Result<Shape, RequestError> {
        Shape::with_heads_of(config, None)
    }

    /// The same, where heads are of another size unless the config says it.
    pub(super) fn with_heads_of(
        config: &Config<'_>,
        head_dim: Option<u64>,
    ) -> Result<Shape, RequestError> {
        let defaults = DEFAULTS.get(config.stem).expect("a class of the table");
        let known = |names: &[&'static str]| {
            let mut names = names.iter();
            names.find_map(|name| Some((*name, defaults.get(*name)?)))
        };
        let size = |names: &[&'static str], otherwise: u64| match known(names) {
            Some((name, default)) => config.size(name, default.as_u64().unwrap_or(otherwise)),
            None => Ok(otherwise),
        };
        let number = |names: &[&'static str]| match known(names) {
            Some((name, default)) => config.number(name, default.as_f64().unwrap_or(0.0)),
            None => Ok(0.0),
        };
        let width_names = ["hidden_size", "n_embd", "dim"];
        let heads_names = ["num_attention_heads", "n_head", "n_heads"];
        let width = size(&width_names, 0)?;
        let heads = size(&heads_names, 0)?;
        let kv_heads = match known(&["num_key_value_heads"]) {
            Some((name, default)) => config.size_or_none(name, default.as_u64())?,
            None => None,
        };
        let kv_heads = kv_heads.unwrap_or(heads);
        let name_of = |names| known(names).map_or("", |(name, _)| name);
        config.quotient([
            (name_of(&heads_names), heads),
            ("num_key_value_heads", kv_heads),
        ])?;
        let own = match known(&["head_dim"]) {
            Some((name, default)) => config.size_or_none(name, head_dim.or(default.as_u64()))?,
            None => None,
        };
        let head_dim = match own {
            Some(head_dim) => head_dim,
            None => config.quotient([
                (name_of(&width_names), width),
                (name_of(&heads_names), heads),
            ])?,
        };
        let layers = match known(&["num_hidden_layers", "n_layer", "n_layers"]) {
            Some((name, default)) => config.layers(name, default.as_u64().unwrap_or(1))?,
            None => 0,
        };
        let activation = match known(&["hidden_act", "activation_function", "activation"]) {
            Some((name, default)) => config.text(name, default.as_str().unwrap_or(""))?,
            None => "",
        };
        Ok(Shape {
            vocabulary: size(&["vocab_size"], 0)?,
            positions: size(&["max_position_embeddings", "n_positions"], 0)?,
            types: match known(&["type_vocab_size"]) {
                Some((name, default)) => config.count(name, default.as_u64().unwrap_or(0))?,
                None => 0,
            },
            width,
            embedding_width: size(&["embedding_size", "word_embed_proj_dim"], width)?,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: size(
                &[
                    "intermediate_size",
                    "n_inner",
                    "ffn_dim",
                    "hidden_dim",
                    "ffn_hidden_size",
                ],
                width.saturating_mul(4),
            )?,
            activation: activation.to_owned(),
            eps: number(&["layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"])?,
            dropout: number(&[
                "hidden_dropout_prob",
                "hidden_dropout",
                "dropout",
                "resid_pdrop",
            ])?,
            attention_dropout: number(&[
                "attention_probs_dropout_prob",
                "attention_dropout",
                "attn_pdrop",
            ])?,
            padding: match known(&["pad_token_id"]) {
                Some((name, default)) => config.token(name, default.as_u64())?,
                None => None,
            },
        })
    }
}
