//! Which kernels elementwise operators launch, as far as there are any.

use super::row::Computes;
use super::{Elementwise, Operand};
use crate::aten::Constant;
use crate::program::{Binary, Kernel, Unary};
use crate::shape::DType;

impl Elementwise {
    /// Launches of it have no kernel.
    fn unknown(&self) -> Kernel {
        Kernel::MemoryOnly(self.base_name())
    }

    /// The number in the place of `other` or `exponent`.
    fn second(&self) -> Option<f64> {
        self.number(1).and_then(Constant::real)
    }

    /// What its forward launch computes on a first tensor of type `from`, into a result of type `to`.
    pub(super) fn kernel(&self, from: DType, to: DType) -> Kernel {
        if from != to && self.positions().count() == 1 {
            return self.unknown();
        }
        let is_plain = self.row.attributes.is_empty() || self.is("alpha", 1.0);
        let both = self.operands == [Operand::Tensor, Operand::Tensor];
        let known = match self.row.computes {
            Computes::Unknown => None,
            Computes::Sum if both && is_plain => Some(Kernel::Binary(Binary::Add)),
            Computes::Sum => self.second().filter(|_| is_plain).map(Kernel::Shift),
            Computes::Product if both => Some(Kernel::Binary(Binary::Mul)),
            Computes::Product => self.second().map(Kernel::Scale),
            Computes::Negation => Some(Kernel::Scale(-1.0)),
            Computes::Power => self.second().map(Kernel::Power),
            Computes::Square => Some(Kernel::Power(2.0)),
            Computes::Unary(which) => which(self).map(Kernel::Unary),
        };
        known.unwrap_or_else(|| self.unknown())
    }

    /// What the launch of a gradient computes.
    pub(super) fn gradient_kernel(&self) -> Kernel {
        let known = match self.row.computes {
            Computes::Unknown | Computes::Sum => None,
            Computes::Product => Some(match self.second() {
                Some(factor) => Kernel::Scale(factor),
                None => Kernel::Binary(Binary::Mul),
            }),
            Computes::Negation => Some(Kernel::Scale(-1.0)),
            Computes::Power => self.second().map(Kernel::PowerGrad),
            Computes::Square => Some(Kernel::PowerGrad(2.0)),
            Computes::Unary(which) => which(self).map(Kernel::UnaryGrad),
        };
        known.unwrap_or_else(|| self.unknown())
    }
}

/// `gelu`, exact or not.
pub(super) fn gelu(op: &Elementwise) -> Option<Unary> {
    match op.attribute("approximate") {
        Some(Constant::Text(text)) if text == "none" => Some(Unary::Gelu),
        Some(Constant::Text(text)) if text == "tanh" => Some(Unary::GeluTanh),
        _ => None,
    }
}

/// `hardtanh`, which `relu6` is one of.
pub(super) fn hardtanh(op: &Elementwise) -> Option<Unary> {
    (op.is("min_val", 0.0) && op.is("max_val", 6.0)).then_some(Unary::Relu6)
}
