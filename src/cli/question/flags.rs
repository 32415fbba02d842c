//! Flags as members of a request.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::contents::Contents;
use super::values::{
    checkpointing, choices, decimal, items, number, plain, several, sides, size, thousands, truth,
    whole, word,
};
use super::what::Source;
use crate::cli::arguments::{Course, RequestFlags};
use crate::cli::error::CliError;
use crate::cli::output;
use crate::model::{assumed_tokens, assumed_tokens_of, nicknames as cards};

/// A member of a request that a flag sets.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct FlagValue {
    /// The flag, for whoever reads what is wrong with it.
    pub(super) flag: String,
    /// Where in the request: the names of members, outermost first.
    pub(super) place: Vec<String>,
    /// What is put there.
    pub(super) value: Value,
}

impl FlagValue {
    fn new(flag: &str, place: &[&str], value: Value) -> FlagValue {
        FlagValue {
            flag: flag.to_owned(),
            place: place.iter().map(|name| (*name).to_owned()).collect(),
            value,
        }
    }

    /// The place as a JSON pointer.
    pub(super) fn pointer(&self) -> String {
        let part = |name: &String| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        self.place.iter().map(part).collect()
    }
}

/// Ways to describe a model, which WHAT does.
const WAYS: [&str; 4] = ["preset", "layers", "exported", "hf"];

/// Everything that flags set.
#[expect(clippy::too_many_lines, reason = "a line for each flag")]
pub(super) fn given(question: &RequestFlags) -> Result<Vec<FlagValue>, CliError> {
    let mut given = Vec::new();
    let mut put = |flag: &str, place: &[&str], value: Option<Value>| {
        given.extend(value.map(|value| FlagValue::new(flag, place, value)));
    };
    let model = &question.model;
    let (memory, search) = (&question.memory, &question.search);
    let text = |text: &Option<String>| text.clone().map(Value::from);
    put(
        "--target-len",
        &["model", "target_len"],
        number(model.target_len.as_deref()),
    );
    let sizes = [
        ("--seq-len", "seq_len", &model.seq_len),
        ("--image-size", "image_size", &model.image_size),
    ];
    for (flag, member, text) in sizes {
        let Some(text) = text.as_deref() else {
            continue;
        };
        let text = match member {
            "seq_len" => &thousands(text),
            _ => text,
        };
        match several(flag, text)? {
            Some(lengths) => put(flag, &["lengths", member], Some(lengths)),
            None if member == "seq_len" => put(flag, &["model", member], Some(whole(text))),
            None => put(flag, &["model", member], Some(sides(text))),
        }
    }
    put(
        "--multiple-of",
        &["lengths", "multiple_of"],
        number(model.multiple_of.as_deref()),
    );
    put(
        "--buckets",
        &["lengths", "buckets"],
        number(model.buckets.as_deref()),
    );
    put(
        "--num-classes",
        &["model", "num_classes"],
        number(model.num_classes.as_deref()),
    );
    put(
        "--in-channels",
        &["model", "in_channels"],
        number(model.in_channels.as_deref()),
    );
    for member in &model.with {
        let (name, value) = named(member)?;
        put(&format!("--with {name}"), &["model", name], Some(value));
    }
    trained(question, &mut put)?;
    let count = on(question, &mut put)?;
    put("--device", &["device"], text(&memory.device));
    let world_size = number(memory.world_size.as_deref());
    if let (Some(asked), Some(count)) = (&world_size, count)
        && asked.as_u64() != Some(count)
    {
        let problem = format!(
            "{asked} is not the {count} of --on {}; leave one out",
            memory.on.as_deref().unwrap_or_default()
        );
        return Err(CliError::flag("--world-size", problem));
    }
    put("--world-size", &["world_size"], world_size);
    put(
        "--target",
        &["target_batch"],
        number(memory.target.as_deref()),
    );
    let limit = memory.memory_limit.as_deref();
    put(
        "--memory-limit",
        &["memory_limit"],
        limit.map(|text| Value::from(size("--memory-limit", text))),
    );
    put(
        "--headroom",
        &["headroom"],
        memory.headroom.as_deref().map(decimal),
    );
    let host = memory.host_memory.as_deref();
    put(
        "--host-memory",
        &["host_memory"],
        host.map(|text| Value::from(size("--host-memory", text))),
    );
    put("--allocator", &["allocator"], text(&memory.allocator));
    put("--search", &["search"], text(&search.search));
    put("--rank", &["compare"], text(&search.rank));
    put("--objective", &["objective"], text(&search.objective));
    put("--unknown-ops", &["unknown_ops"], text(&search.unknown_ops));
    let wanted = |wanted: &str| match wanted {
        "true" => Value::Bool(true),
        wanted => whole(wanted),
    };
    put(
        "--suggest",
        &["suggest"],
        search.suggest.as_deref().map(wanted),
    );
    put(
        "--chosen-percent",
        &["chosen_percent"],
        number(search.chosen_percent.as_deref()),
    );
    Ok(given)
}

