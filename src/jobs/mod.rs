//! From a request to its answer.

mod engine;
mod fit;
mod result;

pub use engine::{DeviceKind, DeviceSummary, Engine, EngineError, Progress, check_device};
pub use fit::FitEngine;
pub use result::{Environment, FitResult, ProbeSummary, Recommendation, VariantResult};
