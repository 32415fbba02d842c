//! `training`: the variants that a request asks for.

use serde_json::Value;

use super::parallel;
use batchfit_models::members::{Choice, TRAINING};
use batchfit_models::{Fields, RequestError, choice, wrong};
use batchfit_step::{Checkpointing, Mode, Optimizer, OptimizerImpl, Parallel, Precision, Variant};

/// Most choices in one list.
const MOST_CHOICES: usize = 16;

/// Most combinations of choices in one request: every precision, optimizer and kind of checkpointing makes 135.
const MOST_VARIANTS: usize = 144;

/// Most globs that name modules, and the longest of them: paths of modules have up to a hundred bytes.
const MOST_GLOBS: usize = 64;
const LONGEST_GLOB: usize = 127;

/// Every combination that `training` of `request` asks for, in the order written: precision changes
/// slowest; and how many train together.
pub(super) fn variants(
    request: &Fields<'_>,
    ranks_of_machines: Option<u64>,
) -> Result<(Vec<Variant>, u64), RequestError> {
    let empty = Value::Object(serde_json::Map::new());
    let value = request.get("training").unwrap_or(&empty);
    let fields = Fields::of_object(value, &request.at("training"), &TRAINING)?;
    let mut shared: Variant = fields.read_into()?;
    shared
        .label_smoothing
        .take_if(|share| f64::from(*share) == 0.0);
    let mode = shared.mode;
    if let Some(field) = fields
        .of_training()
        .next()
        .filter(|_| mode == Mode::Inference)
    {
        let problem = format!("inference takes no {field}; leave it out, or set mode to \"train\"");
        return Err(RequestError::at(fields.at(field), problem));
    }
    let optimizer_impl: Option<OptimizerImpl> = fields.read("optimizer_impl")?;
    let optimizer_impl = optimizer_impl.or_else(|| fields.implied("optimizer", "optimizer_impl"));
    let precisions: Vec<Precision> = one_or_more(&fields, "precision")?;
    let optimizers: Vec<Optimizer> = one_or_more(&fields, "optimizer")?;
    implemented(&fields, &optimizers, optimizer_impl)?;
    let checkpointings = choices(&fields, "checkpointing", checkpointing)?;
    if mode == Mode::Inference && checkpointings.iter().any(|one| *one != Checkpointing::None) {
        return Err(RequestError::at(
            fields.at("checkpointing"),
            "inference saves nothing for a backward pass, so there is nothing to checkpoint",
        ));
    }
    let (parallels, world_size) =
        parallel::read(request, &fields, mode == Mode::Train, ranks_of_machines)?;
    sharded(&fields, &optimizers, &parallels)?;
    let count = precisions.len() * optimizers.len() * checkpointings.len() * parallels.len();
    if count > MOST_VARIANTS {
        let problem = format!(
            "these lists make {count} combinations, and at most {MOST_VARIANTS} are answered at a time; ask for \
             fewer choices in each request"
        );
        return Err(RequestError::at(request.at("training"), problem));
    }

    let mut variants = Vec::new();
    for precision in &precisions {
        for optimizer in &optimizers {
            let optimizer_impl = implementation_of(*optimizer, optimizer_impl);
            for checkpointing in &checkpointings {
                variants.extend(parallels.iter().map(|parallel| Variant {
                    precision: *precision,
                    optimizer: *optimizer,
                    optimizer_impl,
                    checkpointing: checkpointing.clone(),
                    parallel: parallel.clone(),
                    ..shared.clone()
                }));
            }
        }
    }
    Ok((variants, world_size))
}

/// Refuses smoothed labels of a model of transformers, whose Trainer smooths them by code of its own (`LabelSmoother`).
pub(super) fn without_smoothing(variants: &[Variant]) -> Result<(), RequestError> {
    if variants[0].label_smoothing.is_none() {
        return Ok(());
    }
    let problem = "the Trainer's label smoothing takes memory of its own for the loss, which is not simulated: \
                   `batchfit run --on CARD -- python train.py` runs your own script with it on a virtual GPU";
    Err(RequestError::at("/training/label_smoothing", problem))
}

/// How an optimizer is implemented: as it is asked for where it can be, else as its library does.
fn implementation_of(optimizer: Optimizer, asked: Option<OptimizerImpl>) -> OptimizerImpl {
    let known = optimizer.implementations();
    asked
        .filter(|asked| known.contains(asked))
        .unwrap_or(known[0])
}

