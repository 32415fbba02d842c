//! What stands beside the figures: how an answer trains, what was asked for and what was assumed, and notes, each once.

use std::borrow::Cow;

use crate::style::{Style, paragraph};
use batchfit_card::device::sim::UNMEASURED;
use batchfit_fit::model::members::{Kind, TRAINING};
use batchfit_fit::model::{Checkpointing, Mode, Variant, assumed_tokens_of, preset};
use batchfit_fit::{FitResult, LimitKind, MARGIN, VariantResult};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value, json};

/// A request as it is stored and shown, as far as reports name what it says.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ShownRequest {
    pub(crate) model: ShownModel,
    training: Option<ShownTraining>,
    pub(crate) allocator: Option<String>,
    pub(crate) generation: Option<IgnoredAny>,
    pub(crate) lengths: Option<Map<String, Value>>,
    world_size: Option<Number>,
    device: Option<Value>,
}

/// Its model.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ShownModel {
    pub(crate) preset: Option<String>,
    pub(crate) hf: Option<IgnoredAny>,
    seq_len: Option<Value>,
    target_len: Option<Value>,
    image_size: Option<Value>,
    attn_implementation: Option<String>,
    pub(crate) param_dtype: Option<String>,
    pub(crate) loss_chunks: Option<Number>,
    pub(crate) frozen: Option<Vec<String>>,
    #[serde(deserialize_with = "adapter")]
    pub(crate) lora: Option<Map<String, Value>>,
    num_classes: Option<Number>,
    in_channels: Option<Number>,
    task: Option<String>,
    padded: Option<Value>,
    /// Whether the length is a default.
    #[serde(skip)]
    has_assumed_length: bool,
}

/// An adapter, which may be given by its rank alone.
fn adapter<'de, D: Deserializer<'de>>(given: D) -> Result<Option<Map<String, Value>>, D::Error> {
    Ok(match Value::deserialize(given)? {
        Value::Object(lora) => Some(lora),
        rank @ Value::Number(_) => Some([("r".to_owned(), rank)].into_iter().collect()),
        _ => None,
    })
}

/// Whether it says how is trained.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ShownTraining {
    precision: Option<IgnoredAny>,
    optimizer: Option<IgnoredAny>,
    checkpointing: Option<IgnoredAny>,
    accumulation: Option<IgnoredAny>,
    parallel: Option<Value>,
}

impl ShownRequest {
    /// Reads its text; what a later version wrote may say nothing here.
    pub fn of(text: &str) -> ShownRequest {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// The same where the length that it says is a default.
    #[must_use]
    pub fn with_assumed_length(mut self, is_assumed: bool) -> ShownRequest {
        self.model.has_assumed_length = is_assumed;
        self
    }

    /// The kinds of cards that train together, where there are several.
    pub(super) fn cards(&self) -> Vec<&str> {
        let all = self.device.as_ref().and_then(Value::as_array);
        let names = all.into_iter().flatten().filter_map(Value::as_str);
        let names = names.map(|name| name.trim_start_matches("sim:"));
        let mut kinds: Vec<&str> = Vec::new();
        names.for_each(|name| {
            if !kinds.contains(&name) {
                kinds.push(name);
            }
        });
        if kinds.len() > 1 { kinds } else { Vec::new() }
    }

    /// GPUs that train together.
    pub fn world_size(&self) -> u64 {
        self.world_size
            .as_ref()
            .and_then(Number::as_u64)
            .unwrap_or(1)
    }
}

impl ShownModel {
    /// How many tokens or pixels samples have by the model; the preset's own where it does not say it.
    pub(crate) fn size(&self, name: &str) -> Option<Value> {
        self.said(name).cloned().or_else(|| {
            let preset = preset(self.preset.as_deref()?)?;
            let mut all = preset.overrides.iter();
            let own = all.find(|one| one.name == name)?.default;
            own.or_else(|| assumed_tokens_of(preset.name).filter(|_| name == "seq_len"))
                .map(Value::from)
        })
    }

