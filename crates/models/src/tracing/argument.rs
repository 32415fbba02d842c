//! Arguments of an operator, by the names in its schema.

use crate::aten::schema::{Arg, SymInt};
use crate::limits::Text;
use crate::shape::{DType, Extent};

use super::tracer::Tensor;

/// An argument of an operator.
#[derive(Debug, Clone)]
pub(crate) enum Argument<'a> {
    Tensor(&'a Tensor),
    Tensors(Vec<&'a Tensor>),
    /// A list of tensors some of which are missing, as in `x[:, index]`.
    OptionalTensors(Vec<Option<&'a Tensor>>),
    Int(i64),
    Ints(Vec<i64>),
    Size(Size),
    Sizes(Vec<Size>),
    Float(f64),
    Bool(bool),
    Text(&'static str),
    DType(DType),
    /// PyTorch's default.
    None,
}

/// Has each of these types be a kind of argument.
macro_rules! arguments_of {
    ($($type:ty as $value:ident => $argument:expr),+ $(,)?) => {
        $(
            impl<'a> From<$type> for Argument<'a> {
                fn from($value: $type) -> Self {
                    $argument
                }
            }
        )+
    };
}

arguments_of! {
    &'a Tensor as tensor => Argument::Tensor(tensor),
    i64 as number => Argument::Int(number),
    &[i64] as numbers => Argument::Ints(numbers.to_vec()),
    u64 as size => Argument::Size(size.into()),
    Size as size => Argument::Size(size),
    &[Size] as sizes => Argument::Sizes(sizes.to_vec()),
    f64 as number => Argument::Float(number),
    bool as truth => Argument::Bool(truth),
    &'static str as text => Argument::Text(text),
    DType as dtype => Argument::DType(dtype),
}

/// A length in a `view` or `expand`: a number, -1 for what is left, or one that depends on the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(Known);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Number(i64),
    Batched(Extent),
}

impl Size {
    /// What is left, in a `view`; as it is, in an `expand`.
    pub(crate) const REST: Size = Size(Known::Number(-1));
}

impl From<Extent> for Size {
    fn from(extent: Extent) -> Size {
        let fixed = extent
            .as_fixed()
            .and_then(|length| i64::try_from(length).ok());
        Size(fixed.map_or(Known::Batched(extent), Known::Number))
    }
}

impl From<u64> for Size {
    fn from(length: u64) -> Size {
        Size::from(Extent::fixed(length))
    }
}

impl From<i32> for Size {
    fn from(length: i32) -> Size {
        Size(Known::Number(length.into()))
    }
}

/// An argument as an exported graph has it, and the names that it uses.
pub(super) struct ArgText<'a> {
    /// Tensors and what they go by.
    pub(super) tensors: Vec<(String, &'a Tensor)>,
    /// Sizes that depend on the batch and what they go by.
    pub(super) sizes: Vec<(String, Extent)>,
}

impl<'a> ArgText<'a> {
    fn tensor(&mut self, tensor: &'a Tensor) -> Text<'static> {
        let name = format!("t{}", self.tensors.len());
        self.tensors.push((name.clone(), tensor));
        Text::from(name)
    }

    fn size(&mut self, size: Size) -> SymInt<'static> {
        match size.0 {
            Known::Number(number) => SymInt::AsInt(number),
            Known::Batched(extent) => {
                let name = format!("s{}", self.sizes.len());
                self.sizes.push((name.clone(), extent));
                SymInt::AsName(Text::from(name))
            }
        }
    }

    /// The argument by names.
    pub(super) fn spell(&mut self, argument: &Argument<'a>) -> Arg<'static> {
        match argument {
            Argument::Tensor(tensor) => Arg::Tensor(self.tensor(tensor)),
            Argument::Tensors(tensors) => {
                Arg::Tensors(tensors.iter().map(|tensor| self.tensor(tensor)).collect())
            }
            Argument::OptionalTensors(tensors) => {
                let names = tensors.iter();
                let names = names.map(|tensor| tensor.map(|tensor| self.tensor(tensor)));
                Arg::OptionalTensors(names.collect())
            }
            Argument::Int(number) => Arg::Int(*number),
            Argument::Ints(numbers) => Arg::Ints(numbers.iter().copied().collect()),
            Argument::Size(size) => match self.size(*size) {
                SymInt::AsInt(number) => Arg::Int(number),
                named @ SymInt::AsName(_) => Arg::SymInt(named),
            },
            Argument::Sizes(sizes) => {
                Arg::SymInts(sizes.iter().map(|size| self.size(*size)).collect())
            }
            Argument::Float(number) => Arg::Float(*number),
            Argument::Bool(truth) => Arg::Bool(*truth),
            Argument::Text(text) => Arg::Text(Text::There(text)),
            Argument::DType(dtype) => Arg::ScalarType(scalar_type(*dtype)),
            Argument::None => Arg::None,
        }
    }
}

/// PyTorch's number for a dtype; see [`crate::aten::dtype`].
fn scalar_type(dtype: DType) -> u32 {
    match dtype {
        DType::UInt8 => 1,
        DType::Int32 => 4,
        DType::Int64 => 5,
        DType::Float16 => 6,
        DType::Float32 => 7,
        DType::Float64 => 8,
        DType::Complex64 => 10,
        DType::Complex128 => 11,
        DType::Bool => 12,
        DType::BFloat16 => 13,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_are_read_back_as_they_were() {
        for dtype in [
            DType::Bool,
            DType::UInt8,
            DType::Int32,
            DType::Int64,
            DType::Float16,
            DType::BFloat16,
            DType::Float32,
            DType::Float64,
            DType::Complex64,
            DType::Complex128,
        ] {
            assert_eq!(crate::aten::dtype(scalar_type(dtype)), Ok(dtype));
        }
    }
}
