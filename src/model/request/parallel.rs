//! `training.parallel`: how several GPUs train together.

use serde_json::Value;

use super::MOST_RANKS;
use super::training::choices;
use crate::model::fields::{Fields, choice};
use crate::model::invalid::Invalid;
use crate::model::parallel::{CommHook, Ddp, Parallel};

/// The fields of `training.parallel`.
pub(in crate::model) const FIELDS: &[&str] = &[
    "strategy",
    "world_size",
    "gradient_as_bucket_view",
    "static_graph",
    "find_unused_parameters",
    "broadcast_buffers",
    "bucket_cap_mb",
    "sync_every_micro_step",
    "comm_hook",
];

/// Largest bucket that is read, in MiB: more than any card has.
const LARGEST_BUCKET: u64 = 1 << 20;

/// What a strategy is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Strategy {
    #[default]
    None,
    Ddp,
    Zero1,
}

const STRATEGIES: [(&str, Strategy); 3] = [
    ("none", Strategy::None),
    ("ddp", Strategy::Ddp),
    ("zero1", Strategy::Zero1),
];

/// Ways of training on several GPUs that are not modelled: what they are called, and the nearest that is.
const OTHERS: &[(&[&str], &str, &str)] = &[
    (
        &["zero2", "deepspeed_zero2", "zero_2", "sdp", "sharded_ddp"],
        "ZeRO-2 (DeepSpeed's, or FairScale's), which also shards gradients",
        "zero1",
    ),
    (
        &[
            "zero3",
            "zero_3",
            "deepspeed",
            "deepspeed_zero3",
            "fsdp",
            "fsdp1",
            "fsdp2",
            "hsdp",
            "fully_shard",
        ],
        "sharding parameters (FSDP, HSDP, DeepSpeed's ZeRO-3)",
        "zero1",
    ),
    (
        &[
            "tp",
            "tensor_parallel",
            "pp",
            "pipeline",
            "pipeline_parallel",
            "sequence_parallel",
            "context_parallel",
            "ep",
        ],
        "splitting a model's layers among GPUs (tensor, pipeline, context or expert parallelism)",
        "ddp",
    ),
    (
        &["dp", "data_parallel", "dataparallel"],
        "torch.nn.DataParallel, which PyTorch advises against",
        "ddp",
    ),
];

/// What a request asks for, and how many train together. Without `training.parallel`, several ranks are DDP's.
pub(super) fn read(
    request: &Fields<'_>,
    training: &Fields<'_>,
    is_training: bool,
) -> Result<(Vec<Parallel>, u64), Invalid> {
    let ranks = request.whole("world_size", 1, MOST_RANKS)?;
    let Some(value) = training.get("parallel") else {
        let ranks = ranks.unwrap_or(1);
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
    let fields = Fields::of(value, &training.at("parallel"), "parallel", FIELDS)?;
    let strategies = choices(&fields, "strategy", strategy)?;
    let world_size = world_size(request, &fields, ranks, &strategies)?;
    if let (false, Some(strategy)) = (
        is_training,
        strategies.iter().find(|one| **one != Strategy::None),
    ) {
        let name = STRATEGIES.iter().find(|(_, known)| known == strategy);
        let problem = format!(
            "{} reduces gradients, and inference has none; leave parallel out, or set mode to \"train\"",
            name.map_or("it", |(name, _)| name)
        );
        return Err(Invalid::at(fields.at("strategy"), problem));
    }
    let ddp = ddp(&fields, world_size, &strategies)?;
    let parallel = |strategy: &Strategy| match strategy {
        Strategy::None => Parallel::None,
        Strategy::Ddp => Parallel::Ddp(ddp.clone()),
        Strategy::Zero1 => Parallel::Zero1(ddp.clone()),
    };
    Ok((strategies.iter().map(parallel).collect(), world_size))
}

fn strategy(value: &Value, pointer: &str) -> Result<Strategy, Invalid> {
    let named = value.as_str().map(str::to_lowercase);
    let normal = named.map(|word| word.replace(['-', ' '], "_"));
    let other = normal.and_then(|word| {
        let is_it = |(words, _, _): &&(&[&str], &str, &str)| words.contains(&&*word);
        OTHERS.iter().find(is_it)
    });
    if let Some((_, what, nearest)) = other {
        let problem = format!("{what} is not modelled; the nearest that is: {nearest:?}");
        return Err(Invalid::at(pointer, problem).with_value(value));
    }
    choice(value, pointer, "strategy", &STRATEGIES)
}

/// How many train together: said once, or twice alike.
fn world_size(
    request: &Fields<'_>,
    fields: &Fields<'_>,
    outer: Option<u64>,
    strategies: &[Strategy],
) -> Result<u64, Invalid> {
    let inner = fields.whole("world_size", 1, MOST_RANKS)?;
    let alone = strategies.iter().all(|one| *one == Strategy::None);
    match (inner, outer) {
        (Some(inner), Some(outer)) if inner != outer => {
            let problem = format!(
                "world_size is {inner} here and {outer} at {}; leave one of them out",
                request.at("world_size")
            );
            Err(Invalid::at(fields.at("world_size"), problem).with_value(&Value::from(inner)))
        }
        (Some(ranks), _) | (None, Some(ranks)) => Ok(ranks),
        (None, None) if alone => Ok(1),
        (None, None) => Err(fields.missing("world_size")),
    }
}

fn ddp(fields: &Fields<'_>, world_size: u64, strategies: &[Strategy]) -> Result<Ddp, Invalid> {
    let hooks = [("fp16", CommHook::Fp16), ("bf16", CommHook::Bf16)];
    let usual = Ddp::default();
    let flag = |field: &str, usual: bool| Ok::<_, Invalid>(fields.flag(field)?.unwrap_or(usual));
    let cap = fields.whole("bucket_cap_mb", 1, LARGEST_BUCKET)?;
    let ddp = Ddp {
        world_size,
        gradient_as_bucket_view: flag("gradient_as_bucket_view", usual.gradient_as_bucket_view)?,
        static_graph: flag("static_graph", usual.static_graph)?,
        find_unused_parameters: flag("find_unused_parameters", usual.find_unused_parameters)?,
        broadcast_buffers: flag("broadcast_buffers", usual.broadcast_buffers)?,
        bucket_cap_mb: cap.and_then(|cap| u32::try_from(cap).ok()),
        sync_every_micro_step: flag("sync_every_micro_step", usual.sync_every_micro_step)?,
        comm_hook: fields.choice("comm_hook", "communication hook", &hooks)?,
    };
    let buckets = FIELDS
        .iter()
        .filter(|field| !["strategy", "world_size"].contains(field));
    let given = buckets.copied().find(|field| fields.get(field).is_some());
    let none_alone = strategies.iter().all(|one| *one == Strategy::None);
    match given.filter(|_| none_alone) {
        Some(field) => Err(Invalid::at(
            fields.at(field),
            format!("{field} is DDP's, and the strategy is \"none\"; write \"strategy\": \"ddp\""),
        )),
        None => Ok(ddp),
    }
}
