//! From the largest batches to what is recommended: plans, headroom, what limits them, and what readers are told.

pub(in crate::fitting) mod alternate_plan;
pub(in crate::fitting) mod assumed;
pub(in crate::fitting) mod headroom;
pub(in crate::fitting) mod notes;
pub(in crate::fitting) mod ranked;
pub(in crate::fitting) mod recommend;
pub(in crate::fitting) mod why;
