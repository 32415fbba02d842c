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
/// and what others write, in its normal spelling: after ` = ` what means exactly the same and is taken, after ` | ` what is suggested.
/// After Lightning, transformers, PyTorch, torchao, bitsandbytes and the Hub.
const TABLE: &str = include_str!("values.txt");

/// What a kind of value is called, and its field.
const KINDS: [(&str, &str); 14] = [
    ("precision", "precision"),
    ("optimizer", "optimizer"),
    ("optimizer implementation", "optimizer_impl"),
    ("checkpointing", "checkpointing"),
    ("mode", "mode"),
    ("strategy", "strategy"),
    ("search", "search"),
    ("dtype", "param_dtype"),
    ("type", "reduce_dtype"),
    ("type of weights", "torch_dtype"),
    ("attention", "attn_implementation"),
    ("task", "task"),
    ("cache", "cache"),
    ("target_modules", "target_modules"),
];

/// What others write in a field, what it is, and whether it is taken.
fn rows(field: &str) -> impl Iterator<Item = (&'static str, ValueSynonym, bool)> {
    TABLE.lines().filter_map(move |line| {
        let is_taken = !line.contains(" | ");
        let mut parts = line.splitn(3, if is_taken { " = " } else { " | " });
        let (fields, word, others) = (parts.next()?, parts.next()?, parts.next()?);
        let word = match word {
            "-" => NOT_MODELLED,
            advice if advice.contains(' ') => Other(advice),
            word => Is(word),
        };
        let mut fields = fields.split(' ');
        fields
            .any(|one| one == field)
            .then_some((others, word, is_taken))
    })
}

/// The word of a request for another library's word, in its normal spelling, and whether it is taken.
pub(super) fn of(what: &str, normal: &str) -> Option<(ValueSynonym, bool)> {
    let (_, field) = KINDS.iter().find(|(kind, _)| *kind == what)?;
    let find = |is_it: &dyn Fn(&str) -> bool| {
        let found = rows(field).find(|(others, ..)| others.split(' ').any(is_it));
        found.map(|(_, word, is_taken)| (word, is_taken))
    };
    // A class, such as `bnb.optim.AdamW8bit`.
    let class = || {
        let whole = |word: &str| word.replace('_', "");
        let named = whole(normal.rsplit("optim_").next()?);
        find(&|other| whole(other) == named)
    };
    // A type of `--amp`: one that is none of autocast's is what it is without.
    let without = || {
        let kind = normal.strip_prefix("amp_")?;
        let (word, is_taken) = match (find(&|other| other == kind), kind) {
            (None, "fp32") => (Is("fp32"), false),
            (found, _) => found?,
        };
        let word = match word {
            Is("fp32") => Is("fp32"),
            Is("fp16" | "amp_fp16") => Is("amp_fp16"),
            Is(_) => Is("amp_bf16"),
            other @ Other(_) => other,
        };
        Some((word, is_taken))
    };
    find(&|other| other == normal)
        .or_else(without)
        .or_else(class)
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
        Some((Is(word), _)) => Some(Value::from(word)),
        Some((Other(_), _)) => None,
        None => Some(value.clone()),
    }
}

#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str, ValueSynonym)> {
    let named = |(what, field)| rows(field).map(move |(others, word, _)| (what, others, word));
    KINDS.into_iter().flat_map(named)
}
