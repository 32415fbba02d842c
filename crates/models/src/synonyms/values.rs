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
    float32 32 32true fp32true torchfloat32 16mixed fp16mixed ampfloat16 mixed mixedprecision mixedfp16 amp bf16mixed ampbfloat16 mixedbf16 float16 half 16true fp16true \
    torchfloat16 bfloat16 bf16true torchbfloat16 adamw adamwtorch adamwtorchfused adam adamtorch sgd sgdtorch adamw8bit pagedadamw8bit \
    adamwtorch8bit adafactor";

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

/// The words of others for values, a line each: the fields, the word of a request (or what to do instead; `-` where it is not modelled),
/// and what others write, in its normal spelling. After Lightning, transformers, PyTorch, torchao, bitsandbytes and the Hub.
const TABLE: &str = include_str!("values.txt");

/// What a kind of value is called, and its field.
const KINDS: [(&str, &str); 12] = [
    ("precision", "precision"),
    ("optimizer", "optimizer"),
    ("optimizer implementation", "optimizer_impl"),
    ("checkpointing", "checkpointing"),
    ("mode", "mode"),
    ("search", "search"),
    ("dtype", "param_dtype"),
    ("type", "reduce_dtype"),
    ("type of weights", "torch_dtype"),
    ("attention", "attn_implementation"),
    ("task", "task"),
    ("cache", "cache"),
];

/// What others write in a field, and what it is.
fn rows(field: &str) -> impl Iterator<Item = (&'static str, ValueSynonym)> {
    TABLE.lines().filter_map(move |line| {
        let (fields, rest) = line.split_once(" | ")?;
        let (word, others) = rest.split_once(" | ")?;
        let word = match word {
            "-" => NOT_MODELLED,
            advice if advice.contains(' ') => Other(advice),
            word => Is(word),
        };
        fields
            .split(' ')
            .any(|one| one == field)
            .then_some((others, word))
    })
}

/// The word of a request for another library's word, in its normal spelling.
pub(super) fn of(what: &str, normal: &str) -> Option<ValueSynonym> {
    let (_, field) = KINDS.iter().find(|(kind, _)| *kind == what)?;
    let find = |normal: &str| {
        let is_it = |other: &str| other == normal;
        let found = rows(field).find(|(others, _)| others.split(' ').any(is_it));
        found.map(|(_, word)| word)
    };
    // A class, such as `bnb.optim.AdamW8bit`.
    let class = || {
        let whole = |word: &str| word.replace('_', "");
        let named = whole(normal.rsplit("optim_").next()?);
        let is_it = |other: &str| whole(other) == named;
        let found = rows(field).find(|(others, _)| others.split(' ').any(is_it));
        found.map(|(_, word)| word)
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
    let kind = KINDS.iter().find(|(_, known)| *known == field);
    let written = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match kind.and_then(|(what, _)| of(what, &super::normal(&written))) {
        Some(Is(word)) => Some(Value::from(word)),
        Some(Other(_)) => None,
        None => Some(value.clone()),
    }
}

#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str, ValueSynonym)> {
    let named = |(what, field)| rows(field).map(move |(others, word)| (what, others, word));
    KINDS.into_iter().flat_map(named)
}
