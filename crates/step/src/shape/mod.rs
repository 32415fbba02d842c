//! Element types, symbolic lengths, strides, broadcasting and promotion, as PyTorch has them.

mod broadcast;
mod display;
mod dtype;
mod extent;
mod piece;
mod promotion;
mod sizes;
mod strides;
mod window;

pub use broadcast::Mismatch;
pub use broadcast::broadcast;
pub use dtype::DType;
pub use extent::{Extent, contiguous_strides, is_oversize, numel};
pub use promotion::Number;
pub use promotion::result_type;
pub use sizes::Sizes;
pub use strides::{
    MemoryFormat, is_channels_last, is_dense, strides_like, strides_match, view_strides,
};
pub use window::Window;

/// The element type and the lengths of a tensor.
pub type Type = (DType, Vec<Extent>);