    fn said(&self, name: &str) -> Option<&Value> {
        match name {
            "seq_len" => self.seq_len.as_ref(),
            "target_len" => self.target_len.as_ref(),
            _ => self.image_size.as_ref(),
        }
    }
}

/// How is trained, by the answer: what the request says, then what it leaves to be assumed.
pub(super) fn line(result: &FitResult, request: &ShownRequest) -> String {
    let Some(VariantResult { training, cost, .. }) = result.variants.first() else {
        return String::new();
    };
    let cost = cost.as_ref();
    let model = &request.model;
    let said = request.training.clone().unwrap_or_default();
    let (mut given, mut assumed) = (Vec::new(), Vec::new());
    let mut put = |is_said: bool, text: String| {
        let list = if is_said { &mut given } else { &mut assumed };
        list.push(text);
    };
    if !training.recorded {
        put(
            said.precision.is_some(),
            training.precision.name().to_owned(),
        );
    }
    if !training.recorded && training.mode == Mode::Train {
        let own = training.optimizer.implementations();
        let how = match training.optimizer_impl {
            usual if usual == own[0] => String::new(),
            other => format!(" {}", other.name()),
        };
        put(
            said.optimizer.is_some(),
            training.optimizer.name().to_owned() + &how,
        );
        let checkpointing = match &training.checkpointing {
            Checkpointing::None => "no checkpointing".to_owned(),
            Checkpointing::PerBlock => "checkpointing of each block".to_owned(),
            Checkpointing::Modules(globs) => format!("checkpointing of {}", globs.join(", ")),
        };
        put(said.checkpointing.is_some(), checkpointing);
    }
    for (size, unit) in [("seq_len", "tokens"), ("image_size", "images")] {
        let generates = request.generation.is_some() && training.mode == Mode::Inference;
        if let Some(value) = model
            .size(size)
            .filter(|_| result.lengths.is_none() && !generates)
        {
            let sides = value.as_array().map(|sides| {
                sides
                    .iter()
                    .map(Value::to_string)
                    .collect::<Vec<_>>()
                    .join(" x ")
            });
            let length = match sides {
                Some(sides) => sides,
                None if size == "image_size" => format!("{value} x {value}"),
                None => value.to_string(),
            };
            let is_said = model.said(size).is_some() && !model.has_assumed_length;
            put(is_said, format!("{length} {unit}"));
        }
    }
    let mut tell = |value: Option<String>, before: &str, after: &str| {
        given.extend(value.map(|value| format!("{before}{value}{after}")));
    };
    let number = |number: &Option<Number>| number.as_ref().map(Number::to_string);
    tell(model.target_len.as_ref().map(plain), "", " target tokens");
    tell(number(&model.num_classes), "", " classes");
    tell(number(&model.in_channels), "in_channels ", "");
    tell(model.task.clone(), "task ", "");
    tell(model.padded.as_ref().map(plain), "padded ", "");
    tell(model.attn_implementation.clone(), "", " attention");
    tell(model.param_dtype.clone(), "weights in ", "");
    let lora = model.lora.clone().map(Value::from);
    tell(lora.as_ref().map(options), "LoRA", "");
    tell(number(&model.loss_chunks), "loss in ", " chunks");
    tell(
        model.frozen.as_ref().map(|globs| globs.join(", ")),
        "frozen ",
        "",
    );
    let accumulation = said.accumulation.map(|_| training.accumulation.to_string());
    tell(accumulation, "accumulation ", "");
    for (name, value) in given_options(training) {
        tell(Some(plain(&value)), &(name.replace('_', " ") + " "), "");
    }
    tell(request.allocator.clone(), "allocator ", "");
    if let Some(strategy) = training.parallel.name() {
        // Of several variants each has its own.
        let is_alone = result.variants.len() == 1;
        let options = said.parallel.as_ref().filter(|_| is_alone).map(options);
        let on = gpus(training.parallel.world_size());
        let text = format!("{strategy} on {on}{}", options.unwrap_or_default());
        let list = match said.parallel {
            Some(_) => &mut given,
            None => &mut assumed,
        };
        list.push(text);
    }
    given.extend(cost.filter(|_| result.variants.len() > 1).cloned());
    assumed.push(format!("PyTorch {}", result.environment.pytorch));
    let given = if given.is_empty() {
        String::new()
    } else {
        format!("with {}; ", given.join(", "))
    };
    format!("{given}assumed: {}", assumed.join(", "))
}

/// The members of `training` that are there only where a request has them, such as `clip_grad_norm`.
pub(crate) fn given_options(training: &Variant) -> Vec<(&'static str, Value)> {
    let (asked, usual) = (json!(training), json!(Variant::default()));
    let rows = TRAINING
        .members
        .iter()
        .filter(|row| usual.get(row.name).is_none() && !matches!(row.kind, Kind::Object(_)));
    rows.filter_map(|row| Some((row.name, asked.get(row.name)?.clone())))
        .collect()
}

/// A value without quotes, and `1` for `1.0`.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}

/// What something is given besides its name and its ranks.
fn options(given: &Value) -> String {
    let others = given
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| !["strategy", "world_size"].contains(&name.as_str()));
    let all: Vec<String> = others
        .map(|(name, value)| format!("{name}={}", plain(value)))
        .collect();
    match all.as_slice() {
        [] => String::new(),
        all => format!(" ({})", all.join(", ")),
    }
}

fn gpus(count: u64) -> String {
    if count == 1 {
        "one GPU".to_owned()
    } else {
        format!("{count} GPUs")
    }
}

/// How many assumptions are shown without detail.
const FEW: usize = 2;

/// How many notes are.
const MOST_NOTES: usize = 3;

