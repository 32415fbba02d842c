//! From the largest batches to what is recommended: plans, headroom, what limits them, and what readers are told.

pub(crate) mod alternate_plan;
pub(crate) mod headroom;
pub(crate) mod notes;
pub(crate) mod recommend;
