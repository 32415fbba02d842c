//! The flags that make up a request.

#![expect(
    clippy::doc_markdown,
    clippy::struct_field_names,
    reason = "texts and names are what a terminal shows"
)]

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser, ValueParser};
use clap::error::Error;
use clap::{Arg, Args, Command};

use crate::device::sim;
use crate::model::{Optimizer, OptimizerImpl, Precision};

/// What is asked: a model or a request, and a flag for each member of a request.
///
/// The values are text: the one reader of requests says what is wrong with them.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct RequestFlags {
    /// A model's name, a config.json, my.py:build, an exported graph or a request; `-` is stdin.
    #[arg(value_name = "WHAT", required_unless_present_any = ["model", "recorded"])]
    pub(in crate::cli) what: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) model: Model,
    #[command(flatten)]
    pub(in crate::cli) training: Training,
    #[command(flatten)]
    pub(in crate::cli) memory: Memory,
    #[command(flatten)]
    pub(in crate::cli) search: Search,
}

/// Sizes of the model.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub(in crate::cli) struct Model {
    /// Tokens in a sample; several: 128,512, 64-512:64, 64:900,512:30, a .json.
    #[arg(long, value_name = "N,..", allow_negative_numbers = true)]
    pub(in crate::cli) seq_len: Option<String>,
    /// Tokens in the target of a model that translates.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(in crate::cli) target_len: Option<String>,
    /// Height and width of the images; several: 160,224,224x320, 160-320:32.
    #[arg(long, value_name = "N|HxW", allow_negative_numbers = true)]
    pub(in crate::cli) image_size: Option<String>,
    /// Of several lengths: pad each to a multiple of so many. In docs/use/lengths.md alone, as the next.
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide = true)]
    pub(in crate::cli) multiple_of: Option<String>,
    /// Of several lengths: put them into so many buckets at most.
    #[arg(long, value_name = "N", allow_negative_numbers = true, hide = true)]
    pub(in crate::cli) buckets: Option<String>,
    /// Classes that the model tells apart.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(in crate::cli) num_classes: Option<String>,
    /// Channels of the images.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(in crate::cli) in_channels: Option<String>,
    /// Any other member of `model`, as often as needed: lora='{"r": 8}'.
    #[arg(long = "with", value_name = "NAME=VALUE")]
    pub(in crate::cli) with: Vec<String>,
    /// A graph that torch.export saved, instead of the model in a request.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    pub(in crate::cli) model: Option<PathBuf>,
    /// Recordings of PyTorch's allocator at several batches, instead of a model.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(in crate::cli) recorded: Vec<PathBuf>,
    /// The batch of each recording, where files do not say it: memory snapshots.
    #[arg(long, value_name = "N,..", requires = "recorded", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(in crate::cli) batches: Vec<u64>,
}

/// How the model is trained.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Training; lists by commas compare all combinations")]
pub(in crate::cli) struct Training {
    /// fp32 (default), amp_fp16, amp_bf16, bf16 or fp16.
    #[arg(long, value_name = "TYPE,..", value_parser = suggest(&Precision::ALL.map(Precision::name)), hide_possible_values = true)]
    pub(in crate::cli) precision: Option<String>,
    /// Mixed precision, as torch.autocast has it: fp16 or bf16.
    #[arg(long, value_name = "TYPE,..", value_parser = suggest(&["fp16", "bf16"]), hide_possible_values = true,
        conflicts_with = "precision")]
    pub(in crate::cli) amp: Option<String>,
    /// adamw (default), adam, sgd, sgd_momentum, adafactor, ..
    #[arg(long, value_name = "NAME,..", value_parser = suggest(&Optimizer::ALL.map(Optimizer::name)), hide_possible_values = true)]
    pub(in crate::cli) optimizer: Option<String>,
    /// foreach (default), fused or for_loop.
    #[arg(long, value_name = "KIND", value_parser = suggest(&OptimizerImpl::ALL.map(OptimizerImpl::name)), hide_possible_values = true)]
    pub(in crate::cli) optimizer_impl: Option<String>,
    /// What is recomputed: none (default), per_block or modules:GLOB+..
    #[arg(long, value_name = "KIND,..", value_parser = suggest(&["none", "per_block"]), hide_possible_values = true)]
    pub(in crate::cli) checkpoint: Option<String>,
    /// Passes for each optimizer step; --target finds them by itself.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(in crate::cli) accumulation: Option<String>,
    /// train (default) or inference.
    #[arg(long, value_name = "MODE", value_parser = suggest(&["train", "inference"]), hide_possible_values = true)]
    pub(in crate::cli) mode: Option<String>,
    /// The norm to which gradients are clipped.
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    pub(in crate::cli) clip_grad_norm: Option<String>,
    /// How GPUs train together: none, ddp (default), zero1 or fsdp2.
    #[arg(long, value_name = "HOW,..", value_parser = suggest(&["none", "ddp", "zero1", "fsdp2"]), hide_possible_values = true)]
    pub(in crate::cli) parallel: Option<String>,
    /// DDP: whether parameters may get no gradient. An answer names it where it matters; help has no line left.
    #[arg(long, value_name = "BOOL", value_parser = suggest(&["true", "false"]), hide = true)]
    pub(in crate::cli) find_unused_parameters: Option<String>,
    /// FSDP2: modules that are sharded each for itself, GLOB+..
    #[arg(long, value_name = "GLOB+..")]
    pub(in crate::cli) units: Option<String>,
    /// FSDP2: whether units let go of parameters: true, false or both.
    #[arg(long = "reshard", alias = "reshard-after-forward", value_name = "BOOL,..",
        value_parser = suggest(&["true", "false"]), hide_possible_values = true)]
    pub(in crate::cli) reshard_after_forward: Option<String>,
    /// FSDP2: types of parameters, reductions and results: bf16,fp32.
    #[arg(long, value_name = "TYPE,..")]
    pub(in crate::cli) mixed_precision: Option<String>,
    /// FSDP2: keep shards and the optimizer's state in host memory.
    #[arg(long)]
    pub(in crate::cli) cpu_offload: bool,
}

