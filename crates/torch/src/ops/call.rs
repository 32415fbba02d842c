//! Operators that are one function: what is read from a call, the types of its results and what it runs stand beside each other.

use std::fmt::{self, Debug};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::{Context, Op, Operator, Read};
use crate::aten::ValueId;
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{Extent, Mismatch, Type};

/// What an operator is on arguments of type `A`. Its reader makes it.
#[derive(Debug)]
pub(super) struct Function<A> {
    /// The name a PyTorch user knows it by.
    pub(super) name: &'static str,
    /// All that its arguments say beside its operands.
    pub(super) arguments: A,
    /// See [`Operator::infer`].
    pub(super) infer: fn(&A, &[Type]) -> Result<Vec<Type>, Mismatch>,
    /// See [`Operator::run`].
    pub(super) run: fn(&A, &mut Eager, &[Tensor], &Context<'_>) -> Outputs,
}

/// See [`Operator::positions`].
type Positions<A> = fn(&A, &[Type]) -> Vec<(usize, Extent)>;

impl<A: Debug + Send + Sync + 'static> Function<A> {
    /// A call of it on these operands.
    pub(super) fn on(self, operands: Vec<ValueId>) -> Read {
        self.on_positions(operands, |_, _| Vec::new())
    }

    /// The same where operands hold positions.
    pub(super) fn on_positions(self, operands: Vec<ValueId>, positions: Positions<A>) -> Read {
        let function = self;
        let call = Call(Arc::new(Rules {
            function,
            positions,
        }));
        (Op::Call(call), operands)
    }
}

/// The result of many: of the type and the lengths of the first operand.
#[expect(clippy::unnecessary_wraps, reason = "it is an `infer`")]
pub(super) fn like_first<A>(_: &A, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    Ok(operands[..1].to_vec())
}

/// A call of an operator that is one function.
#[derive(Clone)]
pub struct Call(Arc<dyn Called>);

impl Call {
    pub(super) fn operator(&self) -> &dyn Operator {
        &*self.0
    }
}

trait Called: Operator + Send + Sync {
    fn arguments(&self) -> &dyn Debug;
}

struct Rules<A> {
    function: Function<A>,
    positions: Positions<A>,
}

impl<A: Debug + Send + Sync> Called for Rules<A> {
    fn arguments(&self) -> &dyn Debug {
        &self.function.arguments
    }
}

impl<A> Operator for Rules<A> {
    fn name(&self) -> &'static str {
        self.function.name
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        (self.function.infer)(&self.function.arguments, operands)
    }

    fn positions(&self, operands: &[Type]) -> Vec<(usize, Extent)> {
        (self.positions)(&self.function.arguments, operands)
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        (self.function.run)(&self.function.arguments, eager, operands, context)
    }
}

/// Its name and its arguments tell a call from any other.
impl Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.0.name(), self.0.arguments())
    }
}

impl PartialEq for Call {
    fn eq(&self, other: &Call) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Serialize for Call {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}