/// What `training` is given.
fn trained(
    question: &RequestFlags,
    put: &mut impl FnMut(&str, &[&str], Option<Value>),
) -> Result<(), CliError> {
    let training = &question.training;
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let precision = choices("--precision", training.precision.as_deref(), word)?;
    put("--precision", &["training", "precision"], precision);
    let amp = choices("--amp", training.amp.as_deref(), |kind| {
        Value::from(format!("amp_{kind}"))
    })?;
    put("--amp", &["training", "precision"], amp);
    let optimizer = choices("--optimizer", training.optimizer.as_deref(), word)?;
    put("--optimizer", &["training", "optimizer"], optimizer);
    put(
        "--optimizer-impl",
        &["training", "optimizer_impl"],
        text(&training.optimizer_impl),
    );
    let checkpoint = choices(
        "--checkpoint",
        training.checkpoint.as_deref(),
        checkpointing,
    )?;
    put("--checkpoint", &["training", "checkpointing"], checkpoint);
    put(
        "--accumulation",
        &["training", "accumulation"],
        number(training.accumulation.as_deref()),
    );
    put("--mode", &["training", "mode"], text(&training.mode));
    put(
        "--clip-grad-norm",
        &["training", "clip_grad_norm"],
        training.clip_grad_norm.as_deref().map(decimal),
    );
    let parallel = choices("--parallel", training.parallel.as_deref(), word)?;
    put(
        "--parallel",
        &["training", "parallel", "strategy"],
        parallel,
    );
    sharded(question, put)
}

/// The card of `--on`, and how many there are of it.
fn on(
    question: &RequestFlags,
    put: &mut impl FnMut(&str, &[&str], Option<Value>),
) -> Result<Option<u64>, CliError> {
    let Some(text) = &question.memory.on else {
        return Ok(None);
    };
    let mut devices = Vec::new();
    let mut count: Option<u64> = None;
    let parts: Vec<&str> = text.split('+').collect();
    for part in &parts {
        let on = cards::parse(part).map_err(|invalid| CliError::named(&"--on", invalid))?;
        if let Some(note) = &on.note {
            output::note(note);
        }
        devices.push(Value::from(format!("sim:{}", on.card.name)));
        // One of each, where it does not say how many.
        let of_this = on.count.or((parts.len() > 1).then_some(1));
        count = match (count, of_this) {
            (None, count) | (count, None) => count,
            (Some(before), Some(more)) => Some(before.saturating_add(more)),
        };
    }
    let device = if devices.len() == 1 {
        devices.pop()
    } else {
        Some(Value::Array(devices))
    };
    put("--on", &["device"], device);
    put("--on", &["world_size"], count.map(Value::from));
    Ok(count)
}

/// What only DDP and `fully_shard` have.
fn sharded(
    question: &RequestFlags,
    put: &mut impl FnMut(&str, &[&str], Option<Value>),
) -> Result<(), CliError> {
    let training = &question.training;
    let mut put = |flag: &str, member: &str, value: Option<Value>| {
        put(flag, &["training", "parallel", member], value);
    };
    let unused = training.find_unused_parameters.as_deref().map(truth);
    put("--find-unused-parameters", "find_unused_parameters", unused);
    let globs = training.units.as_deref().map(|globs| globs.split('+'));
    let globs = globs.map(|globs| globs.map(Value::from).collect());
    put("--units", "units", globs.map(Value::Array));
    let flag = "--reshard";
    let reshard = choices(flag, training.reshard_after_forward.as_deref(), truth)?;
    put(flag, "reshard_after_forward", reshard);
    let flag = "--mixed-precision";
    let types = items(flag, training.mixed_precision.as_deref())?;
    let members = ["param_dtype", "reduce_dtype", "output_dtype"];
    if types.len() > members.len() {
        let problem = format!(
            "{} types are too many: parameters, reductions and results have one each, as in bf16,fp32",
            types.len()
        );
        return Err(CliError::flag(flag, problem));
    }
    let types = types.into_iter().map(Value::from);
    let types = members.into_iter().map(str::to_owned).zip(types);
    let types: Map<String, Value> = types.collect();
    let policy = (!types.is_empty()).then_some(Value::Object(types));
    put(flag, "mixed_precision", policy);
    let offload = training.cpu_offload.then_some(Value::Bool(true));
    put("--cpu-offload", "cpu_offload", offload);
    Ok(())
}

