//! From what a user writes to a graph and its variants.
//!
//! [`Request::parse`] reads the one document that a fit or a probe is asked with; it is then valid,
//! except that its model may still turn out not to fit together when it is lowered to a graph.

mod request;

pub use batchfit_models::huggingface::hub::{
    MOST_ASSUMED, assumed_tokens_of, room_for_tokens, room_for_tokens_of,
};
pub use batchfit_models::huggingface::{ASK_BF16, config_fields, of_another_library};
pub use batchfit_models::presets::{
    Override, Preset, is_of_transformers, of_family, preset, presets,
};
pub use batchfit_models::{
    Generation, KeptIn, Length, LengthCount, LengthOf, Lengths, OTHER_NAMES, PYTORCH, RequestError,
    Sampling, exported, members, same_value,
};
pub use batchfit_step::{
    Checkpointing, CommHook, Compare, Ddp, FullyShard, Glob, Globs, MixedPrecision, Mode, Norm,
    Objective, Optimizer, OptimizerImpl, Parallel, Precision, Variant,
};
pub(crate) use request::hexadecimal;
pub use request::{
    CalibrationSource, DEEPSPEED, DIGEST_FORM, DetachedModel, DeviceChoice, Digest, ENGINE_DIGEST,
    HeadroomCalibration, Lowered, ModelFiles, Packed, Priority, RECORDING_BOUNDS, Reference,
    Request, RequestDocument, SearchMode, SoakSchedule, Suggest, Upload, UploadKind, Uploads,
    Validation, Workload, is_host_name, pack, parse_memory_limit, parse_size, strategy,
};
pub use request::{LARGEST_TARGET, MOST_RANKS, nicknames};
