//! Rows of the request itself, of `model` and of `lengths`.

use super::Heading::{self, Gpu, Search};
use super::soak::{GENERATION, SOAK};
use super::training::TRAINING;
use super::{Kind, Member, Object, Priority, SearchMode};
use crate::LARGEST;
use crate::exported::UnknownOps;
use batchfit_step::{Compare, Objective};

/// Largest batch read.
pub const LARGEST_TARGET: u64 = 1 << 40;
/// Most ranks read.
pub const MOST_RANKS: u64 = 1 << 20;
/// Most buckets of a request.
const MOST_BUCKETS: u64 = 64;

/// A request.
pub static REQUEST: Object = Object {
    what: "the request",
    schema: "Request",
    doc: "What a fit or a probe is asked with.",
    members: &[
        Member::new("model", Kind::Object(&MODEL), ""),
        Member::new("lengths", Kind::Object(&LENGTHS), ""),
        Member::new("training", Kind::Object(&TRAINING), ""),
        Member::new("device", Kind::Other, "`auto` (default: a GPU that is free), `cuda:N` or `sim:NAME`; a kind of card such as `h100-80g` for any host with an agent that\nhas one (simulated where there is none, which the answer's notes say), or `HOST/cuda:N` for one card of it; or a list of\nsimulated cards where the ranks of a job have different ones: the one that leaves PyTorch the least memory decides.")
            .flag(Gpu, "device", "DEVICE", "auto (a GPU that is free), cuda:N or sim:CARD")
            .also("gpu card gpu_name gpu_type device_name accelerator on"),
        Member::new("memory_limit", Kind::Size, "What the allocator may reserve: bytes, a size such as `12GiB`, or a fraction such as `0.8`.")
            .flag(Gpu, "memory-limit", "LIMIT", "What PyTorch may reserve: bytes, 12GiB, or a fraction such as 0.8")
            .also("memory mem vram gpu_memory max_memory memory_size memory_fraction per_process_memory_fraction"),
        Member::new("headroom", Kind::Number(0.0, 0.5), "Headroom: the share of the limit that an answer does not use, from 0 to 0.5, whatever was learnt from earlier answers. Without it: the\nerror that the prediction may have, or what outcomes have taught (`POST /v1/recommendations/{id}/outcomes`).").example("0.01")
            .flag(Gpu, "headroom", "FRACTION", "Safety margin, as a fraction of the limit, such as 0.01"),
        Member::new("host_memory", Kind::Size, "What the host has for what is offloaded to it (`cpu_offload`, `paged_adamw_8bit`), by all ranks together: bytes, or a size such\nas `256GiB`. Without it: enough.")
            .flag(Gpu, "host-memory", "SIZE", "What the host has for what is offloaded to it: bytes, or 256GiB").hidden(),
        Member::whole("target_batch", 1, LARGEST_TARGET, "Samples for each optimizer step, over all ranks.")
            .flag(Gpu, "target", "N", "Samples for each optimizer step over all GPUs, by accumulating")
            .also("batch_size batch target global_batch global_batch_size total_batch_size effective_batch_size target_batch_size train_batch_size"),
        Member::whole("world_size", 1, MOST_RANKS, "Ranks that train together; 1 by default.")
            .flag(Gpu, "world-size", "N", "How many GPUs train together, each with a process of its own")
            .also("gpus num_gpus n_gpus ngpus num_devices nproc_per_node num_processes ranks"),
        Member::new("allocator", Kind::Text, "The text of a `PYTORCH_CUDA_ALLOC_CONF`.").example("\"expandable_segments:True\"")
            .flag(Gpu, "allocator", "CONF", "The value of PYTORCH_CUDA_ALLOC_CONF")
            .also("pytorch_cuda_alloc_conf pytorch_alloc_conf alloc_conf allocator_settings"),
        Member::word::<SearchMode>("search", "search", "`auto` (default: simulation brackets, probes confirm), `probes`, or `recorded`: PyTorch runs the exported graph for a few\nsteps at small batches, on a server with a recorder, and what it asks for predicts the rest. With `auto` that is done\nwhere a graph has operators that are not known.").example("\"auto\"")
            .flag(Search, "search", "HOW", "auto (default), probes (the GPU alone) or recorded (--recorder)"),
        Member::word::<Compare>("compare", "comparison", "Which variants are ranked against each other: `within_optimizer` (default: the recommendation is the best of the\noptimizer that is listed first and fits anything) or `across_optimizers`.").example("\"within_optimizer\"")
            .flag(Search, "rank", "HOW", "Rank variants within_optimizer (default) or across_optimizers"),
        Member::word::<Objective>("objective", "objective", "Which batch is looked for: `largest_batch` (default), or `throughput`: the smallest micro-batch with 95 % of the best speed.").example("\"largest_batch\"")
            .flag(Search, "objective", "WHAT", "largest_batch (default), or throughput: the smallest fast batch"),
        Member::word::<UnknownOps>("unknown_ops", "answer to unknown operators", "What becomes of operators of an exported graph that batchfit does not know: `refuse` (default), or\n`assume_elementwise`: each is assumed to keep its inputs for the backward pass and to allocate its results, and\nthe answer lists them under `assumptions`.").example("\"refuse\"")
            .flag(Search, "unknown-ops", "HOW", "Unknown operators: refuse (default) or assume_elementwise"),
        Member::whole("chosen_percent", 0, 100, "Where sizes in an exported graph depend on the values of the batch (boolean masks, tokens of experts): how many\npercent of the most that they may choose is assumed. Without it all, or even parts; the answer lists them under\n`assumptions`.").example("25")
            .flag(Search, "chosen-percent", "PERCENT", "How many of what masks and experts choose from are chosen").hidden(),
        Member::new("generation", Kind::Object(&GENERATION), ""),
        Member::new("soak", Kind::Object(&SOAK), ""),
        Member::word::<Priority>("priority", "priority", "Who is served first: `interactive` (a client waits: the default with `Prefer: wait`) or `batch` (the default otherwise).\nA `batch` fit that has waited for a minute is served like the others.").example("\"batch\""),
        Member::whole("timeout_seconds", 1, 86_400, "For how many seconds it may be worked on, at most a day; then it fails as `timed-out`. Waiting for its turn does not count.").example("60"),
        Member::new("suggest", Kind::Other, "Whether changes of the request are answered as well, on simulated devices: `true` for those with which the target takes one\nmicro-step or, without one, twice the micro-batch fits, or the micro-batch that is wanted. They are the answer's `suggestions`.")
            .flag(Search, "suggest", "N", "Try changes that allow a larger batch, or one of N"),
    ],
};

