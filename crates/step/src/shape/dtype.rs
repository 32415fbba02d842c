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
    /// Two binary32: a real and an imaginary part.
    Complex64,
    /// Two binary64.
    Complex128,
}

impl DType {
    /// Bytes an element takes.
    pub const fn size(self) -> u64 {
        match self {
            DType::Complex128 => 16,
            DType::Float64 | DType::Int64 | DType::Complex64 => 8,
            DType::Float32 | DType::Int32 => 4,
            DType::Float16 | DType::BFloat16 => 2,
            DType::UInt8 | DType::Bool => 1,
        }
    }

    /// Whether this is a real floating-point type, which is what autocast looks at.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::Float64 | DType::Float32 | DType::Float16 | DType::BFloat16
        )
    }

    /// Whether this is a type of complex numbers.
    pub const fn is_complex(self) -> bool {
        matches!(self, DType::Complex64 | DType::Complex128)
    }

    /// The type of the parts of complex numbers; any other type is its own.
    #[must_use]
    pub const fn real(self) -> DType {
        match self {
            DType::Complex64 => DType::Float32,
            DType::Complex128 => DType::Float64,
            other => other,
        }
    }

    /// The type of complex numbers whose parts are of this type, of float32 where there is none.
    #[must_use]
    pub const fn complex(self) -> DType {
        match self {
            DType::Float64 | DType::Complex128 => DType::Complex128,
            _ => DType::Complex64,
        }
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
                DType::Complex64 => 7,
                DType::Complex128 => 8,
            }
        }
        match (self, other) {
            _ if self.is_complex() != other.is_complex() => {
                self.real().promote(other.real()).complex()
            }
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
            DType::Complex64 => "complex64",
            DType::Complex128 => "complex128",
        })
    }
}
