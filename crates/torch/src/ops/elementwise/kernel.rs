//! What elementwise operators launch: tuned kernels where there are any, else ones made from the tables' formulas.

use super::row::{Formula, Tuned};
use super::run::expanded;
use super::{Elementwise, Operand};
use crate::ops::prelude::*;
use crate::program::Binary;

/// A launch and what it reads.
pub(super) struct Launched {
    pub(super) kernel: Kernel,
    pub(super) inputs: Vec<TensorBody>,
}

/// How much is told of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaunchDetail {
    /// All, for a card to run.
    Whole,
    /// What it reads and writes, so that it can be timed: a program that is simulated has no launches.
    Outline,
}

impl LaunchDetail {
    /// How much this process wants to know.
    pub(super) fn to(eager: &Eager) -> LaunchDetail {
        if eager.emits_launches() {
            LaunchDetail::Whole
        } else {
            LaunchDetail::Outline
        }
    }
}

/// Operands and results by the names that formulas give them.
type Named<'a> = (&'static str, &'a TensorBody);

impl Elementwise {
    /// Launches of it have no kernel.
    fn unknown(&self, all: &[Named<'_>]) -> Launched {
        Launched {
            kernel: Kernel::MemoryOnly(self.base_name()),
            inputs: all.iter().map(|(_, tensor)| same(tensor)).collect(),
        }
    }

    /// The number in the place of `other` or `exponent`.
    fn second(&self) -> Option<f64> {
        self.number(1).and_then(Constant::real)
    }

    /// Its forward launch on these tensors, into a result.
    pub(super) fn forward_launch(
        &self,
        tensors: &[&TensorBody],
        result: &TensorBody,
        told: LaunchDetail,
    ) -> Launched {
        if let Some(kernel) = self.tuned_forward(tensors, result) {
            let broadcasts = matches!(kernel, Kernel::Binary(_));
            let seen = |tensor: &&TensorBody| {
                if broadcasts {
                    expanded(tensor, &result.shape)
                } else {
                    same(tensor)
                }
            };
            return Launched {
                kernel,
                inputs: tensors.iter().map(seen).collect(),
            };
        }
        let positions = self.positions();
        let given: Vec<Named<'_>> = positions
            .map(|position| self.row.operands[position])
            .zip(tensors.iter().copied())
            .collect();
        let types: Vec<(DType, bool)> = tensors
            .iter()
            .map(|tensor| (tensor.dtype, tensor.shape.is_empty()))
            .collect();
        let common = self.common_type(&types);
        let text = of(self.row.formula, self, common);
        self.generated(text, (common, told), &given, "result")
            .unwrap_or_else(|| self.unknown(&given))
    }

    /// The launch of the gradient of the operand at this position, from the incoming one and what is saved.
    pub(super) fn gradient_launch(
        &self,
        position: usize,
        incoming: &TensorBody,
        saved: &[Named<'_>],
        told: LaunchDetail,
    ) -> Launched {
        let tuned = self.tuned_gradient(incoming, saved);
        if let Some(kernel) = tuned {
            let mut inputs = vec![same(incoming)];
            match kernel {
                Kernel::Binary(_) => {
                    let factor = saved
                        .first()
                        .map(|(_, read)| expanded(read, &incoming.shape));
                    inputs.extend(factor);
                }
                Kernel::Scale(_) => {}
                _ => inputs.extend(saved.iter().map(|(_, tensor)| same(tensor))),
            }
            return Launched { kernel, inputs };
        }
        let mut given = vec![("grad", incoming)];
        given.extend(saved);
        let in_place = self.placement() == Placement::InPlace;
        let formula = match (self.row.derivative_in_place, self.row.in_place) {
            (written @ (Formula::Text(_) | Formula::By(_)), Some(_))
                if in_place && position == 0 =>
            {
                written
            }
            _ => self.row.derivatives[position],
        };
        let text = of(formula, self, incoming.dtype);
        self.generated(text, (incoming.dtype, told), &given, "gradient")
            .unwrap_or_else(|| self.unknown(&given))
    }

    /// A kernel made from a formula; `None` where it lacks something.
    fn generated(
        &self,
        text: Option<&'static str>,
        (common, told): (DType, LaunchDetail),
        given: &[Named<'_>],
        result: &'static str,
    ) -> Option<Launched> {
        let text = text?;
        if text == "0" {
            return Some(Launched {
                kernel: Kernel::Fill(0.0),
                inputs: Vec::new(),
            });
        }
        if common.is_complex() {
            return None;
        }
        let computed = match common {
            // Chances and deviations are fractions whatever is drawn.
            _ if mentions(text, "whole_between") => "i64",
            DType::Float64 => "double",
            _ if mentions(text, "seed") => "float",
            DType::Float32 | DType::Float16 | DType::BFloat16 => "float",
            DType::Int64 | DType::Int32 | DType::UInt8 => "i64",
            DType::Bool => "bool",
            DType::Complex64 | DType::Complex128 => return None,
        };
        let is_fraction = computed == "float" || computed == "double";
        let read = given.iter().filter(|(name, _)| mentions(text, name));
        let read: Vec<Named<'_>> = read.copied().collect();
        if told == LaunchDetail::Outline {
            return Some(Launched {
                kernel: Kernel::MemoryOnly("an elementwise function"),
                inputs: read.iter().map(|(_, tensor)| same(tensor)).collect(),
            });
        }
        let mut casts: Vec<&str> = read.iter().map(|(name, _)| *name).collect();
        let mut numbers = Vec::new();
        let operands = self.row.operands.iter().copied();
        for name in operands.chain(self.row.attributes.iter().copied()) {
            if casts.contains(&name) || !mentions(text, name) {
                continue;
            }
            numbers.push((name, number_of(&self.constant(name, common)?, is_fraction)?));
            casts.push(name);
        }
        if mentions(text, "seed") {
            numbers.push(("seed", Number::Seed));
        }
        let typed = typed(text, &casts);
        let body = if text.contains(';') {
            format!("typedef {computed} C; {typed}")
        } else {
            format!("typedef {computed} C; {result} = {typed};")
        };
        let generated = Generated {
            name: self.base_name(),
            form: Form::Map(body.into()),
            inputs: read.iter().map(|(name, _)| *name).collect(),
            outputs: vec![result],
            numbers,
        };
        Some(Launched {
            kernel: generated.into(),
            inputs: read.iter().map(|(_, tensor)| same(tensor)).collect(),
        })
    }

    /// The number in the place of an operand or attribute, or what stands for a missing one.
    fn constant(&self, name: &str, common: DType) -> Option<Constant> {
        if let Some(position) = self.row.operands.iter().position(|known| *known == name) {
            return match &self.operands[position] {
                Operand::Number(value) => Some(value.clone()),
                Operand::Missing => super::row::default(self.base_name(), name),
                Operand::Tensor => None,
            };
        }
        let given = self.attribute(name).cloned();
        given.or_else(|| {
            // `nan_to_num` (`UnaryOpsKernel.cu`) takes the bounds of the type.
            let largest = match common {
                DType::Float16 => 65504.0,
                DType::BFloat16 => 3.389_531_389_251_535_5e38,
                DType::Float64 => f64::MAX,
                _ => f64::from(f32::MAX),
            };
            match name {
                "nan" => Some(Constant::Real(0.0)),
                "posinf" => Some(Constant::Real(largest)),
                "neginf" => Some(Constant::Real(-largest)),
                _ => None,
            }
        })
    }

    /// The tuned kernel of its forward launch, if it takes these tensors.
    fn tuned_forward(&self, tensors: &[&TensorBody], result: &TensorBody) -> Option<Kernel> {
        let is_plain = self.row.attributes.is_empty() || self.is("alpha", 1.0);
        let mut all = tensors.iter().copied().chain([result]);
        let counts = || tensors.iter().all(|tensor| tensor.dtype == DType::Int64);
        match self.row.tuned {
            // Counters, such as batch norms have.
            Tuned::Sum if tensors.len() == 1 && counts() && result.dtype == DType::Int64 => {}
            _ if !all.all(is_taken) => return None,
            _ => {}
        }
        let same_type = tensors.iter().all(|tensor| tensor.dtype == result.dtype);
        let both = self.operands == [Operand::Tensor, Operand::Tensor];
        match self.row.tuned {
            Tuned::Sum if both && is_plain => Some(Kernel::Binary(Binary::Add)),
            Tuned::Product if both => Some(Kernel::Binary(Binary::Mul)),
            _ if !same_type || self.operands[0] != Operand::Tensor => None,
            Tuned::Sum => self.second().filter(|_| is_plain).map(Kernel::Shift),
            Tuned::Product => self.second().map(Kernel::Scale),
            Tuned::Negation => Some(Kernel::Scale(-1.0)),
            Tuned::Power => self.second().map(Kernel::Power),
            Tuned::Square => Some(Kernel::Power(2.0)),
            tuned => tuned.unary(self).map(Kernel::Unary),
        }
    }

    /// The same of a gradient's.
    fn tuned_gradient(&self, incoming: &TensorBody, saved: &[Named<'_>]) -> Option<Kernel> {
        let mut all = saved.iter().map(|(_, tensor)| *tensor).chain([incoming]);
        if !all.all(is_taken) {
            return None;
        }
        match self.row.tuned {
            Tuned::Sum => None,
            Tuned::Product => match self.number(1) {
                Some(factor) => factor.real().map(Kernel::Scale),
                None => Some(Kernel::Binary(Binary::Mul)),
            },
            Tuned::Negation => Some(Kernel::Scale(-1.0)),
            Tuned::Power => self.second().map(Kernel::PowerGrad),
            Tuned::Square => Some(Kernel::PowerGrad(2.0)),
            tuned => tuned.unary(self).map(Kernel::UnaryGrad),
        }
    }
}

/// What tuned kernels compute with: fractions of at most 32 bits on the card.
fn is_taken(tensor: &TensorBody) -> bool {
    !tensor.is_of_host && (tensor.dtype.is_half() || tensor.dtype == DType::Float32)
}

/// The text of a formula.
fn of(formula: Formula, op: &Elementwise, common: DType) -> Option<&'static str> {
    match formula {
        Formula::None => None,
        Formula::Text(text) => Some(text),
        Formula::By(cases) => op.chosen(cases, Some(common)),
    }
}

/// The same elements.
fn same(tensor: &TensorBody) -> TensorBody {
    tensor.same()
}

/// As a constant of a kernel that computes with fractions, or with whole numbers.
pub(in crate::ops) fn number_of(constant: &Constant, is_fraction: bool) -> Option<Number> {
    Some(match constant {
        Constant::Whole(value) if is_fraction => Number::Real(*value as f64),
        Constant::Whole(value) => Number::Whole(*value),
        Constant::Real(value) => Number::Real(*value),
        Constant::Truth(value) => Number::Truth(*value),
        Constant::Length(length) => Number::Length(*length),
        Constant::Symbolic | Constant::Complex(..) | Constant::Text(_) => return None,
    })
}

/// The words and numbers of a text, and what is between them.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let length = if is_part(first) {
            rest.find(|c| !is_part(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}

/// Whether a formula uses a name.
fn mentions(text: &str, name: &str) -> bool {
    tokens(text).any(|token| token == name)
}

/// The text with these names, and fractions, as what is computed with.
fn typed(text: &str, names: &[&str]) -> String {
    let mut typed = String::with_capacity(2 * text.len());
    for token in tokens(text) {
        let is_fraction = token.starts_with(|c: char| c.is_ascii_digit()) && token.contains('.');
        if is_fraction || names.contains(&token) {
            typed.push_str("(C)");
        }
        typed.push_str(token);
    }
    typed
}
