//! Python for trainers, from the templates in `snippets/`: each line has the words that have to be true for it, `!` in front of those that must not, and its
//! text, with values in braces. `prepared.txt` makes `model` the one that the answer is about.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Answer;
use crate::fit::{given_options, shown_name};
use batchfit_fit::model::{
    Checkpointing, CommHook, Ddp, OptimizerImpl, Parallel, Precision, Variant, is_of_transformers,
};
use batchfit_step::shape::DType;
use batchfit_step::units::Bytes;

/// A trainer: its name, its template, and what it passes on to DDP; `None` where it has words for everything.
pub(super) type Trainer = (&'static str, &'static str, Option<&'static [&'static str]>);

const TO_DDP: &[&str] = &[
    "find_unused_parameters",
    "broadcast_buffers",
    "bucket_cap_mb",
    "gradient_as_bucket_view",
    "static_graph",
];
/// transformers 5.17.
pub(super) const HF: Trainer = (
    "hf",
    include_str!("snippets/hf.txt"),
    Some(TO_DDP.split_at(3).0),
);
/// TRL 1.16, whose `SFTConfig` is a `TrainingArguments` with other defaults.
pub(super) const TRL: Trainer = ("trl", HF.1, HF.2);
/// Lightning 2.6.
pub(super) const LIGHTNING: Trainer = (
    "lightning",
    include_str!("snippets/lightning.txt"),
    Some(TO_DDP),
);
/// accelerate 1.15.
pub(super) const ACCELERATE: Trainer = (
    "accelerate",
    include_str!("snippets/accelerate.txt"),
    Some(TO_DDP),
);
/// PyTorch 2.11.
pub(super) const PYTHON: Trainer = ("python", include_str!("snippets/python.txt"), None);

/// The words that are true of an answer, with their values where they have one.
type Placeholders = BTreeMap<&'static str, String>;

/// The snippet of a trainer; a sentence where it has no words for what the answer depends on.
pub(super) fn render((name, template, to_ddp): Trainer, answer: &Answer) -> Result<String, String> {
    let mut placeholders = placeholders(answer);
    if let Some(known) = to_ddp {
        beyond(name, &answer.variant(), known)?;
    }
    let model = &answer.request.model;
    if name == "trl" {
        if !placeholders.contains_key("seq_len") {
            return Err("TRL trains language models, and the samples of this answer are no tokens: take --format hf".to_owned());
        }
        placeholders.insert("trl", String::new());
        placeholders.extend(
            model
                .loss_chunks
                .as_ref()
                .map(|_| ("chunked", String::new())),
        );
    } else if let Some(chunks) = &model.loss_chunks {
        return Err(format!(
            "the answer computes the loss in {chunks} chunks, for which no trainer but TRL's has a word (--format trl): write that loop over the hidden states, or ask without \
             loss_chunks"
        ));
    }
    if answer.request.generation.is_some() {
        return Err("the answer is for generate(), which no trainer calls: call model.generate(), or take --format json".to_owned());
    }
    let is_training = answer.is_training();
    if !is_training && ["hf", "trl"].contains(&name) && placeholders.contains_key("seq_len") {
        return Err("the answer is for the forward pass alone, and evaluate() of the Trainer computes a loss of float32 logits, too: take --format python".to_owned());
    }
    let is_cast = !is_training && answer.variant().precision.autocast().is_some();
    if is_cast && ["hf", "accelerate"].contains(&name) {
        return Err("under autocast accelerate copies what the model returns to float32, which the answer leaves out: take --format python, or ask with --precision bf16".to_owned());
    }
    let has = |placeholders: &Placeholders, word: &str| placeholders.contains_key(word);
    if ["hf", "trl"].contains(&name)
        && has(&placeholders, "own")
        && placeholders.remove("per_block").is_some()
    {
        placeholders.insert("own_blocks", String::new());
    }
    let by_rule = has(&placeholders, "fsdp2") && !has(&placeholders, "units");
    for (word, is) in [
        (
            "wraps",
            has(&placeholders, "per_block") || has(&placeholders, "modules"),
        ),
        ("repeated", has(&placeholders, "per_block") || by_rule),
        (
            "globs",
            has(&placeholders, "modules") || has(&placeholders, "units"),
        ),
    ] {
        placeholders.extend(is.then(|| (word, String::new())));
    }
    if name == "lightning" && model.param_dtype.is_none() {
        // It casts the module itself.
        placeholders.remove("dtype");
    }
    let whole = template.replace("@prepared\n", include_str!("snippets/prepared.txt"));
    let lines = whole.lines().filter_map(|line| line.split_once('|'));
    let kept = lines.filter(|(wanted, _)| {
        let mut wanted = wanted.split_whitespace();
        wanted.all(|word| match word.strip_prefix('!') {
            Some(word) => !placeholders.contains_key(word),
            None => placeholders.contains_key(word),
        })
    });
    Ok(kept
        .map(|(_, text)| filled(text, &placeholders) + "\n")
        .collect())
}

