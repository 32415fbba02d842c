//! From what a user writes to a graph and its variants.
//!
//! [`Request::parse`] reads the one document that a fit or a probe is asked with; it is then valid,
//! except that its model may still turn out not to fit together when it is lowered to a graph.

pub mod exported;
pub(crate) mod fields;
mod fingerprint;
mod huggingface;
mod invalid;
mod layers;
mod nn;
mod presets;
mod request;
mod tracing;
mod uploaded;
mod words;

/// The PyTorch whose behaviour is predicted.
pub const PYTORCH: &str = "2.11";

pub use batchfit_step::{
    Checkpointing, CommHook, Compare, Ddp, FullyShard, Glob, Globs, MixedPrecision, Mode, Norm,
    Objective, Optimizer, OptimizerImpl, Parallel, Precision, Variant,
};
pub use huggingface::config_fields;
pub(crate) use huggingface::hub::{assumed_tokens, assumed_tokens_of};
pub(crate) use huggingface::of_another_library;
pub use invalid::Invalid;
pub(crate) use presets::is_of_transformers;
pub use presets::{Override, Preset, preset, presets};
pub use request::{
    Counted, Course, DEEPSPEED, DeviceChoice, Generation, KeptIn, Length, LengthOf, Lengths,
    Lowered, ModelAside, Priority, RECORDING_BOUNDS, RULES, Request, RequestDocument, Sampling,
    SearchMode, Suggest, Taught, TaughtBy, Validation, Workload, is_host_name, pack,
    parse_memory_limit, parse_size, strategy,
};
pub(crate) use request::{LARGEST_TARGET, MOST_RANKS, absent, unknown_card, unknown_machine};
pub(crate) use uploaded::DIGEST_FORM;
pub use uploaded::{Digest, Packed, Reference, Upload, UploadKind, Uploads};