/// The members of a flag such as `--soak=NAME=N,..`; nothing where nobody gives it.
pub(in crate::cli) fn members(
    (flag, part): (&'static str, &'static str),
    text: Option<&str>,
) -> Result<Vec<FlagValue>, CliError> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    if text.is_empty() {
        // What nobody says is as usual.
        let usual = Value::Object(Map::new());
        return Ok(vec![FlagValue::new(flag, &[part], usual)]);
    }
    let mut given = Vec::new();
    let mut names = BTreeSet::new();
    for item in items(flag, Some(text))? {
        let Some((name, value)) = item.split_once('=') else {
            let problem = format!("{item:?} is not of the form NAME=N, such as epoch=250");
            return Err(CliError::flag(flag, problem));
        };
        let member = name.trim().replace('-', "_");
        if !names.insert(member.clone()) {
            return Err(CliError::flag(
                flag,
                format!("{member} is given twice; give it once"),
            ));
        }
        given.push(FlagValue::new(flag, &[part, &member], plain(value)));
    }
    Ok(given)
}

/// What a training over hours is given.
pub(in crate::cli) fn course(course: &Course) -> Vec<FlagValue> {
    let flags = [
        ("--steps", "steps", &course.steps),
        ("--epoch", "epoch", &course.epoch),
        ("--last-batch", "last_batch", &course.last_batch),
        (
            "--validation-batch",
            "validation_batch",
            &course.validation_batch,
        ),
        (
            "--validation-steps",
            "validation_steps",
            &course.validation_steps,
        ),
        (
            "--generation-batch",
            "generation_batch",
            &course.generation_batch,
        ),
        (
            "--generation-prompt",
            "generation_prompt",
            &course.generation_prompt,
        ),
        (
            "--generation-tokens",
            "generation_tokens",
            &course.generation_tokens,
        ),
        (
            "--generation-times",
            "generation_times",
            &course.generation_times,
        ),
        (
            "--generation-top-k",
            "generation_top_k",
            &course.generation_top_k,
        ),
        ("--seed", "seed", &course.seed),
    ];
    let (cache, temperature, top_p) = (
        &course.generation_cache,
        &course.generation_temperature,
        &course.generation_top_p,
    );
    let of_text = |flag, member, text: &Option<String>, read: fn(&str) -> Value| {
        let text = text.as_deref()?;
        Some(FlagValue::new(flag, &["soak", member], read(text)))
    };
    let others = [
        of_text("--generation-cache", "generation_cache", cache, |text| {
            Value::from(text)
        }),
        of_text(
            "--generation-temperature",
            "generation_temperature",
            temperature,
            decimal,
        ),
        of_text("--generation-top-p", "generation_top_p", top_p, decimal),
        course.generation_sample.then(|| {
            let member = ["soak", "generation_sample"];
            FlagValue::new("--generation-sample", &member, Value::Bool(true))
        }),
    ];
    let given = flags.into_iter().filter_map(|(flag, member, text)| {
        Some(FlagValue::new(
            flag,
            &["soak", member],
            number(text.as_deref())?,
        ))
    });
    given.chain(others.into_iter().flatten()).collect()
}

/// A member of the model, by name.
fn named(member: &str) -> Result<(&str, Value), CliError> {
    let refuse = |problem: String| Err(CliError::flag("--with", problem));
    let Some((name, value)) = member.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return refuse(format!(
            "{member:?} is not of the form NAME=VALUE, such as num_classes=10"
        ));
    };
    if WAYS.contains(&name) {
        return refuse(format!("{name} is the model itself, which WHAT names"));
    }
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    // `lora=16` is a rank.
    let is_rank = name == "lora" && value.is_u64();
    Ok((
        name,
        if is_rank {
            serde_json::json!({ "r": value })
        } else {
            value
        },
    ))
}

/// The length that is asked about where no flag says one.
pub(super) fn assumed_length(source: &Source, given: &[FlagValue]) -> Option<FlagValue> {
    let says = |given: &FlagValue| {
        given.place[0] == "generation" || given.place.get(1).is_some_and(|at| at == "seq_len")
    };
    if given.iter().any(says) {
        return None;
    }
    let tokens = match source {
        Source::Contents(Contents::Config(config)) => {
            assumed_tokens(&serde_json::from_str(config).ok()?)
        }
        Source::Preset(name) => assumed_tokens_of(name),
        Source::Contents(_) => None,
    };
    Some(FlagValue::new(
        "--seq-len",
        &["model", "seq_len"],
        Value::from(tokens?),
    ))
}
