//! What a row of the tables says of an elementwise operator.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::table::{Together, Written};
use super::{Elementwise, Operand};
use crate::ops::prelude::*;
use crate::program::Unary;

/// An elementwise operator: its overloads, its arguments, and what eager PyTorch does for it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// Where it is from, for who reads the table.
    #[serde(default, rename = "note")]
    _note: IgnoredAny,
    /// Its ATen operators: aliases, overloads, those in place.
    #[serde(borrow)]
    pub(super) aten: Vec<&'static str>,
    /// Arguments that broadcast. Each may be a number instead of a tensor, or missing.
    #[serde(borrow)]
    pub(super) operands: Vec<&'static str>,
    /// Its other arguments.
    #[serde(borrow, default)]
    pub(super) attributes: Vec<&'static str>,
    /// The type of its result.
    #[serde(default)]
    pub(super) result: ResultType,
    /// What happens to its operands first.
    #[serde(default)]
    pub(super) casts: Casts,
    /// What it takes besides its result.
    #[serde(default)]
    pub(super) forward: Forward,
    /// The derivative by each operand.
    #[serde(default, deserialize_with = "of_operands")]
    pub(super) gradients: [Gradient; 3],
    /// The derivatives by its first two operands in place, where those are other formulas.
    pub(super) in_place: Option<[Gradient; 2]>,
    /// One formula for the gradients of all operands, in the place of their own.
    pub(super) together: Option<SharedFormula>,
    /// What it computes, by the names of its operands and attributes.
    #[serde(default, rename = "computes")]
    pub(super) formula: Formula,
    /// What the gradient of each operand is, by these names, `grad` and `result`.
    #[serde(default, rename = "derives", deserialize_with = "of_operands")]
    pub(super) derivatives: [Formula; 3],
    /// The same in place, where [`Row::in_place`] reads something else.
    #[serde(default, rename = "derives_in_place")]
    pub(super) derivative_in_place: Formula,
    /// The tuned kernels that compute it faster than what is made from the formulas.
    #[serde(default)]
    pub(super) tuned: Tuned,
}

/// The type of a result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResultType {
    /// PyTorch's promotion of all operands.
    #[default]
    Promoted,
    /// The same, and PyTorch's default type where that is no fraction (`sqrt` of whole numbers).
    Real,
    /// Of a quotient: fractions, unless it is rounded.
    Quotient,
    /// Truth values.
    Truth,
    /// That of the first operand.
    First,
    /// The promotion of all operands but the first, a condition.
    Branches,
}

/// What happens to operands before anything else. Autocast leaves operators in place as they are
/// (`autocast_mode.h` lists no `_`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Casts {
    /// Nothing.
    #[default]
    None,
    /// Autocast makes them float32.
    High,
    /// Autocast makes them half.
    Low,
    /// Autocast makes them what the widest is.
    Widest,
    /// The operator makes them float64, with autocast and without.
    Double,
}

/// What an operator allocates going forward, where it is more than a result.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Forward {
    /// A result.
    #[default]
    Plain,
    /// This, where the first operand is of fractions.
    OfFractions(&'static [Step]),
    /// This.
    Steps(&'static [Step]),
    /// `where`: branches of another type are converted first, and numbers become tensors.
    Where,
    /// `prelu`: the weight is seen as one that broadcasts.
    Prelu,
}

/// Memory that a formula takes and gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Temporary {
    /// As large as the gradient (going forward: as the result), of its type.
    Like,
    /// A truth value for each element of the gradient.
    Mask,
    /// One number of the gradient's type.
    Number,
    /// As large as this operand, of its type.
    Of(usize),
    /// A truth value for each element of this operand.
    MaskOf(usize),
    /// As large as this operand, of float32; nothing where it is of that already.
    Float(usize),
    /// A number of bytes.
    Bytes(u64),
}

/// What a derivative formula reads besides the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// The operand at this position.
    Operand(usize),
    /// The result.
    Result,
}

/// One event of a formula. Allocations are numbered from zero, results among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Takes memory.
    Make(Temporary),
    /// Makes the gradient of the operand at this position; going forward, the result.
    Give(usize),
    /// Gives back what was taken as this number.
    Free(usize),
}

/// The gradient of one operand.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(try_from = "Written")]
pub(super) enum Gradient {
    /// There is none.
    #[default]
    None,
    /// The incoming one, without a copy.
    Pass,
    /// The incoming one, converted to the operand's type by the formula itself (`CopyBackwards` in `tensor.cpp`).
    Converted,
    /// Zeros for each element of the operand; this is saved all the same.
    Zeros(&'static [Read]),
    /// A new tensor: temporaries before it and after it, which all go once it is made, the last first.
    Made {
        reads: &'static [Read],
        before: &'static [Temporary],
        after: &'static [Temporary],
        order: Order,
    },
    /// A formula of several statements.
    Steps {
        reads: &'static [Read],
        steps: &'static [Step],
    },
    /// One of these, by the call.
    By(Cases<Gradient>),
}

/// Several things with what has to hold for each; the first for which it does is meant.
pub(super) type Cases<T> = &'static [(&'static [Condition], T)];

/// What has to hold of a call, or must not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Condition {
    /// The argument that is looked at.
    pub(super) name: &'static str,
    pub(super) test: Test,
    pub(super) is_so: bool,
}

