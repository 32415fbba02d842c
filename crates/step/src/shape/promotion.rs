//! Type promotion.

use serde::Serialize;

use super::dtype::DType;

/// A number that stands beside tensors: it raises the type of a result to its kind, not to its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Number {
    /// `True`.
    Truth,
    /// `2`.
    Whole,
    /// `2.0`.
    Real,
    /// `2j`.
    Complex,
}

/// PyTorch's type promotion: tensors with dimensions come first, then those without, then numbers; a
/// later kind counts only where it is of a higher class (truth, whole, real).
pub fn result_type(operands: &[(DType, bool)], number: Option<Number>) -> DType {
    let of = |scalar: bool| {
        let these = operands
            .iter()
            .filter(move |(_, is_scalar)| *is_scalar == scalar);
        these.map(|(dtype, _)| *dtype).reduce(DType::promote)
    };
    let is_double = of(false) == Some(DType::Float64);
    let number = number.map(|number| match number {
        Number::Complex if is_double => DType::Complex128,
        Number::Complex => DType::Complex64,
        Number::Truth => DType::Bool,
        Number::Whole => DType::Int64,
        Number::Real => DType::Float32,
    });
    let real = |dtype: DType| dtype.is_float() || dtype.is_complex();
    let class = |dtype: DType| (dtype != DType::Bool, real(dtype), dtype.is_complex());
    [of(false), of(true), number]
        .into_iter()
        .flatten()
        .reduce(|higher, lower| {
            if class(lower) > class(higher) {
                lower
            } else {
                higher
            }
        })
        .unwrap_or(DType::Float32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_raise_the_class_of_a_type_and_not_its_size() {
        let of = |dtype, number| result_type(&[(dtype, false)], Some(number));

        assert_eq!(of(DType::BFloat16, Number::Real), DType::BFloat16);
        assert_eq!(of(DType::Int64, Number::Real), DType::Float32);
        assert_eq!(of(DType::Bool, Number::Whole), DType::Int64);
        assert_eq!(of(DType::Int32, Number::Whole), DType::Int32);
    }

    #[test]
    fn tensors_without_dimensions_count_like_numbers() {
        let half = (DType::Float16, false);

        assert_eq!(
            result_type(&[half, (DType::Float32, true)], None),
            DType::Float16
        );
        assert_eq!(
            result_type(&[(DType::Int64, false), (DType::Float64, true)], None),
            DType::Float64
        );
    }
}