/// Assumptions, notes, and what else there is to see.
pub(super) fn notes(result: &FitResult, request: &ShownRequest, style: &Style) -> String {
    let shown = if style.verbose {
        result.assumptions.len()
    } else {
        result.assumptions.len().min(FEW)
    };
    let mut out = String::new();
    for assumption in &result.assumptions[..shown] {
        out += &paragraph("assumption: ", assumption, style.width);
    }
    let mut notes = each_once(result, style.verbose);
    if is_fragmented(result, request) {
        notes.push((vec![1], FRAGMENTED));
    }
    let all = notes.len();
    if !style.verbose {
        // What says what to do, first.
        notes.sort_by_key(|(_, note)| !note.contains('`'));
        notes.truncate(MOST_NOTES);
    }
    let hidden = all - notes.len();
    for (ranks, note) in notes {
        let is_of_the_answer = ranks.first() == Some(&1);
        let first = if is_of_the_answer {
            "note: ".to_owned()
        } else {
            format!("note on {}: ", of_variants(&ranks))
        };
        let note = if style.verbose {
            Cow::Borrowed(note)
        } else {
            brief(note)
        };
        out += &paragraph(&first, &note, style.width);
    }
    if let Some(hint) = hint(result, (shown, hidden), style.verbose) {
        out += &style.quiet(&paragraph("", &hint, style.width));
    }
    out
}

const FRAGMENTED: &str = "fragmentation is what stops larger batches: `--allocator expandable_segments:True` often allows more \
                          (`--suggest` says how much)";

/// Whether a twentieth or more of the batch is lost to fragmentation, which settings of a simulated allocator may avoid.
fn is_fragmented(result: &FitResult, request: &ShownRequest) -> bool {
    let best = &result.recommendation;
    let limit = best.why.as_ref().map(|why| why.limit.kind);
    limit == Some(LimitKind::Fragmentation)
        && best.max_batch_without_retries < best.max_batch_steady / 20 * 19
        && result.environment.device.starts_with("sim:")
        && result.suggested_for.is_none()
        && !(request.allocator.as_ref()).is_some_and(|set| set.contains("expandable_segments"))
}

/// What is not known of a card or of several, and the margin that is kept for it, without their reasons.
fn brief(note: &str) -> Cow<'_, str> {
    let has_reasons = [UNMEASURED, MARGIN, " process groups: "]
        .iter()
        .any(|ending| note.contains(ending));
    match note.split_once(": ").filter(|_| has_reasons) {
        Some((claim, _)) => Cow::Owned(format!("{claim} (-v says why)")),
        None => Cow::Borrowed(note),
    }
}

fn hint(result: &FitResult, (shown, notes): (usize, usize), verbose: bool) -> Option<String> {
    let more = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("one more {what}")),
        count => Some(format!("{count} more {what}s")),
    };
    let probes = (!result.probes.is_empty()).then(|| "the probes behind this answer".to_owned());
    let assumptions = more(result.assumptions.len() - shown, "assumption");
    let hidden: Vec<String> = [assumptions, more(notes, "note"), probes]
        .into_iter()
        .flatten()
        .collect();
    (!verbose && !hidden.is_empty()).then(|| format!("-v shows {}.", hidden.join(" and ")))
}

/// Every note once, with the variants that it is about: those of the answer first. Without detail, notes that
/// differ from an earlier one in figures alone are left out.
fn each_once(result: &FitResult, verbose: bool) -> Vec<(Vec<u32>, &str)> {
    let mut notes: Vec<(Vec<u32>, &str)> = Vec::new();
    let of_variants = result.variants.iter().flat_map(|variant| {
        let notes = variant.recommendation.notes.iter();
        notes.map(|note| (variant.rank, note.as_str()))
    });
    let of_the_answer = result.recommendation.notes.iter();
    for (rank, note) in of_the_answer
        .map(|note| (1, note.as_str()))
        .chain(of_variants)
    {
        let same = |other: &str| other == note || (!verbose && pattern(other) == pattern(note));
        match notes.iter_mut().find(|(_, other)| same(other)) {
            Some((ranks, _)) if ranks.last() == Some(&rank) => {}
            Some((ranks, _)) => ranks.push(rank),
            None => notes.push((vec![rank], note)),
        }
    }
    notes
}

/// A note without its figures.
fn pattern(note: &str) -> String {
    note.replace(|c: char| c.is_ascii_digit(), "")
}

fn of_variants(ranks: &[u32]) -> String {
    match ranks {
        [one] => format!("variant {one}"),
        several => {
            let several: Vec<String> = several.iter().map(u32::to_string).collect();
            format!("variants {}", several.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_are_null_are_as_if_left_out() {
        let text = r#"{"model": {"preset": "bert-base", "seq_len": 64, "lora": {"r": 8}, "frozen": null}, "training": null,
                       "lengths": null, "allocator": null, "world_size": 2}"#;
        let request = ShownRequest::of(text);

        assert_eq!(request.world_size(), 2);
        assert_eq!(request.model.size("seq_len"), Some(Value::from(64)));
        assert!(request.model.lora.is_some());
        let by_rank = ShownRequest::of(r#"{"model": {"lora": 16}, "world_size": 2}"#);
        assert_eq!(
            (&by_rank.model.lora.unwrap()["r"], by_rank.world_size),
            (&json!(16), request.world_size)
        );
    }
}
