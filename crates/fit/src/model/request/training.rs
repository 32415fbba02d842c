//! `training`: the variants that a request asks for, and how several GPUs train together (`training.parallel`).

use serde_json::Value;

use batchfit_models::members::{Choice, PARALLEL, TRAINING};
use batchfit_models::{Fields, RequestError, choice, wrong};
use batchfit_step::{
    Checkpointing, Ddp, FullyShard, MixedPrecision, Mode, Optimizer, OptimizerImpl, Parallel,
    Precision, Variant,
};

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
        parallels(request, &fields, mode == Mode::Train, ranks_of_machines)?;
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
fn choices<T: Default + PartialEq>(
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
fn globs(fields: &Fields<'_>, field: &str) -> Result<Option<Vec<String>>, RequestError> {
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

/// What a strategy is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Strategy {
    #[default]
    None,
    Ddp,
    Zero1,
    Fsdp2,
}

const STRATEGIES: [(&str, Strategy); 4] = [
    ("none", Strategy::None),
    ("ddp", Strategy::Ddp),
    ("zero1", Strategy::Zero1),
    ("fsdp2", Strategy::Fsdp2),
];

/// What `DeepSpeed`'s engine holds for each parameter, as recorded of version 0.19.8 and as its configuration says: weights and
/// gradients in bf16, and a share of float32 weights and Adam's moments.
pub const DEEPSPEED: &str = "for bf16 weights it holds 16 bytes a parameter (2 of weights, 2 of gradients, and 12 of float32 weights and \
    moments, which its ranks share), and its buckets besides";

/// What it is called beside that, and `FairScale`'s ZeRO-2.
const ZERO: [&str; 6] = ["zero2", "zero_2", "zero3", "zero_3", "sdp", "sharded_ddp"];

/// What answers for it.
const RUN: &str = "`batchfit run --on CARD --gpus N -- python train.py` runs your own script with it on virtual GPUs";

/// What a request asks for, and how many train together. Without `training.parallel`, several ranks are DDP's.
fn parallels(
    request: &Fields<'_>,
    training: &Fields<'_>,
    is_training: bool,
    ranks_of_machines: Option<u64>,
) -> Result<(Vec<Parallel>, u64), RequestError> {
    let ranks = request.read("world_size")?;
    let Some(fields) = training.object("parallel")? else {
        let ranks = ranks.or(ranks_of_machines).unwrap_or(1);
        let parallel = if ranks > 1 && is_training {
            Parallel::Ddp(Ddp {
                world_size: ranks,
                ..Ddp::default()
            })
        } else {
            Parallel::None
        };
        return Ok((vec![parallel], ranks));
    };
    let strategies = choices(&fields, "strategy", strategy)?;
    let world_size = world_size(request, &fields, ranks, &strategies, ranks_of_machines)?;
    if let (false, Some(strategy)) = (
        is_training,
        strategies.iter().find(|one| **one != Strategy::None),
    ) {
        let name = STRATEGIES.iter().find(|(_, known)| known == strategy);
        let problem = format!(
            "{} reduces gradients, and inference has none; leave parallel out, or set mode to \"train\"",
            name.map_or("it", |(name, _)| name)
        );
        return Err(RequestError::at(fields.at("strategy"), problem));
    }
    own_fields_alone(&fields, &strategies)?;
    let ddp = Ddp {
        world_size,
        ..fields.read_into()?
    };
    let sharded = fully_shard(&fields, world_size)?;
    let mut parallels = Vec::new();
    for strategy in strategies {
        match strategy {
            Strategy::None => parallels.push(Parallel::None),
            Strategy::Ddp => parallels.push(Parallel::Ddp(ddp.clone())),
            Strategy::Zero1 => parallels.push(Parallel::Zero1(ddp.clone())),
            Strategy::Fsdp2 => parallels.extend(sharded.iter().cloned().map(Parallel::Fsdp2)),
        }
    }
    Ok((parallels, world_size))
}

/// What transformers' Trainer sets for DDP by default: `find_unused_parameters`, unless the model checkpoints
/// itself; one that PEFT adapted, which is no `PreTrainedModel`, in any case (`Trainer._build_accelerator_args` in
/// `trainer.py` of transformers 5.17). Whether there is such a variant.
pub(super) fn as_trainer_wraps(
    variants: &mut [Variant],
    request: &Fields<'_>,
    is_adapted: bool,
) -> bool {
    let training = request.get("training");
    let said = training.and_then(|it| it.pointer("/parallel/find_unused_parameters"));
    if said.is_some_and(|said| !said.is_null()) {
        return false;
    }
    let mut wraps = false;
    for variant in variants {
        if let Parallel::Ddp(ddp) = &mut variant.parallel {
            ddp.find_unused_parameters =
                is_adapted || variant.checkpointing != Checkpointing::PerBlock;
            wraps = true;
        }
    }
    wraps
}

fn strategy(value: &Value, pointer: &str) -> Result<Strategy, RequestError> {
    let named = value.as_str().unwrap_or_default().to_lowercase();
    let word = named.replace(['-', ' '], "_");
    if !word.starts_with("deepspeed") && !ZERO.contains(&&*word) {
        return choice(value, pointer, "strategy", &STRATEGIES);
    }
    let problem = format!(
        "DeepSpeed's ZeRO is not modelled: {DEEPSPEED}; PyTorch's own way to shard is: ask for \"fsdp2\", and train with fully_shard; {RUN}"
    );
    Err(RequestError::at(pointer, problem).with_value(value))
}

/// How many train together: said once, or twice alike.
fn world_size(
    request: &Fields<'_>,
    fields: &Fields<'_>,
    outer: Option<u64>,
    strategies: &[Strategy],
    ranks_of_machines: Option<u64>,
) -> Result<u64, RequestError> {
    let inner = fields.read("world_size")?;
    let alone = strategies.iter().all(|one| *one == Strategy::None);
    match (inner, outer) {
        (Some(inner), Some(outer)) if inner != outer => {
            let problem = format!(
                "world_size is {inner} here and {outer} at {}; leave one of them out",
                request.at("world_size")
            );
            Err(RequestError::at(fields.at("world_size"), problem).with_value(&Value::from(inner)))
        }
        (Some(ranks), _) | (None, Some(ranks)) => Ok(ranks),
        (None, None) if alone => Ok(ranks_of_machines.unwrap_or(1)),
        // Shards in the host's memory are worth it on one GPU too.
        (None, None) if ranks_of_machines.is_none() && fields.flag("cpu_offload")? == Some(true) => {
            Ok(1)
        }
        (None, None) => ranks_of_machines.ok_or_else(|| {
            let problem = "how many GPUs train together is missing; give it, as in \"world_size\": 2 (`--world-size 2`)";
            RequestError::at(fields.at("world_size"), problem)
        }),
    }
}

/// Refuses what belongs to a strategy that is not asked for.
fn own_fields_alone(fields: &Fields<'_>, strategies: &[Strategy]) -> Result<(), RequestError> {
    let is_ddp = |one: &Strategy| [Strategy::Ddp, Strategy::Zero1].contains(one);
    let is_sharded = |one: &Strategy| *one == Strategy::Fsdp2;
    let (with_ddp, with_sharded) = (
        strategies.iter().any(is_ddp),
        strategies.iter().any(is_sharded),
    );
    let both = "sync_every_micro_step";
    let only = |strategy: &'static str, whose| {
        let mut rows = PARALLEL.members.iter();
        let given =
            rows.find(|row| row.strategy == Some(strategy) && fields.get(row.name).is_some());
        given.map(|row| (row.name, whose, strategy))
    };
    let foreign = if !with_ddp && !with_sharded && fields.get(both).is_some() {
        Some((both, "for several ranks", "ddp"))
    } else {
        let of_ddp = only("ddp", "DDP's").filter(|_| !with_ddp);
        of_ddp.or_else(|| only("fsdp2", "FSDP2's").filter(|_| !with_sharded))
    };
    match foreign {
        None => Ok(()),
        Some((field, whose, strategy)) => {
            let named = |one: &Strategy| STRATEGIES.iter().find(|(_, known)| known == one);
            let asked: Vec<String> = strategies
                .iter()
                .filter_map(named)
                .map(|(name, _)| format!("{name:?}"))
                .collect();
            let problem = format!(
                "{field} is {whose}, and {}; write \"strategy\": {strategy:?} (`--parallel {strategy}`), or leave it out{}",
                if fields.get("strategy").is_none() {
                    "no strategy is given".to_owned()
                } else {
                    format!("the strategy is {}", asked.join(", "))
                },
                if field == "mixed_precision" {
                    "; autocast is `--amp bf16`"
                } else {
                    ""
                }
            );
            Err(RequestError::at(fields.at(field), problem))
        }
    }
}

