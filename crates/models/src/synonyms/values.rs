//! Values: precisions, optimizers and the like.

use serde_json::Value;

/// What another library's word is in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueSynonym {
    /// This word.
    Is(&'static str),
    /// None, however much it looks like one: what to do instead.
    Other(&'static str),
}

use ValueSynonym::{Is, Other};

/// What PyTorch or a library has, and no request says.
const NOT_MODELLED: ValueSynonym = Other(
    "it is not modelled; `batchfit run --on CARD -- python train.py` runs your own script with it on a virtual GPU",
);

/// Other spellings, without underscores, that mean exactly the same: they are taken, all others are suggested.
pub(super) const SAME: &str = "\
    float32 32 32true fp32true torchfloat32 16mixed fp16mixed ampfloat16 bf16mixed ampbfloat16 float16 half 16true fp16true \
    torchfloat16 bfloat16 bf16true torchbfloat16 adamw adamwtorch adamwtorchfused adam adamtorch sgd sgdtorch adamw8bit pagedadamw8bit \
    adamwtorch8bit adafactor";

/// The words for one kind of value, with blanks between.
type SynonymTable = &'static [(&'static str, ValueSynonym)];

/// Words that say a second member too, where that is not written: each word without underscores, the member, and its value.
const IMPLIED: &[(&str, &str, &str)] = &[("adamwtorchfused", "optimizer_impl", "fused")];

/// What a word of one member says of another.
pub(crate) fn implied(word: &str, member: &str) -> Option<&'static str> {
    let word = super::normal(word).replace('_', "");
    let row = IMPLIED
        .iter()
        .find(|row| (row.0, row.1) == (&*word, member))?;
    Some(row.2)
}

/// Lightning's `16-mixed`, Hugging Face's `fp16`, PyTorch's `torch.float16`.
const PRECISIONS: SynonymTable = &[
    (
        "float32 float full single 32 32_true fp32_true torch_float32 no none false",
        Is("fp32"),
    ),
    (
        "16_mixed fp16_mixed amp mixed mixed_precision mixed_fp16 mixed_float16 autocast amp_float16 fp16_amp true",
        Is("amp_fp16"),
    ),
    (
        "bf16_mixed mixed_bf16 mixed_bfloat16 amp_bfloat16 bf16_amp",
        Is("amp_bf16"),
    ),
    (
        "float16 half 16 16_true fp16_true torch_float16",
        Is("fp16"),
    ),
    ("bfloat16 bf16_true torch_bfloat16", Is("bf16")),
    (
        "tf32 high highest medium",
        Other("it is how float32 is multiplied, which takes the same memory; write \"fp32\""),
    ),
    (OTHER_TYPES, NOT_MODELLED),
];

/// Types of PyTorch, torchao, Transformer Engine and bitsandbytes that no request has.
const OTHER_TYPES: &str = "fp64 float64 double 64 64_true torch_float64 fp8 mxfp8 float8 float8_e4m3fn float8_e5m2 torch_float8_e4m3fn \
    torch_float8_e5m2 transformer_engine fp4 nvfp4 mxfp4 nf4 int8 int8_mixed uint8 torch_int8 int4 4bit 8bit qlora";

/// `torch.float32` and its like, for weights.
const TYPES: SynonymTable = &[
    ("float32 float torch_float32", Is("fp32")),
    ("bfloat16 torch_bfloat16", Is("bf16")),
    ("float16 half torch_float16", Is("fp16")),
    (
        "auto",
        Other("leave it out for the type that `from_pretrained` loads"),
    ),
    (OTHER_TYPES, NOT_MODELLED),
];

/// The same where a config has PyTorch's names.
const TYPES_OF_CONFIGS: SynonymTable = &[
    ("fp32 float torch_float32", Is("float32")),
    ("bf16 torch_bfloat16", Is("bfloat16")),
    ("fp16 half torch_float16", Is("float16")),
    (OTHER_TYPES, NOT_MODELLED),
];

/// transformers' `attn_implementation`.
const ATTENTIONS: SynonymTable = &[
    (
        "flash flash_attn flash_attention fa2",
        Is("flash_attention_2"),
    ),
    ("flash_attn_3 fa3", Is("flash_attention_3")),
    ("manual math vanilla", Is("eager")),
    (
        "torch scaled_dot_product_attention mem_efficient",
        Is("sdpa"),
    ),
    (
        "flex flex_attention flash_attention_4 flash_mla paged|eager paged|sdpa paged|flash_attention_2 paged_attention \
         sage_attention xformers",
        NOT_MODELLED,
    ),
];

/// Tasks by the names of the Hub's pipelines.
const TASKS: SynonymTable = &[
    (
        "text_classification sentiment_analysis regression reward classification",
        Is("sequence_classification"),
    ),
    ("ner token_class", Is("token_classification")),
    ("qa extractive_qa", Is("question_answering")),
    ("mlm fill_mask", Is("masked_lm")),
    ("clm text_generation lm sft pretraining", Is("causal_lm")),
    (
        "dpo kto orpo ppo grpo embedding feature_extraction sentence_similarity",
        NOT_MODELLED,
    ),
];

/// transformers' `cache_implementation`.
const CACHES: SynonymTable = &[(
    "quantized offloaded offloaded_static offloaded_hybrid sliding_window hybrid paged",
    NOT_MODELLED,
)];

