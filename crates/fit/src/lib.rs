//! From a request to its answer: what is asked, the search over simulated and real probes, headroom, and the parent's side of the processes
//! that run real ones. No I/O but those processes; no database, no HTTP, no tokio.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`model`] | the request: one document that names a model, a training, a device and what is wanted |
//! | [`search`] | which batch to ask about next; pure |
//! | `fitting` | the seam to whatever answers; a request, its search and its answer, on simulated cards or in worker processes |
//! | [`worker`] | the parent's side of the processes that own a GPU, record in PyTorch or ask cuDNN |
//! | [`virtual_gpu`] | the parent's side of a user's script on a GPU that is not there |
//! | [`recorded`] | steps that PyTorch recorded, and what they tell about other batches |
//! | `result`, `lengths`, `validate` | the answer, and what is refused before work starts |

mod fitting;
mod lengths;
pub mod model;
pub mod recorded;
mod result;
pub mod search;
mod validate;
pub mod virtual_gpu;
pub mod worker;

pub use fitting::{
    Catalogue, DeviceKind, DeviceSummary, Engine, EngineError, FailingStep, FitEngine,
    FromRecordings, Isolation, Progress, Runs, SafeBatch, SoakResult, SoakStep, StepKind, Work,
    card_name, named_card, predict, run_isolated, soak,
};
pub use lengths::{Bucket, LengthRow, LengthTable};
pub use result::{
    AcrossRanks, Environment, Exactly, FitResult, GpuRun, GpuWork, Headroom, HeadroomFrom, Limit,
    LimitKind, MARGIN, ProbeSummary, Recommendation, Suggestion, SuggestionKind, VariantResult,
    Why,
};
pub use validate::{Purpose, check_work, invalid_variant, resolve, validate, validate_batch, work};

use batchfit_card::{alloc, device, probe, replay, timing};
use batchfit_step::{limits, order, program, shape, units};
use batchfit_torch::{compile, graph, ops};