/// `fully_shard` with each of the settings asked for: resharding may be a list.
fn fully_shard(fields: &Fields<'_>, world_size: u64) -> Result<Vec<FullyShard>, RequestError> {
    let reshard = |value: &Value, pointer: &str| match value {
        Value::Bool(flag) => Ok(Some(*flag)),
        Value::Number(_) => Err(wrong(
            pointer,
            value,
            "resharding to a smaller number of ranks is not modelled; reshard_after_forward must be true or false",
        )),
        other => Err(wrong(
            pointer,
            other,
            "reshard_after_forward must be true, false or a list of both",
        )),
    };
    let reshards = choices(fields, "reshard_after_forward", reshard)?;
    let sharded = FullyShard {
        world_size,
        units: globs(fields, "units")?,
        mixed_precision: mixed_precision(fields)?,
        ..fields.read_into()?
    };
    let with = |reshard: Option<bool>| FullyShard {
        reshard_after_forward: reshard.unwrap_or(sharded.reshard_after_forward),
        ..sharded.clone()
    };
    Ok(reshards.into_iter().map(with).collect())
}

fn mixed_precision(fields: &Fields<'_>) -> Result<MixedPrecision, RequestError> {
    let Some(fields) = fields.object("mixed_precision")? else {
        return Ok(MixedPrecision::default());
    };
    Ok(MixedPrecision {
        param_dtype: fields.read("param_dtype")?,
        reduce_dtype: fields.read("reduce_dtype")?,
        output_dtype: fields.read("output_dtype")?,
    })
}