/// Refuses an implementation that none of the optimizers has.
fn implemented(
    fields: &Fields<'_>,
    optimizers: &[Optimizer],
    asked: Option<OptimizerImpl>,
) -> Result<(), RequestError> {
    let Some(asked) = asked else {
        return Ok(());
    };
    let has_it = |optimizer: &Optimizer| optimizer.implementations().contains(&asked);
    if optimizers.iter().any(has_it) {
        return Ok(());
    }
    let optimizer = optimizers[0];
    let known = optimizer.implementations().iter().map(|one| one.name());
    let problem = format!(
        "{} is not implemented as {}; leave optimizer_impl out, or ask for {}",
        optimizer.name(),
        asked.name(),
        known.collect::<Vec<_>>().join(" or ")
    );
    Err(RequestError::at(fields.at("optimizer_impl"), problem))
}

/// Refuses optimizers whose work on shards is not known.
fn sharded(
    fields: &Fields<'_>,
    optimizers: &[Optimizer],
    parallels: &[Parallel],
) -> Result<(), RequestError> {
    let shards = |parallel: &Parallel| matches!(parallel, Parallel::Fsdp2(_));
    let unknown = optimizers.iter().find(|one| !one.takes_shards());
    match unknown.filter(|_| parallels.iter().any(shards)) {
        None => Ok(()),
        Some(optimizer) => {
            let problem = format!(
                "what {} does with fsdp2's shards is not modelled; ask for another strategy, or for one of adamw, adam, \
                 sgd_momentum and sgd",
                optimizer.name()
            );
            Err(RequestError::at(fields.at("optimizer"), problem))
        }
    }
}

/// One word or a list of them.
fn one_or_more<T: Choice + Default + PartialEq>(
    fields: &Fields<'_>,
    field: &str,
) -> Result<Vec<T>, RequestError> {
    choices(fields, field, |value, at| {
        choice(value, at, field, &T::names())
    })
}

/// One choice or a list of them; the default when there is none.
pub(super) fn choices<T: Default + PartialEq>(
    fields: &Fields<'_>,
    field: &str,
    read: impl Fn(&Value, &str) -> Result<T, RequestError>,
) -> Result<Vec<T>, RequestError> {
    let at = fields.at(field);
    match fields.get(field) {
        None => Ok(vec![T::default()]),
        Some(Value::Array(values)) => {
            if values.is_empty() || values.len() > MOST_CHOICES {
                let problem = format!(
                    "a list of 1 to {MOST_CHOICES} choices is needed, not {}",
                    values.len()
                );
                return Err(RequestError::at(at, problem));
            }
            let mut found = Vec::new();
            for (index, value) in values.iter().enumerate() {
                let one = read(value, &format!("{at}/{index}"))?;
                // The same variant twice would be ranked against itself.
                if !found.contains(&one) {
                    found.push(one);
                }
            }
            Ok(found)
        }
        Some(value) => Ok(vec![read(value, &at)?]),
    }
}

/// Globs that name modules.
pub(super) fn globs(fields: &Fields<'_>, field: &str) -> Result<Option<Vec<String>>, RequestError> {
    let Some(globs) = fields.texts(field)? else {
        return Ok(None);
    };
    if globs.len() > MOST_GLOBS {
        let problem = format!(
            "{} globs are more than the {MOST_GLOBS} that are read",
            globs.len()
        );
        return Err(RequestError::at(fields.at(field), problem));
    }
    let is_wrong = |glob: &&str| glob.is_empty() || glob.len() > LONGEST_GLOB;
    if let Some(index) = globs.iter().position(is_wrong) {
        let problem = format!(
            "a glob has 1 to {LONGEST_GLOB} bytes, not {}",
            globs[index].len()
        );
        return Err(RequestError::at(
            format!("{}/{index}", fields.at(field)),
            problem,
        ));
    }
    Ok(Some(globs.into_iter().map(str::to_owned).collect()))
}

fn checkpointing(value: &Value, pointer: &str) -> Result<Checkpointing, RequestError> {
    match value {
        Value::Object(_) => {
            let fields = Fields::of(value, pointer, "checkpointing", &["modules"])?;
            let globs = globs(&fields, "modules")?.ok_or_else(|| fields.missing("modules"))?;
            if globs.is_empty() {
                return Err(RequestError::at(
                    fields.at("modules"),
                    "modules must name at least one module, such as \"layer1.*\"",
                ));
            }
            Ok(Checkpointing::Modules(globs))
        }
        Value::String(_) => {
            let known = [("none", false), ("per_block", true)];
            let is_on = choice(value, pointer, "checkpointing", &known)?;
            Ok(if is_on {
                Checkpointing::PerBlock
            } else {
                Checkpointing::None
            })
        }
        other => {
            let must = "checkpointing must be \"none\", \"per_block\" or {\"modules\": [...]}";
            Err(wrong(pointer, other, must).or_word("checkpointing", other))
        }
    }
}
