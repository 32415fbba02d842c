//! Classifiers with attention.

pub(super) mod maxvit;
pub(super) mod swin;
pub(super) mod vit;