/// Hugging Face's `optim`, and PyTorch's classes.
const OPTIMIZERS: SynonymTable = &[
    ("adamw adamw_torch adamw_torch_fused adamw_hf", Is("adamw")),
    ("adam adam_torch", Is("adam")),
    ("sgd sgd_torch vanilla_sgd", Is("sgd")),
    (
        "momentum nesterov sgdm sgd_nesterov momentum_sgd sgd_with_momentum",
        Is("sgd_momentum"),
    ),
    ("adamw_8bit", Is("adamw_8bit")),
    (
        "paged_adamw_8bit paged_adamw_bnb_8bit",
        Is("paged_adamw_8bit"),
    ),
    (
        "adamw_torch_8bit torchao_adamw_8bit torchao_optim_adam_w8bit",
        Is("adamw_8bit_torchao"),
    ),
    ("adafactor", Is("adafactor")),
    (
        "paged_adamw_32bit paged_adamw adamw_apex_fused adamw_anyprecision adam_8bit adagrad adadelta adamax nadam nadamw radam \
         rmsprop rmsprop_torch rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit rprop asgd sparse_adam lbfgs muon lion lion_8bit \
         lion_32bit paged_lion_8bit paged_lion_32bit ademamix ademamix_8bit paged_ademamix_8bit paged_ademamix_32bit adamw_4bit \
         adamw_torch_4bit torchao_adamw_4bit adamw_fp8 adamw_torch_fp8 galore_adamw galore_adamw_8bit galore_adafactor \
         galore_adamw_layerwise apollo_adamw apollo_adamw_layerwise lomo adalomo grokadamw stable_adamw schedule_free_adamw \
         schedule_free_radam schedule_free_sgd adan adam_mini adamp adamg adabelief came sgdw sgdp lamb lars shampoo soap \
         sophia prodigy dadapt_adam cpu_adam deepspeed_cpu_adam",
        NOT_MODELLED,
    ),
];

const IMPLEMENTATIONS: SynonymTable = &[
    ("fused_true true torch_fused", Is("fused")),
    ("default auto multi_tensor", Is("foreach")),
    ("single_tensor loop forloop false", Is("for_loop")),
    ("apex capturable compiled triton", NOT_MODELLED),
];

const CHECKPOINTINGS: SynonymTable = &[
    (
        "true full all on yes block blocks per_layer every_block gradient_checkpointing",
        Is("per_block"),
    ),
    ("false off no disabled", Is("none")),
    (
        "selective selective_op op offload cpu_offload offloaded save_on_cpu unsloth",
        NOT_MODELLED,
    ),
];

const MODES: SynonymTable = &[
    ("training fit", Is("train")),
    (
        "eval evaluation evaluate test predict no_grad infer",
        Is("inference"),
    ),
];

const SEARCHES: SynonymTable = &[
    ("simulated simulation default", Is("auto")),
    ("real gpu probed", Is("probes")),
];

/// The words for a kind of value, and in which field those are.
const KINDS: [(&str, &str, SynonymTable); 12] = [
    ("precision", "precision", PRECISIONS),
    ("optimizer", "optimizer", OPTIMIZERS),
    (
        "optimizer implementation",
        "optimizer_impl",
        IMPLEMENTATIONS,
    ),
    ("checkpointing", "checkpointing", CHECKPOINTINGS),
    ("mode", "mode", MODES),
    ("search", "search", SEARCHES),
    ("dtype", "param_dtype", TYPES),
    ("type", "reduce_dtype", TYPES),
    ("type of weights", "torch_dtype", TYPES_OF_CONFIGS),
    ("attention", "attn_implementation", ATTENTIONS),
    ("task", "task", TASKS),
    ("cache", "cache", CACHES),
];

/// The word of a request for another library's word, in its normal spelling.
pub(super) fn of(what: &str, normal: &str) -> Option<ValueSynonym> {
    let (_, _, words) = KINDS.iter().find(|(kind, ..)| *kind == what)?;
    let find = |normal: &str| {
        let is_it = |other: &str| other == normal;
        let found = words
            .iter()
            .find(|(others, _)| others.split(' ').any(is_it));
        found.map(|(_, word)| *word)
    };
    // A class, such as `bnb.optim.AdamW8bit`.
    let class = || {
        let whole = |word: &str| word.replace('_', "");
        let named = whole(normal.rsplit("optim_").next()?);
        let is_it = |other: &str| whole(other) == named;
        let found = words
            .iter()
            .find(|(others, _)| others.split(' ').any(is_it));
        found.map(|(_, word)| *word)
    };
    // A type of `--amp`: one that is none of autocast's is what it is without.
    let without = || match (find(normal.strip_prefix("amp_")?), &normal[4..]) {
        (_, "fp32") | (Some(Is("fp32")), _) => Some(Is("fp32")),
        (Some(Is("fp16" | "amp_fp16")), _) => Some(Is("amp_fp16")),
        (Some(Is(_)), _) => Some(Is("amp_bf16")),
        (other, _) => other,
    };
    find(normal).or_else(without).or_else(class)
}

/// The value of a field in the words of a request, where it is in another library's.
pub(super) fn meant(field: &str, value: Option<&Value>) -> Option<Value> {
    let value = value?;
    let kind = KINDS.iter().find(|(_, known, _)| *known == field);
    let written = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match kind.and_then(|(what, ..)| of(what, &super::normal(&written))) {
        Some(Is(word)) => Some(Value::from(word)),
        Some(Other(_)) => None,
        None => Some(value.clone()),
    }
}

#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str, ValueSynonym)> {
    let rows = |(what, _, rows): (_, _, SynonymTable)| {
        rows.iter()
            .map(move |(others, word)| (what, *others, *word))
    };
    KINDS.into_iter().flat_map(rows)
}
