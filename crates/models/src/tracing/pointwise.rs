//! Elementwise functions, as methods.

use super::argument::{Argument, Size};
use super::operands::Tensors;
use super::tracer::{AsksFor, Tensor};
use crate::shape::DType;

/// A number in Python's code: whether it is written as a float decides on dtypes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar {
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl From<i32> for Scalar {
    fn from(number: i32) -> Scalar {
        Scalar::Int(number.into())
    }
}

impl From<i64> for Scalar {
    fn from(number: i64) -> Scalar {
        Scalar::Int(number)
    }
}

impl From<f64> for Scalar {
    fn from(number: f64) -> Scalar {
        Scalar::Float(number)
    }
}

impl From<bool> for Scalar {
    fn from(truth: bool) -> Scalar {
        Scalar::Bool(truth)
    }
}

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

    /// `x == size`
    fn equal_to_size(self, size: impl Into<Size>) -> Tensor {
        self.apply("aten.eq.Scalar", &[("other", Argument::Size(size.into()))])
    }

    /// `x ** exponent`
    fn pow(self, exponent: impl Into<Scalar>) -> Tensor {
        self.apply(
            "aten.pow.Tensor_Scalar",
            &[("exponent", exponent.into().into())],
        )
    }

    /// `number - x`
    fn subtracted_from(self, number: impl Into<Scalar>) -> Tensor {
        self.apply("aten.rsub.Scalar", &[("other", number.into().into())])
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

    /// `x.masked_fill(mask, value)`
    fn masked_fill(self, mask: impl Tensors, value: impl Into<Scalar>) -> Tensor {
        let value = [("value", value.into().into())];
        self.apply_with("aten.masked_fill.Scalar", "mask", mask, &value)
    }

    /// `a & b` of truth values
    fn and(self, other: impl Tensors) -> Tensor {
        self.apply_with("aten.__and__.Tensor", "other", other, &[])
    }

    /// `a | b` of truth values
    fn or(self, other: impl Tensors) -> Tensor {
        self.apply_with("aten.__or__.Tensor", "other", other, &[])
    }

    /// `torch.where(mask, x, y)` called on `mask`
    fn choose(self, x: impl Tensors, y: impl Tensors) -> Tensor {
        let made = self.tensor().tracer().call(
            "aten.where.self",
            &[
                ("condition", Argument::Tensor(self.tensor())),
                ("self", Argument::Tensor(x.tensor())),
                ("other", Argument::Tensor(y.tensor())),
            ],
        );
        made.and_drop((self, x, y))
    }

    /// `torch.where(mask, x, number)` called on `mask`
    fn choose_or_number(self, x: impl Tensors, number: impl Into<Scalar>) -> Tensor {
        let made = self.tensor().tracer().call(
            "aten.where.ScalarOther",
            &[
                ("condition", Argument::Tensor(self.tensor())),
                ("self", Argument::Tensor(x.tensor())),
                ("other", number.into().into()),
            ],
        );
        made.and_drop((x, self))
    }

    /// `torch.where(mask, x, y)` of two numbers called on `mask`
    fn choose_numbers(self, x: impl Into<Scalar>, y: impl Into<Scalar>) -> Tensor {
        let made = self.tensor().tracer().call(
            "aten.where.Scalar",
            &[
                ("condition", Argument::Tensor(self.tensor())),
                ("self", x.into().into()),
                ("other", y.into().into()),
            ],
        );
        made.and_drop(self)
    }

    /// `x.clamp(min, max)` between tensors
    fn clamp_between(self, min: impl Tensors, max: impl Tensors) -> Tensor {
        let max_argument = [("max", Argument::Tensor(max.tensor()))];
        let made = self.apply_with("aten.clamp.Tensor", "min", min, &max_argument);
        made.and_drop(max)
    }

    /// `torch.min(a, b)`
    fn minimum(self, other: impl Tensors) -> Tensor {
        self.apply_with("aten.min.other", "other", other, &[])
    }

    /// `torch.full_like(x, value)`
    fn full_like(self, value: impl Into<Scalar>) -> Tensor {
        let value = [("fill_value", value.into().into())];
        self.apply("aten.full_like.default", &value)
    }

    /// `x.new_zeros(sizes)`
    fn new_zeros(self, sizes: &[Size]) -> Tensor {
        let sizes = [("size", Argument::Sizes(sizes.to_vec()))];
        self.apply("aten.new_zeros.default", &sizes)
    }

    /// `x.copy_(other)`, which is also `y[...] = other`
    fn copy_from(&self, other: impl Tensors) {
        let arguments = [("src", Argument::Tensor(other.tensor()))];
        self.change_in_place("aten.copy_.default", &arguments);
        drop(other);
    }

    /// `x.to(dtype)` of a dtype that the code names, also `x.float()` and the like
    fn to(self, dtype: DType) -> Tensor {
        self.apply("aten.to.dtype", &[("dtype", Argument::DType(dtype))])
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

    /// `torch.pow(x, exponent)`
    fn pow_tensor(self, exponent: impl Tensors) -> Tensor {
        self.apply_with("aten.pow.Tensor_Tensor", "exponent", exponent, &[])
    }

    /// `x.type_as(y)`
    fn type_as(self, other: impl Tensors) -> Tensor {
        self.apply_with("aten.type_as.default", "other", other, &[])
    }

    /// `x // number`
    fn floor_divide(self, number: u64) -> Tensor {
        let by = [("other", Argument::Size(number.into()))];
        self.apply("aten.floor_divide.default", &by)
    }

    /// `torch.ones_like(x)`
    fn ones_like(self) -> Tensor {
        self.apply("aten.ones_like.default", &[])
    }

    /// `torch.polar(abs, angle)` called on `abs`
    fn polar(self, angle: impl Tensors) -> Tensor {
        let made = self.tensor().tracer().call(
            "aten.polar.default",
            &[
                ("abs", Argument::Tensor(self.tensor())),
                ("angle", Argument::Tensor(angle.tensor())),
            ],
        );
        made.and_drop((self, angle))
    }

    /// `torch.empty_like(x)`
    fn empty_like(self) -> Tensor {
        self.apply("aten.empty_like.default", &[])
    }

    /// `x.new_empty(sizes)`
    fn new_empty(self, sizes: &[Size]) -> Tensor {
        let how = [("size", Argument::Sizes(sizes.to_vec()))];
        self.apply("aten.new_empty.default", &how)
    }

    /// `x.new_ones(sizes, dtype)`
    fn new_ones(self, sizes: &[Size], dtype: DType) -> Tensor {
        let how = [
            ("size", Argument::Sizes(sizes.to_vec())),
            ("dtype", Argument::DType(dtype)),
        ];
        self.apply("aten.new_ones.default", &how)
    }

    /// `x.clone()`
    fn copied(self) -> Tensor {
        self.apply("aten.clone.default", &[])
    }

    /// `x += y`, which changes `x`
    fn add_in_place(&self, other: impl Tensors) {
        let changed = self.tensor().tracer().call(
            "aten.add_.Tensor",
            &[
                ("self", Argument::Tensor(self.tensor())),
                ("other", Argument::Tensor(other.tensor())),
            ],
        );
        drop(other);
        self.tensor().becomes(&changed);
    }

    /// `x /= y`, which changes `x`
    fn divide_in_place(&self, other: impl Tensors) {
        let changed = self.tensor().tracer().call(
            "aten.div_.Tensor",
            &[
                ("self", Argument::Tensor(self.tensor())),
                ("other", Argument::Tensor(other.tensor())),
            ],
        );
        drop(other);
        self.tensor().becomes(&changed);
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
