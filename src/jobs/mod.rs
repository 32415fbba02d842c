//! From a request to its answer.

mod result;

pub use result::{Environment, FitResult, ProbeSummary, Recommendation, VariantResult};
