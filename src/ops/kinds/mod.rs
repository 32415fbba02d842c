//! Attributes of operators.

mod create;
mod einsum;
mod indexed;
mod loss;
mod normalize;
mod pointwise;
mod resample;

pub use create::{Create, CreatedType, Place};
pub use einsum::Einsum;
pub use indexed::Indexed;
pub(crate) use indexed::looked_up;
pub use loss::{Loss, LossFunction, Summary};
pub use normalize::Normalize;
pub use pointwise::{Function, Pointwise};
pub use resample::Resample;
