//! Elementwise functions, as methods.

use super::argument::{Argument, Size};
use super::operands::{Tensors, methods};
use super::tracer::{AsksFor, Tensor};
use crate::shape::DType;

/// A number in Python's code: whether it is written as a float decides on dtypes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar {
    Int(i64),
    Float(f64),
    Bool(bool),
}

/// Has each of these types be a kind of number.
macro_rules! scalars_of {
    ($($type:ty: $kind:ident),+) => {
        $(
            impl From<$type> for Scalar {
                fn from(number: $type) -> Scalar {
                    Scalar::$kind(number.into())
                }
            }
        )+
    };
}

scalars_of!(i32: Int, i64: Int, f64: Float, bool: Bool);

impl From<Scalar> for Argument<'_> {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Int(number) => Argument::Int(number),
            Scalar::Float(number) => Argument::Float(number),
            Scalar::Bool(truth) => Argument::Bool(truth),
        }
    }
}

/// Declares methods for functions of one tensor.
macro_rules! unary {
    ($($name:ident: $target:literal),+ $(,)?) => {
        $(
            #[doc = concat!("`", $target, "`")]
            fn $name(self) -> Tensor {
                self.apply($target, &[])
            }
        )+
    };
}

/// Declares methods for functions of two tensors, and of a tensor and a number.
macro_rules! binary {
    ($($name:ident, $with_number:ident: $target:literal, $number_target:literal),+ $(,)?) => {
        $(
            #[doc = concat!("`", $target, "`")]
            fn $name(self, other: impl Tensors) -> Tensor {
                self.apply_with($target, "other", other, &[])
            }

            #[doc = concat!("`", $number_target, "` with a number")]
            fn $with_number(self, number: impl Into<Scalar>) -> Tensor {
                self.apply($number_target, &[("other", number.into().into())])
            }
        )+
    };
}

/// Declares methods for functions of a tensor and a number alone.
macro_rules! compared {
    ($($name:ident: $target:literal),+ $(,)?) => {
        $(
            #[doc = concat!("`", $target, "`")]
            fn $name(self, number: impl Into<Scalar>) -> Tensor {
                self.apply($target, &[("other", number.into().into())])
            }
        )+
    };
}

/// Elementwise functions.
pub(crate) trait Pointwise: Tensors {
    unary! {
        neg: "aten.neg.default",
        exp: "aten.exp.default",
        log: "aten.log.default",
        sqrt: "aten.sqrt.default",
        rsqrt: "aten.rsqrt.default",
        cos: "aten.cos.default",
        sin: "aten.sin.default",
        tanh: "aten.tanh.default",
        abs: "aten.abs.default",
        sign: "aten.sign.default",
        ceil: "aten.ceil.default",
        zeros_like: "aten.zeros_like.default",
        lift_fresh_copy: "aten.lift_fresh_copy.default",
        sigmoid: "aten.sigmoid.default",
        relu: "aten.relu.default",
        silu: "aten.silu.default",
        hardsigmoid: "aten.hardsigmoid.default",
        bitwise_not: "aten.bitwise_not.default",
        floor: "aten.floor.default",
        isfinite: "aten.isfinite.default",
        isinf: "aten.isinf.default",
    }

    binary! {
        add, add_number: "aten.add.Tensor", "aten.add.Tensor",
        sub, sub_number: "aten.sub.Tensor", "aten.sub.Tensor",
        mul, mul_number: "aten.mul.Tensor", "aten.mul.Tensor",
        div, div_number: "aten.div.Tensor", "aten.div.Tensor",
        at_most, at_most_number: "aten.le.Tensor", "aten.le.Scalar",
        greater, greater_than_number: "aten.gt.Tensor", "aten.gt.Scalar",
        at_least, at_least_number: "aten.ge.Tensor", "aten.ge.Scalar",
        less, less_than_number: "aten.lt.Tensor", "aten.lt.Scalar",
    }

    compared! {
        equal_to_number: "aten.eq.Scalar",
        not_equal_to_number: "aten.ne.Scalar",
    }

    methods! {
        /// `x == size`
        equal_to_size(size: impl Into<Size>): "aten.eq.Scalar" { other: Argument::Size(size.into()) }
        /// `x ** exponent`
        pow(exponent: impl Into<Scalar>): "aten.pow.Tensor_Scalar" { exponent: Into::<Scalar>::into(exponent) }
        /// `number - x`
        subtracted_from(number: impl Into<Scalar>): "aten.rsub.Scalar" { other: Into::<Scalar>::into(number) }
        /// `torch.full_like(x, value)`
        full_like(value: impl Into<Scalar>): "aten.full_like.default" { fill_value: Into::<Scalar>::into(value) }
        /// `x.new_zeros(sizes)`
        new_zeros(sizes: &[Size]): "aten.new_zeros.default" { size: sizes }
        /// `x.to(dtype)` of a dtype that the code names, also `x.float()` and the like
        to(dtype: DType): "aten.to.dtype" { dtype: dtype }
        /// `x // number`
        floor_divide(number: u64): "aten.floor_divide.default" { other: number }
        /// `torch.ones_like(x)`
        ones_like(): "aten.ones_like.default" {}
        /// `torch.empty_like(x)`
        empty_like(): "aten.empty_like.default" {}
        /// `x.new_empty(sizes)`
        new_empty(sizes: &[Size]): "aten.new_empty.default" { size: sizes }
        /// `x.new_ones(sizes, dtype)`
        new_ones(sizes: &[Size], dtype: DType): "aten.new_ones.default" { size: sizes, dtype: dtype }
        /// `x.clone()`
        copied(): "aten.clone.default" {}
    }

