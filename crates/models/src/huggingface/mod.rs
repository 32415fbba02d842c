//! Models of the Hugging Face library transformers, from their configs.
//!
//! Each file here is the Python code of a few families, line by line, traced by [`super::tracing`]. The exporter's graphs of
//! small configs lie in `tests/golden/huggingface`; a test compares the step programs of both. transformers 5.17.

mod attention;
mod causal;
mod config;
mod config_fields;
mod generation;
mod heads;
pub mod hub;
mod masked;
mod prelude;
mod rotary;
mod seq2seq;
mod shape;
mod tasks;
mod text;
mod training;
mod vision;

use serde_json::Value;

use super::fields::Fields;
use super::request_error::RequestError;
use super::tracing::{Attending, Code, Frame, Tensor, Tracer};
use super::{Generation, Length, LengthOf};
use crate::graph::{Graph, GraphError, ParameterKind};
use crate::limits::shorten;
use crate::shape::DType;
use attention::AttentionCode;
use config::Config;
pub use config_fields::of_another_library;
pub use config_fields::{ASK_BF16, config_fields};
use config_fields::{ATTENTIONS, Saying};
use training::Training;

/// The fields of such a model in a request.
const FIELDS: [&str; 12] = [
    "hf",
    "seq_len",
    "target_len",
    "loss_chunks",
    "image_size",
    "param_dtype",
    "lora",
    "frozen",
    "padded",
    "task",
    "num_labels",
    "attn_implementation",
];

/// Longest sample read, in tokens or samples of sound.
const LONGEST: u64 = 1 << 24;

/// Most chunks of a loss.
const MOST_CHUNKS: u64 = 256;

/// A config, and what it leaves open.
#[derive(Debug, Clone, PartialEq)]
pub struct HuggingFaceModel {
    config: Value,
    sizes: Sizes,
    training: Training,
    saying: Saying,
    /// The model's id on the hub, where it is described by that.
    id: Option<&'static str>,
    pointer: String,
}

/// How a model is run, as far as its reading depends on it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    /// What the precision stores parameters in; `None` for autocast, which takes them as they are loaded.
    pub stored: Option<DType>,
    /// Whether gradients are computed.
    pub trains: bool,
    /// Whether modules are checkpointed in all variants.
    pub is_checkpointed: bool,
    /// Whether steps of all lengths are run one after the other.
    pub soaks: bool,
}

impl HuggingFaceModel {
    /// Whether PEFT has adapted it.
    pub fn is_adapted(&self) -> bool {
        self.training.is_adapted()
    }

    /// The type of its weights, where a request says it.
    pub fn param_dtype(&self) -> Option<DType> {
        self.training.dtype
    }
}

/// TRL's reward trainer on an H100 reserved 3.2 % more in its second step, of longer texts than the first, than where all are of the longest;
/// GPT-2 of 64 to 1,024 tokens 2.6 times of its first steps, on an H200 (docs/use/soak.md).
const OF_ALL_LENGTHS: &str = "texts that are padded to the longest of their batch make batches of several lengths, which leave blocks behind that do \
                              not fit the next: PyTorch reserves more then, 3 % in three recorded steps and 2.6 times in a thousand; several \
                              lengths with a soak, as `--seq-len 128-512:8 --soak`, ask about that";

const LOGITS_ARE_KEPT: &str = "transformers' Trainer keeps the logits of a whole validation on the GPU, which is not simulated, unless \
                               `eval_accumulation_steps` is set or no metric is computed (`prediction_loss_only`)";

/// Lengths that a config does not fix.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sizes {
    /// Tokens of a sample, or samples or frames of sound.
    seq_len: Option<u64>,
    /// Tokens of the answer, where there is an encoder and a decoder.
    target_len: Option<u64>,
    /// Into how many chunks the tokens of a language model's loss are divided; `None` where all logits are there at once.
    loss_chunks: Option<u64>,
    /// Height and width of images.
    image_size: Option<[u64; 2]>,
    /// Whether texts are padded to the longest of their batch, so that attention has a mask.
    padded: bool,
    /// What is generated, where the graph is one of generation.
    generation: Option<Generation>,
}

impl HuggingFaceModel {
    /// The same generating text.
    pub fn generating(&self, generation: &Generation) -> Result<HuggingFaceModel, RequestError> {
        let (class, _) = builder(self)?;
        generation::check(class, &generation.pointer())?;
        Ok(HuggingFaceModel {
            sizes: Sizes {
                generation: Some(*generation),
                ..self.sizes
            },
            ..self.clone()
        })
    }

