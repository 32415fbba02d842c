//! Models of the Hugging Face library transformers, from their configs.
//!
//! Each file here is the Python code of a few families, line by line, traced by [`super::tracing`]. The exporter's graphs of
//! small configs lie in `tests/golden/huggingface`; a test compares the step programs of both. transformers 5.17.

mod attention;
mod config;
mod heads;
mod rotary;
mod seq2seq;
mod vision;

use serde_json::Value;

use super::fields::Fields;
use super::invalid::Invalid;
use super::tracing::Tracer;
use crate::bounded::shorten;
use crate::graph::{Graph, GraphError};
use crate::shape::DType;
use config::Config;

/// The fields of such a model in a request.
const FIELDS: [&str; 4] = ["hf", "seq_len", "target_len", "image_size"];

/// Longest sample read, in tokens or samples of sound.
const LONGEST: u64 = 1 << 24;

/// A config, and what it leaves open.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HuggingFaceModel {
    config: Value,
    sizes: Sizes,
    pointer: String,
}

/// Lengths that a config does not fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    /// Tokens of a sample, or samples or frames of sound.
    seq_len: Option<u64>,
    /// Tokens of the answer, where there is an encoder and a decoder.
    target_len: Option<u64>,
    /// Height and width of images.
    image_size: Option<[u64; 2]>,
}

/// What a model is built from.
struct Task<'a> {
    config: Config<'a>,
    class: &'a str,
    sizes: Sizes,
    dtype: DType,
    /// Where the description is in the request.
    pointer: &'a str,
}

/// Builds a model with its loss.
type Build = fn(&Task<'_>) -> Result<Graph, Invalid>;

/// The families: the classes that each builds.
const FAMILIES: &[(&[&str], Build)] = &[
    (rotary::CLASSES, rotary::build),
    (seq2seq::bart::CLASSES, seq2seq::bart::build),
    (seq2seq::whisper::CLASSES, seq2seq::whisper::build),
    (seq2seq::t5::CLASSES, seq2seq::t5::build),
    (vision::clip::CLASSES, vision::clip::build),
    (vision::convnext::CLASSES, vision::convnext::build),
    (vision::dinov2::CLASSES, vision::dinov2::build),
    (vision::swin::CLASSES, vision::swin::build),
    (vision::vit::CLASSES, vision::vit::build),
];

/// Reads `{"hf": {CONFIG}, "seq_len": N}` at `pointer`.
pub(crate) fn parse(value: &Value, pointer: &str) -> Result<HuggingFaceModel, Invalid> {
    let fields = Fields::of(value, pointer, "a Hugging Face model", &FIELDS)?;
    let config = fields.get("hf").ok_or_else(|| fields.missing("hf"))?;
    let model = HuggingFaceModel {
        config: config.clone(),
        sizes: Sizes {
            seq_len: fields.whole("seq_len", 1, LONGEST)?,
            target_len: fields.whole("target_len", 1, LONGEST)?,
            image_size: fields.pair("image_size", 1)?,
        },
        pointer: pointer.to_owned(),
    };
    builder(&model)?;
    Ok(model)
}

/// The class that a config names, and what builds it.
fn builder(model: &HuggingFaceModel) -> Result<(&str, Build), Invalid> {
    let at = format!("{}/hf", model.pointer);
    let fields = Fields::any(&model.config, &at, "a Hugging Face config")?;
    let classes = fields.texts("architectures")?.unwrap_or_default();
    let class = classes.first().ok_or_else(|| {
        Invalid::at(
            fields.at("architectures"),
            "the config names no class; add one, as in \"architectures\": [\"LlamaForCausalLM\"]",
        )
    })?;
    let family = FAMILIES.iter().find(|(classes, _)| classes.contains(class));
    let (_, build) = family.ok_or_else(|| {
        Invalid::at(
            fields.at("architectures"),
            format!(
                "batchfit does not know the class {:?}; `batchfit export --hf config.json -o model.json.gz`, of \
                 batchfit's Python client, writes the graph of any class of transformers, to be given with --model",
                shorten(class)
            ),
        )
    })?;
    Ok((class, *build))
}

/// The forward pass with its loss, with parameters of `dtype`.
pub(crate) fn lower(model: &HuggingFaceModel, dtype: DType) -> Result<Graph, Invalid> {
    let (class, build) = builder(model)?;
    build(&Task {
        config: Config::of(&model.config, &format!("{}/hf", model.pointer))?,
        class,
        sizes: model.sizes,
        dtype,
        pointer: &model.pointer,
    })
}

impl Task<'_> {
    /// Tokens of a sample, which no config says.
    fn seq_len(&self) -> Result<u64, Invalid> {
        self.sizes.seq_len.ok_or_else(|| {
            Invalid::at(
                format!("{}/seq_len", self.pointer),
                "the config does not say how many tokens a sample has; give \"seq_len\", as in \"seq_len\": 1024",
            )
        })
    }

    /// What traces the model, whose class is in this module of transformers, such as `llama.modeling_llama`.
    fn tracer(&self, module: &str) -> Tracer {
        let class = self.class;
        Tracer::new(&format!("transformers.models.{module}.{class}"), self.dtype)
    }

    /// What does not fit in the config.
    fn invalid(&self, error: &GraphError) -> Invalid {
        Invalid::at(format!("{}/hf", self.pointer), error.to_string())
    }
}