/// A line with values in the place of their words. Nothing in a value is a word.
fn filled(mut text: &str, placeholders: &Placeholders) -> String {
    let mut out = String::new();
    while let Some((before, rest)) = text.split_once('{') {
        out += before;
        let found = rest
            .split_once('}')
            .and_then(|(word, after)| Some((placeholders.get(word)?, after)));
        match found {
            Some((value, _)) => out += value,
            None => out.push('{'),
        }
        text = found.map_or(rest, |(_, after)| after);
    }
    out + text
}

#[expect(clippy::too_many_lines, reason = "a line for each word")]
fn placeholders(answer: &Answer) -> Placeholders {
    let (best, variant) = (answer.best(), answer.variant());
    let model = &answer.request.model;
    let is = |is: bool| is.then(String::new);
    let text = |text: &str| Some(text.to_owned());
    let allocator = answer.request.allocator.as_deref().unwrap_or_default();
    let allocator = (!allocator.is_empty()).then(|| Value::from(allocator).to_string());
    let trains = answer.is_training() && !variant.recorded;
    let mut placeholders = vec![
        ("headline", Some(headline(answer))),
        ("batch", Some(best.micro_batch.to_string())),
        ("steps", Some(best.accumulation_steps.to_string())),
        ("gpus", Some(answer.world_size.to_string())),
        ("allocator", allocator),
        ("several", is(answer.world_size > 1)),
        ("train", is(answer.is_training())),
        ("trains", is(trains)),
        ("recorded", is(variant.recorded)),
    ];
    placeholders
        .extend(["seq_len", "target_len", "image_size"].map(|name| (name, size(answer, name))));
    if variant.recorded {
        return kept(placeholders);
    }
    let of_transformers = model.preset.as_deref().is_some_and(is_of_transformers);
    let (lightning, accelerate, autocast, half) = match variant.precision {
        Precision::Fp32 => ("32-true", "no", None, None),
        Precision::AmpFp16 => ("16-mixed", "fp16", Some("float16"), None),
        Precision::AmpBf16 => ("bf16-mixed", "bf16", Some("bfloat16"), None),
        Precision::Bf16 => ("bf16-true", "no", None, Some("bfloat16")),
        Precision::Fp16 => ("16-true", "no", None, Some("float16")),
    };
    let cast = |dtype| format!("torch.autocast(\"cuda\", dtype=torch.{dtype})");
    let autocast = autocast.map_or_else(|| "contextlib.nullcontext()".to_owned(), cast);
    let loaded = match model.param_dtype.as_deref() {
        Some("bf16") => Some("bfloat16"),
        Some("fp16") => Some("float16"),
        Some(_) => None,
        None => half,
    };
    let frozen = model.frozen.iter().flatten();
    let frozen: Vec<&String> = frozen.collect();
    let argument = |(name, value): (&String, &Value)| format!("{name}={}", literal(value));
    let lora = model.lora.as_ref();
    let (class, arguments, optim) = optimizer(&variant);
    let library = class.rsplit_once('.').map_or("", |(library, _)| library);
    let modules = match &variant.checkpointing {
        Checkpointing::Modules(globs) => Some(pattern(globs, "")),
        Checkpointing::None | Checkpointing::PerBlock => None,
    };
    placeholders.extend([
        ("own", is(of_transformers || model.hf.is_some())),
        ("lightning", text(lightning)),
        ("accelerate", text(accelerate)),
        ("amp_fp16", is(accelerate == "fp16")),
        ("amp_bf16", is(accelerate == "bf16")),
        ("autocast", Some(autocast)),
        (
            "as_stored",
            is(of_transformers || model.hf.is_some())
                .filter(|_| model.param_dtype.is_none() && variant.precision.autocast().is_some()),
        ),
        ("dtype", loaded.map(|dtype| format!("torch.{dtype}"))),
        (
            "frozen",
            (!frozen.is_empty()).then(|| pattern(&frozen, "(\\..*)?")),
        ),
        ("lora", lora.map(|lora| joined(lora.iter().map(argument)))),
        (
            "per_block",
            is(variant.checkpointing == Checkpointing::PerBlock),
        ),
        ("modules", modules),
        (
            "library",
            text(library).filter(|it| !it.starts_with("torch.")),
        ),
        ("class", text(class)),
        ("arguments", Some(arguments)),
        ("optim", optim.map(str::to_owned)),
    ]);
    let given = given_options(&variant).into_iter();
    placeholders.extend(given.map(|(name, value)| (name, Some(literal(&value)))));
    match &variant.parallel {
        Parallel::None => placeholders.push(("alone", is(true))),
        Parallel::Ddp(ddp) | Parallel::Zero1(ddp) => {
            let arguments = ddp_arguments(ddp);
            let all = arguments
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            let hook = ddp.comm_hook.map(|hook| match hook {
                CommHook::Fp16 => "fp16".to_owned(),
                CommHook::Bf16 => "bf16".to_owned(),
            });
            placeholders.extend([
                ("zero1", is(matches!(variant.parallel, Parallel::Zero1(_)))),
                ("replicated", is(true)),
                ("ddp", Some(joined(all))),
                ("each_step", is(ddp.sync_every_micro_step)),
                ("hook", hook),
            ]);
            placeholders.extend(
                arguments
                    .into_iter()
                    .map(|(name, value)| (name, Some(value))),
            );
        }
        Parallel::Fsdp2(sharded) => {
            let policy = &sharded.mixed_precision;
            let dtypes = [
                ("param_dtype", policy.param_dtype),
                ("reduce_dtype", policy.reduce_dtype),
                ("output_dtype", policy.output_dtype),
            ];
            let typed =
                |(name, dtype): (&str, Option<DType>)| Some(format!("{name}=torch.{}", dtype?));
            let reshard = Value::from(sharded.reshard_after_forward);
            placeholders.extend([
                ("fsdp2", is(true)),
                (
                    "units",
                    sharded.units.as_ref().map(|units| pattern(units, "")),
                ),
                ("policy", Some(joined(dtypes.into_iter().filter_map(typed)))),
                ("reshard", Some(literal(&reshard))),
                ("offload", is(sharded.cpu_offload)),
                ("each_step", is(sharded.sync_every_micro_step)),
            ]);
        }
    }
    kept(placeholders)
}

