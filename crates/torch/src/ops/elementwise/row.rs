//! What a row of the tables says of an elementwise operator.

use super::Elementwise;
use crate::ops::prelude::*;
use crate::program::Unary;

/// An elementwise operator: its overloads, its arguments, and what eager PyTorch does for it.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// Its ATen operators: aliases, overloads, those in place.
    pub(super) aten: &'static [&'static str],
    /// Arguments that broadcast. Each may be a number instead of a tensor, or missing.
    pub(super) operands: &'static [&'static str],
    /// Its other arguments.
    pub(super) attributes: &'static [&'static str],
    /// The type of its result.
    pub(super) result: ResultType,
    /// What happens to its operands first.
    pub(super) casts: Casts,
    /// What it takes besides its result.
    pub(super) forward: Forward,
    /// The derivative by each operand.
    pub(super) gradients: [Gradient; 3],
    /// The derivatives by its first two operands in place, where those are other formulas.
    pub(super) in_place: Option<[Gradient; 2]>,
    /// One formula for the gradients of all operands, in the place of their own.
    pub(super) together: Option<SharedFormula>,
    /// What it computes, by the names of its operands and attributes.
    pub(super) formula: Formula,
    /// What the gradient of each operand is, by these names, `grad` and `result`.
    pub(super) derivatives: [Formula; 3],
    /// The same in place, where [`Row::in_place`] reads something else.
    pub(super) derivative_in_place: Formula,
    /// The tuned kernels that compute it faster than what is made from the formulas.
    pub(super) tuned: Tuned,
}

/// The type of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultType {
    /// PyTorch's promotion of all operands.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Casts {
    /// Nothing.
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
#[derive(Debug, Clone, Copy)]
pub(super) enum Forward {
    /// A result.
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

pub(super) const FIRST: Read = Read::Operand(0);
pub(super) const SECOND: Read = Read::Operand(1);
pub(super) const THIRD: Read = Read::Operand(2);
pub(super) const BOTH: &[Read] = &[FIRST, SECOND];

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
#[derive(Clone, Copy)]
pub(super) enum Gradient {
    /// There is none.
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
    /// One of these, by attributes or by which operands are numbers.
    By(fn(&Elementwise) -> Gradient),
}

/// One formula for several gradients.
#[derive(Clone, Copy)]
pub(super) struct SharedFormula {
    pub(super) reads: &'static [Read],
    /// Its statements, by which gradients are wanted.
    pub(super) steps: fn(&Elementwise, [bool; 3]) -> Vec<Step>,
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
#[derive(Clone, Copy)]
pub(super) enum Formula {
    /// Nothing.
    None,
    /// This.
    Text(&'static str),
    /// One of these, by the call and the type to which its operands promote; nothing where no kernel can compute it.
    By(fn(&Elementwise, DType) -> Option<&'static str>),
}

/// Tuned kernels. They take fractions of at most 32 bits.
#[derive(Clone, Copy)]
pub(super) enum Tuned {
    /// None.
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
    /// One of a function of one tensor; which one may depend on attributes.
    Unary(fn(&Elementwise) -> Option<Unary>),
}

impl Row {
    const fn of(aten: &'static [&'static str], operands: &'static [&'static str]) -> Row {
        Row {
            aten,
            operands,
            attributes: &[],
            result: ResultType::Promoted,
            casts: Casts::None,
            forward: Forward::Plain,
            gradients: [Gradient::None; 3],
            in_place: None,
            together: None,
            formula: Formula::None,
            derivatives: [Formula::None; 3],
            derivative_in_place: Formula::None,
            tuned: Tuned::None,
        }
    }

    /// A function of one tensor.
    pub(super) const fn unary(aten: &'static [&'static str]) -> Row {
        Row::of(aten, &["self"])
    }

    /// A function of two tensors.
    pub(super) const fn binary(aten: &'static [&'static str]) -> Row {
        Row::of(aten, &["self", "other"])
    }

