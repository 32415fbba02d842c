//! Element types.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements, by PyTorch's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary64.
    Float64,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// The upper half of a binary32.
    BFloat16,
    /// Signed 64-bit.
    Int64,
    /// Signed 32-bit.
    Int32,
    /// Unsigned 8-bit.
    UInt8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes an element takes.
    pub const fn size(self) -> u64 {
        match self {
            DType::Float64 | DType::Int64 => 8,
            DType::Float32 | DType::Int32 => 4,
            DType::Float16 | DType::BFloat16 => 2,
            DType::UInt8 | DType::Bool => 1,
        }
    }

    /// Whether this is a floating-point type, which is what autograd and autocast look at.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::Float64 | DType::Float32 | DType::Float16 | DType::BFloat16
        )
    }

    /// Whether this is one of the two 16-bit floating-point types.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::Float16 | DType::BFloat16)
    }

    /// The type of an elementwise result of two tensors of at least one dimension each.
    ///
    /// PyTorch's `promote_types`, for the pairs that occur in training graphs.
    #[must_use]
    pub fn promote(self, other: DType) -> DType {
        fn rank(dtype: DType) -> u8 {
            match dtype {
                DType::Bool => 0,
                DType::UInt8 => 1,
                DType::Int32 => 2,
                DType::Int64 => 3,
                DType::Float16 | DType::BFloat16 => 4,
                DType::Float32 => 5,
                DType::Float64 => 6,
            }
        }
        match (self, other) {
            (DType::Float16, DType::BFloat16) | (DType::BFloat16, DType::Float16) => DType::Float32,
            _ if rank(other) > rank(self) => other,
            _ => self,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Float64 => "float64",
            DType::Float32 => "float32",
            DType::Float16 => "float16",
            DType::BFloat16 => "bfloat16",
            DType::Int64 => "int64",
            DType::Int32 => "int32",
            DType::UInt8 => "uint8",
            DType::Bool => "bool",
        })
    }
}