    /// The same with samples of this length. Whether the model has it turns out when it is lowered.
    #[must_use]
    pub fn at(&self, of: LengthOf, length: Length) -> HuggingFaceModel {
        let sizes = match of {
            LengthOf::SeqLen => Sizes {
                seq_len: Some(length.units(of)),
                ..self.sizes
            },
            LengthOf::ImageSize => Sizes {
                image_size: Some(length.sides()),
                ..self.sizes
            },
        };
        HuggingFaceModel {
            sizes,
            ..self.clone()
        }
    }
}

/// What a model is built from.
struct Task<'a> {
    config: Config<'a>,
    class: &'a str,
    sizes: Sizes,
    training: &'a Training,
    /// How attention is written without `scaled_dot_product_attention`, for those for which that is known.
    written: Option<AttentionCode>,
    is_eager: bool,
    dtype: DType,
    /// What adapters are stored in: float32 under autocast, as PEFT makes them (`autocast_adapter_dtype`), and with all of the
    /// model where the precision stores it in half.
    adapters: DType,
    /// Where the description is in the request.
    pointer: &'a str,
}

/// Builds a model with its loss.
type Build = fn(&Task<'_>) -> Result<Graph, RequestError>;

const CAUSAL: &str = "ForCausalLM ForSequenceClassification";
const MASKED: &str =
    "ForMaskedLM ForSequenceClassification ForTokenClassification ForQuestionAnswering";
const ANSWERS: &str = "ForConditionalGeneration";
const IMAGES: &str = "ForImageClassification";

/// The families: what the classes that each builds begin with, and what they end in.
#[rustfmt::skip] // A row a line.
const FAMILIES: &[(&str, &str, Build)] = &[
    ("Bloom", CAUSAL, causal::bloom::build),
    ("Falcon", "ForCausalLM", causal::falcon::build),
    ("GPT2", "LMHeadModel ForSequenceClassification ForTokenClassification ForQuestionAnswering", causal::gpt2::build),
    ("GPTNeoX", CAUSAL, causal::gpt_neox::build),
    ("OPT", CAUSAL, causal::opt::build),
    ("Albert", MASKED, masked::albert::build),
    ("Bert", MASKED, masked::bert::build),
    ("DebertaV2", "ForMaskedLM ForTokenClassification ForQuestionAnswering", masked::deberta_v2::build),
    ("DistilBert", MASKED, masked::distilbert::build),
    ("Electra", MASKED, masked::electra::build),
    ("Roberta XLMRoberta Camembert MPNet", MASKED, masked::roberta::build),
    ("Bart MBart Pegasus", ANSWERS, seq2seq::bart::build),
    ("Whisper", ANSWERS, seq2seq::whisper::build),
    ("T5", ANSWERS, seq2seq::t5::build),
    ("CLIP", "ForImageClassification Model", vision::clip::build),
    ("ConvNext ConvNextV2", IMAGES, vision::convnext::build),
    ("Dinov2", IMAGES, vision::dinov2::build),
    ("Swin", IMAGES, vision::swin::build),
    ("ViT DeiT", IMAGES, vision::vit::build),
    ("Llama Mistral Mixtral Qwen2 Qwen3 Qwen2Moe Qwen3Moe Gemma Gemma2 Phi Phi3 Olmo Olmo2 DeepseekV2 DeepseekV3 SmolLM3", CAUSAL, rotary::build),
    ("Gemma3 Granite", "ForCausalLM", rotary::build),
];

/// Reads `{"hf": {CONFIG}, "seq_len": N}` at `pointer`.
pub fn parse(value: &Value, pointer: &str) -> Result<HuggingFaceModel, RequestError> {
    let fields = Fields::of(value, pointer, "a Hugging Face model", &FIELDS)?;
    let config = fields.get("hf").ok_or_else(|| fields.missing("hf"))?;
    let config = tasks::chosen(&fields, config, pointer)?;
    let mut saying = Saying::read(&config, &format!("{pointer}/hf"))?;
    let attention = fields.choice("attn_implementation", "attention", &ATTENTIONS)?;
    saying.is_eager = attention.unwrap_or(saying.is_eager);
    let model = HuggingFaceModel {
        saying,
        id: None,
        config,
        sizes: Sizes {
            seq_len: fields.whole("seq_len", 1, LONGEST)?,
            target_len: fields.whole("target_len", 1, LONGEST)?,
            loss_chunks: fields.whole("loss_chunks", 1, MOST_CHUNKS)?,
            image_size: fields.pair("image_size", 1)?,
            padded: fields.flag("padded")?.unwrap_or(false),
            generation: None,
        },
        training: Training::parse(&fields)?,
        pointer: pointer.to_owned(),
    };
    let (class, _) = builder(&model)?;
    let takes_images = class.ends_with("ForImageClassification");
    let sizes = [
        ("seq_len", !takes_images),
        ("image_size", takes_images),
        ("target_len", class.ends_with("ForConditionalGeneration")),
    ];
    for (size, is_taken) in sizes {
        if !is_taken && fields.get(size).is_some() {
            let problem = format!("samples of {class} have no {size}; leave it out");
            return Err(fields.wrong(size, problem));
        }
    }
    model.training.check(class, &format!("{pointer}/lora"))?;
    if model.sizes.loss_chunks.is_some() && !is_language_model(class) {
        return Err(RequestError::at(
            format!("{pointer}/loss_chunks"),
            format!("losses in chunks are built for causal language models, not for {class}"),
        ));
    }
    Ok(model)
}

/// Whether each token is to be told from those before it.
fn is_language_model(class: &str) -> bool {
    class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel")
}

/// Reads `{"preset": ID, "seq_len": N}` at `pointer`, where the id is that of `model`.
pub(crate) fn parse_hub(
    model: &'static hub::HubModel,
    value: &Value,
    pointer: &str,
) -> Result<HuggingFaceModel, RequestError> {
    let known = FIELDS.map(|field| if field == "hf" { "preset" } else { field });
    Fields::of(value, pointer, &model.id, &known)?;
    let mut description = value.as_object().cloned().unwrap_or_default();
    description.remove("preset");
    description.insert("hf".to_owned(), model.config.clone());
    let seq_len = model.seq_len.or_else(|| hub::assumed_tokens_of(&model.id));
    let lengths = [("seq_len", seq_len), ("target_len", model.target_len)];
    for (name, length) in lengths {
        if let Some(length) = length {
            let given = description.entry(name).or_insert(Value::Null);
            if given.is_null() {
                *given = Value::from(length);
            }
        }
    }
    let parsed = parse(&Value::Object(description), pointer)?;
    Ok(HuggingFaceModel {
        id: Some(&model.id),
        ..parsed
    })
}

/// What builds a class, where something does.
fn build_of(class: &str) -> Option<Build> {
    let has = |words: &str, word: &str| words.split(' ').any(|known| known == word);
    let is_built = |(names, endings, _): &&(&str, &str, Build)| {
        let is_of = |name| class.strip_prefix(name).is_some_and(|it| has(endings, it));
        names.split(' ').any(is_of)
    };
    FAMILIES.iter().find(is_built).map(|(.., build)| *build)
}

/// The class that a config names, and what builds it.
fn builder(model: &HuggingFaceModel) -> Result<(&str, Build), RequestError> {
    let at = format!("{}/hf", model.pointer);
    let fields = Fields::any(&model.config, &at, "a Hugging Face config")?;
    let classes = fields.texts("architectures")?.unwrap_or_default();
    let class = classes.first().ok_or_else(|| {
        let other = of_another_library(|member| fields.get(member).is_some());
        fields.wrong("architectures", other.as_deref().unwrap_or("the config names no class; add one, as in \"architectures\": [\"LlamaForCausalLM\"]"),
        )
    })?;
    let build = build_of(class).ok_or_else(|| {
        fields.wrong("architectures", format!(
                "batchfit does not know the class {:?}; batchfit's Python client exports it {}, and --model takes the file",
                shorten(class),
                tasks::exported(class)
            ),
        )
    })?;
    Ok((class, build))
}

/// The forward pass with its loss, and sentences for the answer. Parameters are of the dtype that the description names, else that
/// of the precision, else that of the config.
pub fn lower(model: &HuggingFaceModel, run: Run) -> Result<(Graph, Vec<String>), RequestError> {
    let (class, build) = builder(model)?;
    let (saying, stated) = (model.saying, model.training.dtype);
    saying.check(model, run)?;
    let written = attention::attention_code(class);
    model.attends(class, written)?;
    let loaded = stated.or(run.stored).or(saying.dtype);
    let graph = build(&Task {
        config: Config::of_class(&model.config, &format!("{}/hf", model.pointer), class)?,
        class,
        sizes: model.sizes,
        training: &model.training,
        written,
        is_eager: saying.is_eager,
        dtype: loaded.unwrap_or(DType::Float32),
        adapters: run.stored.unwrap_or(DType::Float32),
        pointer: &model.pointer,
    })?;
    model.training.check_frozen(&graph, &model.pointer)?;
    if !graph
        .parameters
        .iter()
        .any(|parameter| parameter.kind == ParameterKind::Trained)
    {
        return Err(model.training.nothing_trained(&graph, &model.pointer));
    }
    let mut notes = model.training.unadapted(&graph, &model.pointer)?;
    notes.extend(
        model
            .id
            .and_then(hub::find)
            .and_then(|known| known.note.clone()),
    );
    notes.extend(
        is_language_model(class)
            .then(|| tasks::images_left_out(&model.config))
            .flatten(),
    );
    notes.extend(saying.note(stated, run));
    if !run.trains && model.sizes.loss_chunks.is_some() {
        notes.push("inference has no loss, so `loss_chunks` changes nothing".to_owned());
    }
    if run.trains && model.sizes.generation.is_none() {
        notes.extend(run.soaks.then(|| LOGITS_ARE_KEPT.to_owned()));
        notes.extend(tasks::note(model, class));
        notes.extend((model.sizes.padded && !run.soaks).then(|| OF_ALL_LENGTHS.to_owned()));
    }
    Ok((graph, notes))
}

impl HuggingFaceModel {
    /// Refuses attention that is not built.
    fn attends(&self, class: &str, written: Option<AttentionCode>) -> Result<(), RequestError> {
        let generates = self.sizes.generation.is_some();
        let is_causal = written.and_then(|written| written.causal);
        let (member, what) = if self.saying.is_eager && (written.is_none() || generates) {
            ("attn_implementation", "eager attention")
        } else if self.sizes.padded && (is_causal.is_none() || generates) {
            ("padded", "attention with padding")
        } else if self
            .saying
            .is_causal
            .is_some_and(|said| is_causal != Some(said))
        {
            ("hf/is_causal", "attention with this `is_causal`")
        } else {
            return Ok(());
        };
        let problem = format!(
            "{what} is not built for {class}{}; `batchfit export`, of batchfit's Python client, writes the graph of such a model",
            if generates { " that generates" } else { "" }
        );
        Err(RequestError::at(
            format!("{}/{member}", self.pointer),
            problem,
        ))
    }
}

impl Task<'_> {
    /// Tokens of a sample, which no config says.
    fn seq_len(&self) -> Result<u64, RequestError> {
        self.sizes.seq_len.ok_or_else(|| {
            RequestError::at(
                format!("{}/seq_len", self.pointer),
                "the config does not say how many tokens a sample has: give seq_len, such as 512",
            )
        })
    }

    /// What traces the model, whose class is in this module of transformers, such as `llama.modeling_llama`.
    fn tracer(&self, module: &str) -> Tracer {
        let class = self.class;
        let tracer = Tracer::new(&format!("transformers.models.{module}.{class}"), self.dtype);
        tracer.train(self.training.trained(&self.config, self.adapters));
        let eager = self.written.filter(|_| self.is_eager);
        tracer.attend(Attending {
            eager: eager.map(|written| written.eager),
            ..Attending::default()
        });
        tracer
    }

    /// What traces the model, whose code is there and makes the module of this name first.
    fn frame(&self, code: Code, first: &str) -> Frame {
        let at = Frame::new(&self.tracer(code.module), code);
        at.made(&[first]);
        at
    }

    /// Tokens of a sample, or those that are read where text is generated.
    fn tokens_read(&self) -> Result<u64, RequestError> {
        match self.sizes.generation {
            None => self.seq_len(),
            Some(generation) => Ok(generation.tokens_read()),
        }
    }

    /// Refuses as many tokens as [`tokens_read`](Task::tokens_read) says: `but` says why.
    fn too_many(&self, tokens: u64, but: &str) -> RequestError {
        let Some(generation) = &self.sizes.generation else {
            let at = format!("{}/seq_len", self.pointer);
            return RequestError::at(at, format!("seq_len is {tokens}, but {but}"));
        };
        let Generation {
            prompt,
            tokens: new,
            ..
        } = generation;
        let longer = if prompt >= new { "prompt" } else { "tokens" };
        let problem = format!(
            "a prompt of {prompt} tokens and {new} new ones are {tokens} tokens that are read, but {but}"
        );
        RequestError::at(generation.at(longer), problem)
    }

    /// Tokens of a sample, for which a model of `most` positions has to have an embedding each; the config says so at `name`.
    fn tokens_of(&self, name: &str, most: u64) -> Result<u64, RequestError> {
        let tokens = self.tokens_read()?;
        if tokens <= most {
            return Ok(tokens);
        }
        let but = format!("{name} of the config leaves room for {most} tokens");
        Err(self.too_many(tokens, &but))
    }

    /// The traced graph.
    fn finish(&self, tracer: Tracer, loss: &Tensor) -> Result<Graph, RequestError> {
        tracer.finish(loss).map_err(|error| self.invalid(&error))
    }

    /// What does not fit in the config.
    fn invalid(&self, error: &GraphError) -> RequestError {
        RequestError::at(format!("{}/hf", self.pointer), error.to_string())
    }
}