    methods! {
        with mask:
        /// `x.masked_fill(mask, value)`
        masked_fill(value: impl Into<Scalar>): "aten.masked_fill.Scalar" { value: Into::<Scalar>::into(value) }
        with other:
        /// `a & b` of truth values
        and(): "aten.__and__.Tensor" {}
        with other:
        /// `a | b` of truth values
        or(): "aten.__or__.Tensor" {}
        with other:
        /// `torch.min(a, b)`
        minimum(): "aten.min.other" {}
        with exponent:
        /// `torch.pow(x, exponent)`
        pow_tensor(): "aten.pow.Tensor_Tensor" {}
        with other:
        /// `x.type_as(y)`
        type_as(): "aten.type_as.default" {}
    }

    /// `gelu(x, approximate)`: `"none"` or `"tanh"`.
    fn gelu(self, approximate: &'static str) -> Tensor {
        let approximate = match approximate {
            "none" => Vec::new(),
            other => vec![("approximate", Argument::Text(other))],
        };
        self.apply("aten.gelu.default", &approximate)
    }

    /// `x.clamp(min, max)`; a bound may be missing.
    fn clamp(self, min: Option<Scalar>, max: Option<Scalar>) -> Tensor {
        let bound = |bound: Option<Scalar>| bound.map_or(Argument::None, Argument::from);
        self.apply(
            "aten.clamp.default",
            &[("min", bound(min)), ("max", bound(max))],
        )
    }

    /// `torch.where(mask, x, y)` called on `mask`
    fn choose(self, x: impl Tensors, y: impl Tensors) -> Tensor {
        let made = chosen(&self, "aten.where.self", x.tensor(), y.tensor());
        made.and_drop((self, x, y))
    }

    /// `torch.where(mask, x, number)` called on `mask`
    fn choose_or_number(self, x: impl Tensors, number: impl Into<Scalar>) -> Tensor {
        let made = chosen(&self, "aten.where.ScalarOther", x.tensor(), number.into());
        made.and_drop((x, self))
    }

    /// `torch.where(mask, x, y)` of two numbers called on `mask`
    fn choose_numbers(self, x: impl Into<Scalar>, y: impl Into<Scalar>) -> Tensor {
        let made = chosen(&self, "aten.where.Scalar", x.into(), y.into());
        made.and_drop(self)
    }

    /// `torch.polar(abs, angle)` called on `abs`
    fn polar(self, angle: impl Tensors) -> Tensor {
        let sides = [
            ("abs", self.tensor().into()),
            ("angle", angle.tensor().into()),
        ];
        let made = self.tensor().tracer().call("aten.polar.default", &sides);
        made.and_drop((self, angle))
    }

    /// `x += y`, which changes `x`
    fn add_in_place(&self, other: impl Tensors) {
        self.change_in_place("aten.add_.Tensor", &[("other", other.tensor().into())]);
    }

    /// `x /= y`, which changes `x`
    fn divide_in_place(&self, other: impl Tensors) {
        self.change_in_place("aten.div_.Tensor", &[("other", other.tensor().into())]);
    }

    /// `x.clamp(min, max)` between tensors
    fn clamp_between(self, min: impl Tensors, max: impl Tensors) -> Tensor {
        let max_argument = [("max", Argument::Tensor(max.tensor()))];
        let made = self.apply_with("aten.clamp.Tensor", "min", min, &max_argument);
        made.and_drop(max)
    }

    /// `x.copy_(other)`, which is also `y[...] = other`
    fn copy_from(&self, other: impl Tensors) {
        self.change_in_place("aten.copy_.default", &[("src", other.tensor().into())]);
    }

    /// `x.to(y.dtype)`
    fn to_dtype_of(self, asked: AsksFor) -> Tensor {
        self.to(asked.dtype).asked_for(asked)
    }

    /// `x.to(device)`: the same tensor by another name
    fn to_device(self) -> Tensor {
        let dtype = self.tensor().dtype().dtype;
        self.apply("aten.to.dtype_layout", &[("dtype", Argument::DType(dtype))])
    }

    /// A function in place of one tensor, such as `aten.relu_.default`
    fn change_in_place(&self, target: &'static str, arguments: &[(&str, Argument<'_>)]) {
        let mut all = vec![("self", Argument::Tensor(self.tensor()))];
        all.extend_from_slice(arguments);
        let changed = self.tensor().tracer().call(target, &all);
        self.tensor().becomes(&changed);
    }
}

impl<T: Tensors> Pointwise for T {}

/// `torch.where`, of whatever its target takes
fn chosen<'a>(
    mask: &'a impl Tensors,
    target: &'static str,
    x: impl Into<Argument<'a>>,
    y: impl Into<Argument<'a>>,
) -> Tensor {
    let condition = mask.tensor();
    let how = [
        ("condition", condition.into()),
        ("self", x.into()),
        ("other", y.into()),
    ];
    condition.tracer().call(target, &how)
}
