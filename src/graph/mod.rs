//! The forward graph.
pub mod dtype;
pub mod extent;
pub use dtype::DType;
pub use extent::Extent;
