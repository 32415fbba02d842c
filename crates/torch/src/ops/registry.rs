//! What all operators have in common, and the one list of them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::LazyLock;

use super::Op;
use crate::aten::{Arguments, ValueId};
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{DType, Extent, Mismatch, Type};

/// An operator with its attributes. Operands are given with each call, in the order that the operator's
/// own type documents; trailing optional ones may be missing.
pub trait Operator {
    /// The name a PyTorch user knows it by.
    fn name(&self) -> &'static str;

    /// The types of the results. Readers give an operator as many operands as it takes.
    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch>;

    /// The first of the operands that its module moves into one buffer when it is moved to the card (the others
    /// follow), and how many elements that buffer has; `stored` is what a type is stored as.
    fn flattened(
        &self,
        _operands: &dyn Fn() -> Vec<Type>,
        _stored: &dyn Fn(DType) -> DType,
    ) -> Option<(usize, u64)> {
        None
    }

    /// Which operands hold positions, and below which number they must be.
    fn positions(&self, _operands: &[Type]) -> Vec<(usize, Extent)> {
        Vec::new()
    }

    /// What of its memory is an estimate, if anything.
    fn estimate(&self) -> Option<&'static str> {
        None
    }

    /// What eager PyTorch allocates, saves and launches, forward and (by what it records) backward.
    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs;
}

/// What an operator may depend on besides its operands.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The lengths of its results, as inferred.
    pub results: &'a [Vec<Extent>],
    /// Whether the model is in eval mode and nothing is trained.
    pub inference: bool,
    /// The type that the model's parameters are stored in.
    pub parameters: DType,
    /// The type of what noise made here is multiplied by, where that is known.
    pub noise: Option<DType>,
    /// The type that a cast written here goes back to, where that is another than the one it names.
    pub goes_back_to: Option<DType>,
    /// The type of the tensor whose type a cast written here asks for, where that is known.
    pub asks_for: Option<DType>,
    /// Whether the first operand is a buffer of the model.
    pub of_buffer: bool,
}

/// An operator that was read from an exported graph, and its operands.
pub type Read = (Op, Vec<ValueId>);

/// Reads one node; the error is a clause that completes "cannot read aten.conv2d.default: …".
pub type Reader = fn(&Arguments<'_>) -> Result<Read, String>;

/// Declares the families by the modules that have their readers, which are listed by the names of operators with blanks between: those
/// with a variant of [`Op`], and those whose operators are a [`Call`](super::Call) each.
macro_rules! families {
    (
        $($variant:ident: $module:ident $(:: $inner:ident)?),+;
        $($of_calls:ident $(:: $part:ident)?),+ $(,)?
    ) => {
        $(pub use $module::$($inner::)?$variant;)+

        /// One forward operation, by the ATen operator that it stands for.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        pub enum Op {
            /// See [`Call`].
            Call(Call),
            $(
                #[doc = concat!("See [`", stringify!($variant), "`].")]
                $variant($variant),
            )+
        }

        impl Op {
            fn operator(&self) -> &dyn Operator {
                match self {
                    Op::Call(call) => call.operator(),
                    $(Op::$variant(operator) => operator,)+
                }
            }
        }

        $(
            impl From<$variant> for Op {
                fn from(operator: $variant) -> Op {
                    Op::$variant(operator)
                }
            }
        )+

        /// The readers of all families, by the names of their operators.
        fn readers() -> Vec<(&'static str, Reader)> {
            let lists = [
                $($module::$($inner::)?ATEN.to_vec(),)+
                $($of_calls::$($part::)?ATEN.to_vec()),+
            ];
            let each = |(names, reader): (&'static str, Reader)| names.split(' ').map(move |name| (name, reader));
            lists.into_iter().flatten().flat_map(each).collect()
        }
    };
}

/// The CUDA C++ of a file, with what these variables hold where it says `$NAME$`.
macro_rules! filled {
    ($file:literal, $($name:ident),+) => {
        $crate::ops::registry::fill(
            include_str!($file),
            &[$((concat!("$", stringify!($name), "$"), &$name)),+],
        )
    };
}

pub(super) fn fill(text: &str, parts: &[(&str, &dyn Display)]) -> String {
    let parts = parts.iter();
    parts.fold(text.to_owned(), |text, (name, value)| {
        text.replace(name, &value.to_string())
    })
}

/// Declares the readers of a family whose operators are rows of a table, and its rows by the operators' names.
macro_rules! rows {
    ($table:ident: $row:ty, read by $read:ident) => {
        /// Operators by their names.
        pub(in crate::ops) static ATEN: std::sync::LazyLock<Vec<(&str, $crate::ops::Reader)>> =
            std::sync::LazyLock::new(|| {
                let names = $table.iter().flat_map(|row| &row.aten);
                names
                    .map(|name| (*name, $read as $crate::ops::Reader))
                    .collect()
            });

        /// Rows by the names of their operators.
        static ROWS: std::sync::LazyLock<std::collections::BTreeMap<&'static str, &'static $row>> =
            std::sync::LazyLock::new(|| {
                let rows = $table.iter();
                rows.flat_map(|row| row.aten.iter().map(move |name| (*name, row)))
                    .collect()
            });
    };
}

/// Readers by the names of ATen operators.
static ATEN: LazyLock<BTreeMap<&'static str, Reader>> =
    LazyLock::new(|| super::readers().into_iter().collect());

/// The name of an operator that is known, without overload: `add_` of `aten.add_.Tensor`.
pub(super) fn short_name(target: &str) -> Option<&'static str> {
    let (target, _) = ATEN.get_key_value(target)?;
    target.split('.').nth(1)
}

/// What a node does, or `None` for an operator that is not known.
pub fn read(arguments: &Arguments<'_>) -> Result<Option<Read>, String> {
    let reader = ATEN.get(arguments.target);
    reader.map(|reader| reader(arguments)).transpose()
}

/// The ATen operators that are known, always in the same order.
pub fn known() -> impl Iterator<Item = &'static str> {
    let elsewhere = std::iter::once(super::BROADCAST_TENSORS);
    elsewhere.chain(ATEN.keys().rev().copied())
}

/// The results of `op` on operands of these types.
pub fn infer(op: &Op, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    op.operator().infer(operands)
}

impl Op {
    /// The name a PyTorch user knows it by.
    pub fn name(&self) -> &'static str {
        self.operator().name()
    }

    /// See [`Operator::flattened`].
    pub fn flattened(
        &self,
        operands: &dyn Fn() -> Vec<Type>,
        stored: &dyn Fn(DType) -> DType,
    ) -> Option<(usize, u64)> {
        self.operator().flattened(operands, stored)
    }

    /// See [`Operator::positions`].
    pub fn positions(&self, operands: &[Type]) -> Vec<(usize, Extent)> {
        self.operator().positions(operands)
    }

    /// See [`Operator::estimate`].
    pub fn estimate(&self) -> Option<&'static str> {
        self.operator().estimate()
    }

    /// Runs it, as eager PyTorch would.
    pub fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        self.operator().run(eager, operands, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aten_operator_has_one_reader() {
        assert_eq!(ATEN.len(), super::super::readers().len());
    }
}
