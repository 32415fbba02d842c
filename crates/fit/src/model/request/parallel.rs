//! `training.parallel`: how several GPUs train together.

use serde_json::Value;

use super::training::{choices, globs};
use batchfit_models::members::PARALLEL;
use batchfit_models::{Fields, RequestError, choice, wrong};
use batchfit_step::{Checkpointing, Ddp, FullyShard, MixedPrecision, Parallel, Variant};

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
pub(super) fn read(
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