/// What may hold.
#[derive(Debug, Clone, Copy)]
pub(super) enum Test {
    /// It is given.
    Given,
    /// It is a number in the place of a tensor.
    Number,
    /// It is this text.
    Text(&'static str),
    /// It is this number.
    Equals(f64),
    /// It is above zero.
    Above,
    /// It is below zero.
    Below,
    /// Operands promote to fractions.
    Real,
    /// They promote to fractions of 16 bits.
    Half,
    /// They promote to the type of this name.
    Type(&'static str),
}

impl Elementwise {
    /// Which of several things is meant; operands promote to `dtype`, where that is known.
    pub(super) fn chosen<T: Copy>(&self, cases: Cases<T>, dtype: Option<DType>) -> Option<T> {
        let holds = |condition: &Condition| self.is_so(*condition, dtype) == condition.is_so;
        let mut cases = cases.iter();
        let case = cases.find(|(conditions, _)| conditions.iter().all(holds));
        case.map(|(_, it)| *it)
    }

    fn is_so(&self, Condition { name, test, .. }: Condition, dtype: Option<DType>) -> bool {
        let position = || self.row.operands.iter().position(|known| *known == name);
        let number = || position().and_then(|position| self.number(position));
        let value = || self.attribute(name).or_else(number);
        let real = || value().and_then(Constant::real);
        match test {
            Test::Given => position().map_or(self.attribute(name).is_some(), |position| {
                self.operands[position] != Operand::Missing
            }),
            Test::Number => number().is_some(),
            Test::Text(text) => matches!(value(), Some(Constant::Text(own)) if own == text),
            Test::Equals(number) => {
                real().is_some_and(|own| (own - number).abs() < f64::MIN_POSITIVE)
            }
            Test::Above => real().is_some_and(|number| number > 0.0),
            Test::Below => real().is_some_and(|number| number < 0.0),
            Test::Real => dtype.is_some_and(DType::is_float),
            Test::Half => dtype.is_some_and(DType::is_half),
            Test::Type(name) => dtype.is_some_and(|dtype| dtype.to_string() == name),
        }
    }
}

/// One formula for several gradients.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct SharedFormula {
    pub(super) reads: &'static [Read],
    /// Its statements, by which gradients are wanted.
    pub(super) steps: Together,
}

/// How a gradient is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Like the incoming one, or what is read where that is not dense.
    Gradient,
    /// Like what is read, or the incoming one where that is not dense.
    Read,
    /// Row by row.
    Contiguous,
}

/// What is computed: an expression, or statements that assign to `result` (`gradient` in a derivative). Operands,
/// numbers and fractions such as `0.5` are of the type `C` to which operands promote.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(try_from = "Written")]
pub(super) enum Formula {
    /// Nothing.
    #[default]
    None,
    /// This.
    Text(&'static str),
    /// One of these, by the call and the type to which its operands promote; nothing where no kernel can compute it.
    By(Cases<&'static str>),
}

/// Tuned kernels. They take fractions of at most 32 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tuned {
    /// None.
    #[default]
    None,
    /// That of sums.
    Sum,
    /// That of products.
    Product,
    /// That of negations.
    Negation,
    /// That of powers, of a number's exponent.
    Power,
    /// That of squares.
    Square,
    /// That of `gelu`, exact or not.
    Gelu,
    /// That of `hardtanh` where it is `relu6`.
    Hardtanh,
    /// That of a function of one tensor.
    #[serde(untagged)]
    Unary(Unary),
}

impl Tuned {
    /// The function of one tensor that a call is.
    pub(super) fn unary(self, op: &Elementwise) -> Option<Unary> {
        match self {
            Tuned::Gelu => match op.attribute("approximate") {
                Some(Constant::Text(text)) if text == "none" => Some(Unary::Gelu),
                Some(Constant::Text(text)) if text == "tanh" => Some(Unary::GeluTanh),
                _ => None,
            },
            Tuned::Hardtanh => {
                (op.is("min_val", 0.0) && op.is("max_val", 6.0)).then_some(Unary::Relu6)
            }
            Tuned::Unary(unary) => Some(unary),
            _ => None,
        }
    }
}

/// What rows have of each operand, the first first.
fn of_operands<'de, T, D>(deserializer: D) -> Result<[T; 3], D::Error>
where
    T: Copy + Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    let given = Vec::<T>::deserialize(deserializer)?;
    let at = |position: usize| given.get(position).copied().unwrap_or_default();
    Ok([at(0), at(1), at(2)])
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.aten[0])
    }
}

/// The default of an attribute or operand that PyTorch's schemas leave out: the same wherever it occurs.
pub(super) fn default(operator: &str, attribute: &str) -> Option<Constant> {
    Some(match (operator, attribute) {
        (_, "alpha" | "scale" | "input_scale" | "value" | "beta" | "max_val") => Constant::Whole(1),
        ("leaky_relu", "negative_slope") => Constant::Real(0.01),
        ("hardtanh", "min_val") => Constant::Whole(-1),
        ("softplus", "threshold") => Constant::Whole(20),
        ("hardshrink" | "softshrink", "lambd") | ("bernoulli", "p") => Constant::Real(0.5),
        ("gelu", "approximate") => Constant::Text("none".into()),
        ("uniform", "from") | ("normal_functional" | "normal", "mean") | ("cauchy", "median") => {
            Constant::Real(0.0)
        }
        ("uniform", "to")
        | ("normal_functional" | "normal", "std")
        | ("log_normal", "mean")
        | ("cauchy", "sigma")
        | ("exponential", "lambd") => Constant::Real(1.0),
        ("log_normal", "std") => Constant::Real(2.0),
        ("round", "decimals") => Constant::Whole(0),
        _ => return None,
    })
}