/// Whose memory, and how much of it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "GPU")]
pub(in crate::cli) struct Memory {
    /// The card to simulate: rtx4090, 8xh100, 4xh100+4xa100 or p5.48xlarge.
    #[arg(long, value_name = "CARD", value_parser = suggest(&sim::names()), hide_possible_values = true, conflicts_with = "device")]
    pub(in crate::cli) on: Option<String>,
    /// auto (a GPU that is free), cuda:N or sim:CARD.
    #[arg(long, value_name = "DEVICE")]
    pub(in crate::cli) device: Option<String>,
    /// Samples for each optimizer step over all GPUs, by accumulating.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(in crate::cli) target: Option<String>,
    /// How many GPUs train together, each with a process of its own.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(in crate::cli) world_size: Option<String>,
    /// What PyTorch may reserve: bytes, 12GiB, or a fraction such as 0.8.
    #[arg(long, value_name = "LIMIT", allow_negative_numbers = true)]
    pub(in crate::cli) memory_limit: Option<String>,
    /// Safety margin, as a fraction of the limit, such as 0.01.
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true)]
    pub(in crate::cli) headroom: Option<String>,
    /// What the host has for what is offloaded to it: bytes, or 256GiB. In docs/use/requests.md alone.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, hide = true)]
    pub(in crate::cli) host_memory: Option<String>,
    /// The text of a `PYTORCH_CUDA_ALLOC_CONF`.
    #[arg(long, value_name = "CONF")]
    pub(in crate::cli) allocator: Option<String>,
}

/// How the answer is found.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Search")]
pub(in crate::cli) struct Search {
    /// auto (default), probes (the GPU alone) or recorded (--recorder).
    #[arg(long, value_name = "HOW", value_parser = suggest(&["auto", "probes", "recorded"]), hide_possible_values = true)]
    pub(in crate::cli) search: Option<String>,
    /// Rank variants within_optimizer (default) or across_optimizers.
    #[arg(long, value_name = "HOW", value_parser = suggest(&["within_optimizer", "across_optimizers"]), hide_possible_values = true)]
    pub(in crate::cli) rank: Option<String>,
    /// largest_batch (default), or throughput: the smallest fast batch.
    #[arg(long, value_name = "WHAT", value_parser = suggest(&["largest_batch", "throughput"]), hide_possible_values = true)]
    pub(in crate::cli) objective: Option<String>,
    /// Unknown operators: refuse (default) or assume_elementwise.
    #[arg(long, value_name = "HOW", value_parser = suggest(&["refuse", "assume_elementwise"]), hide_possible_values = true)]
    pub(in crate::cli) unknown_ops: Option<String>,
    /// Try changes that allow a larger batch, or one of N.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(in crate::cli) suggest: Option<String>,
    /// How many of what masks and experts choose from are chosen. In docs/use/requests.md alone.
    #[arg(
        long,
        value_name = "PERCENT",
        allow_negative_numbers = true,
        hide = true
    )]
    pub(in crate::cli) chosen_percent: Option<String>,
}

/// Takes any text, and offers these words where a shell completes.
#[derive(Debug, Clone)]
struct Suggested(Vec<&'static str>);

pub(super) fn suggest(words: &[&'static str]) -> ValueParser {
    ValueParser::new(Suggested(words.to_vec()))
}

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}
