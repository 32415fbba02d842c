//! Models that give each pixel a class.

pub(super) mod torchvision;
pub(super) mod unet;