    /// A function of other arguments.
    pub(super) const fn with_operands(
        aten: &'static [&'static str],
        operands: &'static [&'static str],
    ) -> Row {
        Row::of(aten, operands)
    }

    pub(super) const fn attributes(mut self, attributes: &'static [&'static str]) -> Row {
        self.attributes = attributes;
        self
    }

    pub(super) const fn result(mut self, result: ResultType) -> Row {
        self.result = result;
        self
    }

    /// Its result is of fractions.
    pub(super) const fn real(self) -> Row {
        self.result(ResultType::Real)
    }

    /// Its result is of truth values.
    pub(super) const fn truth(self) -> Row {
        self.result(ResultType::Truth)
    }

    pub(super) const fn casts(mut self, casts: Casts) -> Row {
        self.casts = casts;
        self
    }

    /// Autocast makes its operands float32.
    pub(super) const fn high(self) -> Row {
        self.casts(Casts::High)
    }

    pub(super) const fn forward(mut self, forward: Forward) -> Row {
        self.forward = forward;
        self
    }

    /// The derivatives by its operands.
    pub(super) const fn gradients<const N: usize>(mut self, gradients: [Gradient; N]) -> Row {
        let mut position = 0;
        while position < N {
            self.gradients[position] = gradients[position];
            position += 1;
        }
        self
    }

    /// Its derivative is a formula of the operand, with these temporaries.
    pub(super) const fn saves_operand(self, before: &'static [Temporary]) -> Row {
        self.gradients([new_tensor(&[FIRST], before)])
    }

    /// Its derivative is a formula of the result, with these temporaries.
    pub(super) const fn saves_result(self, before: &'static [Temporary]) -> Row {
        self.gradients([new_tensor(&[Read::Result], before)])
    }

    /// Its derivative is a new tensor that needs only the gradient: a multiple of it, or zeros.
    pub(super) const fn saves_nothing(self) -> Row {
        self.gradients([new_tensor(&[], &[])])
    }

    pub(super) const fn in_place(mut self, first: Gradient, second: Gradient) -> Row {
        self.in_place = Some([first, second]);
        self
    }

    pub(super) const fn together(
        mut self,
        reads: &'static [Read],
        steps: fn(&Elementwise, [bool; 3]) -> Vec<Step>,
    ) -> Row {
        self.together = Some(SharedFormula { reads, steps });
        self
    }

    /// What it computes.
    pub(super) const fn computes(mut self, text: &'static str) -> Row {
        self.formula = Formula::Text(text);
        self
    }

    /// What it computes, where that depends on the call.
    pub(super) const fn computes_by(
        mut self,
        rule: fn(&Elementwise, DType) -> Option<&'static str>,
    ) -> Row {
        self.formula = Formula::By(rule);
        self
    }

    /// The gradients of its operands, by position.
    pub(super) const fn derives<const N: usize>(mut self, texts: [&'static str; N]) -> Row {
        let mut position = 0;
        while position < N {
            self.derivatives[position] = Formula::Text(texts[position]);
            position += 1;
        }
        self
    }

    /// The same, where they depend on the call.
    pub(super) const fn derives_by<const N: usize>(
        mut self,
        rules: [fn(&Elementwise, DType) -> Option<&'static str>; N],
    ) -> Row {
        let mut position = 0;
        while position < N {
            self.derivatives[position] = Formula::By(rules[position]);
            position += 1;
        }
        self
    }

    /// The gradient of its first operand in place.
    pub(super) const fn derives_in_place(mut self, text: &'static str) -> Row {
        self.derivative_in_place = Formula::Text(text);
        self
    }

    pub(super) const fn tuned(mut self, tuned: Tuned) -> Row {
        self.tuned = tuned;
        self
    }
}

/// A new tensor, after these temporaries.
pub(super) const fn new_tensor(reads: &'static [Read], before: &'static [Temporary]) -> Gradient {
    Gradient::Made {
        reads,
        before,
        after: &[],
        order: Order::Gradient,
    }
}

/// A new tensor without temporaries, laid out like this.
pub(super) const fn ordered(reads: &'static [Read], order: Order) -> Gradient {
    Gradient::Made {
        reads,
        before: &[],
        after: &[],
        order,
    }
}

/// A formula of several statements.
pub(super) const fn steps(reads: &'static [Read], steps: &'static [Step]) -> Gradient {
    Gradient::Steps { reads, steps }
}

/// The gradient of an operand times a number: the incoming one where the number is one.
pub(super) fn times_alpha(op: &Elementwise) -> Gradient {
    if op.is("alpha", 1.0) {
        Gradient::Pass
    } else {
        new_tensor(&[], &[])
    }
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
