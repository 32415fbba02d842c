//! The elementwise operators that other families are made of.

use super::Elementwise;
use crate::ops::prelude::*;

impl Eager {
    /// `a + b`.
    pub fn add(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        self.sum("aten.add.Tensor", a, b)
    }

    /// `a += b`.
    pub fn add_in_place(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        self.sum("aten.add_.Tensor", a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, a: &Tensor, b: &Tensor) -> Output {
        self.apply("aten.mul.Tensor", &[a, b])
    }

    /// `a *= b`.
    pub fn mul_in_place(&mut self, a: &Tensor, b: &Tensor) -> Output {
        self.apply("aten.mul_.Tensor", &[a, b])
    }

    /// `a + scalar`.
    pub fn add_scalar(&mut self, a: &Tensor, scalar: f64, placement: Placement) -> Tensor {
        let target = match placement {
            Placement::New => "aten.add.Tensor",
            Placement::InPlace => "aten.add_.Tensor",
        };
        self.without_saving(target, a, scalar)
    }

    /// `a * scalar`.
    pub fn mul_scalar(&mut self, a: &Tensor, scalar: f64) -> Tensor {
        self.without_saving("aten.mul.Tensor", a, scalar)
    }

    /// `a ** exponent`.
    pub fn pow_scalar(&mut self, a: &Tensor, exponent: f64) -> Output {
        self.with_number("aten.pow.Tensor_Scalar", a, "exponent", exponent)
    }

    /// An operator on one tensor and a number.
    pub fn with_number(&mut self, target: &str, a: &Tensor, argument: &str, number: f64) -> Output {
        let op = Elementwise::of(target).with(argument, Constant::Real(number));
        self.elementwise(&op, &[Tensor::clone(a)])
    }

    fn sum(&mut self, target: &str, a: &Tensor, b: &Tensor) -> Tensor {
        let sum = self.apply(target, &[a, b]);
        sum.expect("nothing is saved, so nothing stops")
    }

    fn without_saving(&mut self, target: &str, a: &Tensor, scalar: f64) -> Tensor {
        let result = self.with_number(target, a, "other", scalar);
        result.expect("nothing is saved, so nothing stops")
    }
}