/// `model`: what makes sense in several ways of describing one. Each way reads its own.
pub static MODEL: Object = Object {
    what: "the model",
    schema: "Model",
    doc: "",
    members: &[
        Member::new("preset", Kind::Other, "").also("name model_name arch architecture model_name_or_path pretrained_model_name_or_path"),
        Member::new("layers", Kind::Other, ""),
        Member::new("exported", Kind::Other, "").also("graph exported_program exported_graph"),
        Member::new("hf", Kind::Other, "").also("config hf_config huggingface"),
        Member::new("seq_len", Kind::Other, "")
            .flag(Heading::Model, "seq-len", "N,..", "Tokens in a sample; several: 128,512, 64-512:64, 64:900,512:30, a .json")
            .also("seq_length seqlen sequence_length max_length max_seq_len max_seq_length context_length block_size cutoff_len sequence_len max_source_length model_max_length"),
        Member::new("target_len", Kind::Whole(1, LARGEST), "").flag(Heading::Model, "target-len", "N", "Tokens in the target of a model that translates"),
        Member::new("loss_chunks", Kind::Other, ""),
        Member::new("param_dtype", Kind::Other, ""),
        Member::new("lora", Kind::Other, ""),
        Member::new("frozen", Kind::Other, ""),
        Member::new("image_size", Kind::Other, "")
            .flag(Heading::Model, "image-size", "N|HxW", "Height and width of the images; several: 160,224,224x320, 160-320:32")
            .also("img_size input_size resolution crop_size"),
        Member::new("padded", Kind::Other, ""),
        Member::new("task", Kind::Other, ""),
        Member::new("num_classes", Kind::Whole(1, LARGEST), "")
            .flag(Heading::Model, "num-classes", "N", "Classes that the model tells apart")
            .also("classes n_classes num_labels"),
        Member::new("in_channels", Kind::Whole(1, LARGEST), "")
            .flag(Heading::Model, "in-channels", "N", "Channels of the images")
            .also("channels in_chans input_channels num_channels"),
    ],
};

/// `lengths`.
pub static LENGTHS: Object = Object {
    what: "lengths",
    schema: "Lengths",
    doc: "The lengths that samples have, where they differ: one of `seq_len` and `image_size`, in the place of the model's own. The answer is\nthen the batch that is safe at all of them, and `lengths` of the result has a row for each.",
    members: &[
        Member::new("seq_len", Kind::Other, "A list such as `[128, 512]`, ranges such as `\"32-512:8\"` (every eighth), or a histogram, `\"64:100,128:50\"` or\n`{\"64\": 100, \"128\": 50}`: lengths with how many samples have them. At most 512 lengths."),
        Member::new("image_size", Kind::Other, "The same for images: `224`, or `\"224x320\"` for height and width."),
        Member::whole("multiple_of", 1, LARGEST, "To a multiple of what lengths are padded; 1 by default.").example("8")
            .flag(Heading::Model, "multiple-of", "N", "Of several lengths: pad each to a multiple of so many").hidden(),
        Member::whole("buckets", 1, MOST_BUCKETS, "Into how many buckets lengths are put at most; by default 4.").example("4")
            .flag(Heading::Model, "buckets", "N", "Of several lengths: put them into so many buckets at most").hidden(),
    ],
};
