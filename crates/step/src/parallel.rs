//! How several GPUs train one model together.

use serde::{Deserialize, Serialize};

use crate::shape::DType;

/// A way of training on several GPUs, one process each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(tag = "strategy", rename_all = "snake_case")]
pub enum Parallel {
    /// One GPU.
    #[default]
    None,
    /// `DistributedDataParallel`.
    Ddp(Ddp),
    /// `DistributedDataParallel` whose optimizer's state is spread over the ranks: `ZeroRedundancyOptimizer`.
    Zero1(Ddp),
    /// `fully_shard`: parameters, gradients and the optimizer's state are spread over the ranks.
    Fsdp2(FullyShard),
}

/// `torch.distributed.fsdp.fully_shard` of each unit, then of the model, and its options.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct FullyShard {
    /// Processes that train together.
    pub world_size: u64,
    /// Globs of the modules whose parameters are gathered together; the model's repeated blocks if absent, and the model as a
    /// whole if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub units: Option<Vec<String>>,
    /// Whether a unit lets go of what it gathered after its forward pass. The model as a whole never does.
    pub reshard_after_forward: bool,
    /// `MixedPrecisionPolicy`.
    pub mixed_precision: MixedPrecision,
    /// Whether shards, their gradients and the optimizer's state are in the host's memory: `CPUOffloadPolicy`.
    pub cpu_offload: bool,
    /// Whether every micro-step reduces gradients, not the last one alone.
    pub sync_every_micro_step: bool,
}

/// `torch.distributed.fsdp.MixedPrecisionPolicy`. What is absent is as the parameters are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MixedPrecision {
    /// What parameters are gathered in, and inputs of units are cast to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param_dtype: Option<DType>,
    /// What gradients are reduced in; the type of gradients if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_dtype: Option<DType>,
    /// What the model's results are cast to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_dtype: Option<DType>,
}

/// `torch.nn.parallel.DistributedDataParallel` and its options.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the arguments of PyTorch's constructor"
)]
pub struct Ddp {
    /// Processes that train together.
    pub world_size: u64,
    /// Whether gradients are views of the buckets that are reduced, not tensors of their own.
    pub gradient_as_bucket_view: bool,
    /// Whether the graph of operations is promised to be the same in every step.
    pub static_graph: bool,
    /// Whether parameters may get no gradient.
    pub find_unused_parameters: bool,
    /// Whether buffers are sent before each forward pass.
    pub broadcast_buffers: bool,
    /// How large a bucket is, in MiB; PyTorch's own limits if absent: 1 MiB for the first, 25 MiB for others.
    pub bucket_cap_mb: Option<u32>,
    /// Whether every micro-step reduces gradients, not the last one alone.
    pub sync_every_micro_step: bool,
    /// What gradients are compressed to before they are reduced.
    pub comm_hook: Option<CommHook>,
}

crate::listed! {
    /// `torch.distributed.algorithms.ddp_comm_hooks.default_hooks`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CommHook {
        /// `fp16_compress_hook`.
        Fp16 = "fp16",
        /// `bf16_compress_hook`.
        Bf16 = "bf16",
    }
}

impl Parallel {
    /// Whether one GPU trains alone.
    pub fn is_none(&self) -> bool {
        *self == Parallel::None
    }

    /// The strategy's name in requests; nothing for one GPU.
    pub const fn name(&self) -> Option<&'static str> {
        match self {
            Parallel::None => None,
            Parallel::Ddp(_) => Some("ddp"),
            Parallel::Zero1(_) => Some("zero1"),
            Parallel::Fsdp2(_) => Some("fsdp2"),
        }
    }

    /// Whether buckets are made again once it is known in which order gradients are complete (`Reducer::should_rebuild_buckets`).
    pub fn replaces_buckets(&self) -> bool {
        match self {
            Parallel::None | Parallel::Fsdp2(_) => false,
            Parallel::Ddp(ddp) | Parallel::Zero1(ddp) => {
                !ddp.find_unused_parameters || ddp.static_graph
            }
        }
    }

    /// Processes that train together.
    pub fn world_size(&self) -> u64 {
        match self {
            Parallel::None => 1,
            Parallel::Ddp(ddp) | Parallel::Zero1(ddp) => ddp.world_size,
            Parallel::Fsdp2(sharded) => sharded.world_size,
        }
    }
}

impl CommHook {
    /// What gradients are compressed to.
    pub const fn dtype(self) -> DType {
        match self {
            CommHook::Fp16 => DType::Float16,
            CommHook::Bf16 => DType::BFloat16,
        }
    }
}

impl Default for FullyShard {
    fn default() -> FullyShard {
        FullyShard {
            world_size: 1,
            units: None,
            reshard_after_forward: true,
            mixed_precision: MixedPrecision::default(),
            cpu_offload: false,
            sync_every_micro_step: false,
        }
    }
}

impl Default for Ddp {
    fn default() -> Ddp {
        Ddp {
            world_size: 1,
            gradient_as_bucket_view: false,
            static_graph: false,
            find_unused_parameters: false,
            broadcast_buffers: true,
            bucket_cap_mb: None,
            sync_every_micro_step: false,
            comm_hook: None,
        }
    }
}