/// The words that have a value.
fn kept(placeholders: Vec<(&'static str, Option<String>)>) -> Placeholders {
    let given = placeholders
        .into_iter()
        .filter_map(|(word, value)| Some((word, value?)));
    given.collect()
}

/// What makes up the batch, and its memory: one line, whatever names are in it.
fn headline(answer: &Answer) -> String {
    let best = answer.best();
    let counted =
        |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let samples = counted(best.micro_batch, "sample");
    let batch = if answer.is_training() {
        let steps = counted(best.accumulation_steps, "step");
        let gpus = counted(answer.world_size, "GPU");
        format!(
            "{samples} x {steps} x {gpus} = {} per optimizer step",
            best.global_batch
        )
    } else {
        format!("{samples} at a time")
    };
    let (reserved, limit) = (Bytes(best.peak_reserved_bytes), Bytes(best.limit_bytes));
    let gpu = &answer.result.environment.gpu;
    let text = format!(
        "{} on {gpu}: {batch}, {reserved} of {limit} reserved",
        shown_name(answer.model)
    );
    text.replace(char::is_control, " ")
}

/// How Python writes a value of JSON.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        other => other.to_string(),
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// How many tokens or pixels samples have: of several lengths the longest, and of none the preset's own.
fn size(answer: &Answer, name: &str) -> Option<String> {
    let model = &answer.request.model;
    let several = (answer.request.lengths.as_ref()).is_some_and(|them| them.contains_key(name));
    let longest = answer.result.lengths.as_ref().filter(|_| several);
    let longest = longest.and_then(|table| Some(table.rows.last()?.length.to_string()));
    match longest {
        Some(text) if text.parse::<u64>().is_ok() => Some(text),
        Some(text) => Some(format!("{text:?}")),
        None => model.size(name).map(|size| literal(&size)),
    }
}

/// Globs as a regular expression in a literal of Python, and what may follow: `*` is anything but a dot, `**` anything.
fn pattern<S: AsRef<str>>(globs: &[S], after: &str) -> String {
    let one = |glob: &S| {
        let escaped = |c: char| {
            if c.is_alphanumeric() || "_*?".contains(c) {
                c.to_string()
            } else {
                format!("\\{c}")
            }
        };
        let escaped: String = glob.as_ref().chars().map(escaped).collect();
        let parts = escaped
            .split("**")
            .map(|part| part.replace('*', "[^.]*").replace('?', "[^.]"));
        parts.collect::<Vec<_>>().join(".*")
    };
    let all: Vec<String> = globs.iter().map(one).collect();
    Value::from(format!("({}){after}", all.join("|"))).to_string()
}

/// An optimizer's class and arguments in Python, and how the Trainer of Hugging Face calls it, where it does.
fn optimizer(variant: &Variant) -> (&'static str, String, Option<&'static str>) {
    let rows = include_str!("snippets/optimizers.txt").lines();
    let mut rows = rows.map(|line| line.split(" | ").collect::<Vec<_>>());
    let row = rows.find(|row| row[0] == variant.optimizer.name());
    let row = row.unwrap_or_default();
    let column = |index: usize| row.get(index).copied().filter(|text| *text != "-");
    let is_usual = variant.optimizer_impl == variant.optimizer.implementations()[0];
    let (implementation, optim) = match variant.optimizer_impl {
        _ if is_usual => ("", column(3)),
        OptimizerImpl::Foreach => (", foreach=True", None),
        OptimizerImpl::Fused => (", fused=True", column(4)),
        OptimizerImpl::ForLoop => (", foreach=False", None),
    };
    let own = column(2).unwrap_or_default();
    let decay = variant.weight_decay.map(f64::from);
    let decay = decay.map_or_else(String::new, |decay| format!(", weight_decay={decay:?}"));
    let arguments = format!("lr=LEARNING_RATE{own}{decay}{implementation}");
    (column(1).unwrap_or_default(), arguments, optim)
}

/// What DDP is told besides its defaults.
fn ddp_arguments(ddp: &Ddp) -> Vec<(&'static str, String)> {
    let truth = |is: bool, value: bool| is.then(|| literal(&Value::from(value)));
    let all = [
        (
            "find_unused_parameters",
            truth(true, ddp.find_unused_parameters),
        ),
        ("broadcast_buffers", truth(!ddp.broadcast_buffers, false)),
        (
            "gradient_as_bucket_view",
            truth(ddp.gradient_as_bucket_view, true),
        ),
        ("static_graph", truth(ddp.static_graph, true)),
        (
            "bucket_cap_mb",
            ddp.bucket_cap_mb.map(|mib| mib.to_string()),
        ),
    ];
    kept(all.into()).into_iter().collect()
}

/// Refuses what a trainer has no words for: all beyond DDP with arguments that it knows.
fn beyond(name: &str, variant: &Variant, known: &[&str]) -> Result<(), String> {
    let (what, line) = match &variant.parallel {
        _ if variant.recorded => return Ok(()),
        Parallel::None => return Ok(()),
        Parallel::Fsdp2(_) => (
            "FSDP2 of these units and types",
            "`fully_shard(model.get_submodule(name))` for each unit, then for the model",
        ),
        Parallel::Zero1(_) => (
            "ZeRO-1",
            "`ZeroRedundancyOptimizer(model.parameters(), optimizer_class=...)`",
        ),
        Parallel::Ddp(ddp) if ddp.comm_hook.is_some() => {
            ("DDP's comm_hook", "`model.register_comm_hook(None, hook)`")
        }
        Parallel::Ddp(ddp) if ddp.sync_every_micro_step => {
            ("sync_every_micro_step", "a loop without `model.no_sync()`")
        }
        Parallel::Ddp(ddp) => {
            let unknown = ddp_arguments(ddp)
                .into_iter()
                .find(|(name, _)| !known.contains(name));
            let Some((argument, _)) = unknown else {
                return Ok(());
            };
            (argument, "it as an argument of `DistributedDataParallel`")
        }
    };
    Err(format!(
        "{name} cannot say {what}, on which the answer depends: that takes {line}; `--format python` writes it in plain PyTorch"
    ))
}
