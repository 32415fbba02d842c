//! The statements of composed losses. Temporaries of a statement go at its end, the last first; locals at the end of
//! the function. The right operand of an operator is made before the left one.

use crate::ops::prelude::*;
use crate::ops::{Elementwise, Reduction, Summary};

impl Eager {
    /// A composed loss, of operands that autocast makes float32.
    pub(super) fn composed_loss(
        &mut self,
        operands: &[Tensor],
        statements: impl FnOnce(&mut Eager, &[Tensor]) -> Output,
    ) -> Outputs {
        // `poisson_nll_loss` is composed under autocast where the others are composed of what it made.
        let operands = self.all_high(operands);
        let loss = self.without_autocast(|eager| statements(eager, &operands))?;
        Ok(vec![loss])
    }

    /// `kl_div(input, target)`.
    pub(super) fn kl_div(&mut self, x: &[Tensor], log_target: bool, summary: Summary) -> Output {
        let (input, target) = (&x[0], &x[1]);
        let output = if log_target {
            // `at::exp(target) * (target - input)`
            let difference = self.apply("aten.sub.Tensor", &[target, input])?;
            let power = self.apply("aten.exp.default", &[target])?;
            self.mul(&power, &difference)?
        } else {
            // `at::xlogy(target, target) - target * input`
            let product = self.mul(target, input)?;
            let entropy = self.apply("aten.xlogy.Tensor", &[target, target])?;
            self.apply("aten.sub.Tensor", &[&entropy, &product])?
        };
        Ok(self.summarized(&output, summary))
    }

    /// `poisson_nll_loss(input, target)`; `full` adds Stirling's approximation.
    pub(super) fn poisson_nll(
        &mut self,
        x: &[Tensor],
        (log_input, full): (bool, bool),
        eps: f64,
        summary: Summary,
    ) -> Output {
        let (input, target) = (&x[0], &x[1]);
        let mut loss = if log_input {
            let product = self.mul(target, input)?;
            let power = self.apply("aten.exp.default", &[input])?;
            self.apply("aten.sub.Tensor", &[&power, &product])?
        } else {
            let shifted = self.add_scalar(input, eps, Placement::New);
            let logarithm = self.apply("aten.log.default", &[&shifted])?;
            let product = self.mul(target, &logarithm)?;
            self.apply("aten.sub.Tensor", &[input, &product])?
        };
        if full {
            let stirling = self.stirling(target)?;
            let small = self.with_number("aten.le.Scalar", target, "other", 1.0)?;
            let zeros =
                Elementwise::of("aten.masked_fill.Scalar").with("value", Constant::Real(0.0));
            let masked = [Tensor::clone(&stirling), Tensor::clone(&small)];
            let masked = self.elementwise(&zeros, &masked)?;
            loss = self.add_in_place(&loss, &masked);
        }
        Ok(self.summarized(&loss, summary))
    }

    /// `hinge_embedding_loss(self, target)`.
    pub(super) fn hinge_embedding(
        &mut self,
        x: &[Tensor],
        margin: f64,
        summary: Summary,
    ) -> Output {
        let (input, target) = (&x[0], &x[1]);
        let zeros = Tensor::new(self.zeros_like(input, input.dtype));
        let clamped = {
            let difference = self.with_number("aten.rsub.Scalar", input, "other", margin)?;
            self.with_number("aten.clamp_min_.default", &difference, "min", 0.0)?
        };
        let chosen = |eager: &mut Eager, label: f64, value: &Tensor| {
            let other = eager.with_number("aten.ne.Scalar", target, "other", label)?;
            eager.apply("aten.where.self", &[&other, value, &zeros])
        };
        let of_margin = chosen(self, 1.0, &clamped)?;
        let of_self = chosen(self, -1.0, input)?;
        let output = self.add(&of_margin, &of_self);
        Ok(self.summarized(&output, summary))
    }

    /// `margin_ranking_loss(input1, input2, target)`.
    pub(super) fn margin_ranking(&mut self, x: &[Tensor], margin: f64, summary: Summary) -> Output {
        let output = {
            let shifted = {
                let difference = self.apply("aten.sub.Tensor", &[&x[0], &x[1]])?;
                let negative = self.apply("aten.neg.default", &[&x[2]])?;
                let product = self.mul(&negative, &difference)?;
                self.add_scalar(&product, margin, Placement::New)
            };
            self.with_number("aten.clamp_min_.default", &shifted, "min", 0.0)?
        };
        Ok(self.summarized(&output, summary))
    }

    /// `triplet_margin_loss(anchor, positive, negative)`; with `swap` the positive may take the anchor's place.
    pub(super) fn triplet_margin(
        &mut self,
        x: &[Tensor],
        margin: f64,
        (norm, swap): ((f64, f64), bool),
        summary: Summary,
    ) -> Output {
        let (anchor, positive, negative) = (&x[0], &x[1], &x[2]);
        let near = self.pairwise_distance(anchor, positive, norm, false)?;
        let mut far = self.pairwise_distance(anchor, negative, norm, false)?;
        let _swapped = if swap {
            let swapped = self.pairwise_distance(positive, negative, norm, false)?;
            far = self.apply("aten.min.other", &[&far, &swapped])?;
            Some(swapped)
        } else {
            None
        };
        let output = {
            let shifted = self.add_scalar(&near, margin, Placement::New);
            let difference = self.apply("aten.sub.Tensor", &[&shifted, &far])?;
            self.with_number("aten.clamp_min.default", &difference, "min", 0.0)?
        };
        Ok(self.summarized(&output, summary))
    }

    /// `target * at::log(target) - target + 0.5 * at::log(2 * pi * target)`.
    fn stirling(&mut self, target: &Tensor) -> Output {
        let scaled = self.mul_scalar(target, 2.0 * std::f64::consts::PI);
        let wide = self.apply("aten.log.default", &[&scaled])?;
        let half = self.mul_scalar(&wide, 0.5);
        let logarithm = self.apply("aten.log.default", &[target])?;
        let product = self.mul(target, &logarithm)?;
        let difference = self.apply("aten.sub.Tensor", &[&product, target])?;
        Ok(self.add(&difference, &half))
    }

    /// `cosine_embedding_loss(input1, input2, target)`.
    pub(super) fn cosine_embedding(
        &mut self,
        x: &[Tensor],
        margin: f64,
        summary: Summary,
    ) -> Output {
        let (a, b, target) = (&x[0], &x[1], &x[2]);
        let last = [a.shape.len().saturating_sub(1)];
        let dot = |eager: &mut Eager, a: &Tensor, b: &Tensor| {
            let product = eager.mul(a, b)?;
            Ok(eager.reduction(Reduction::Sum, &product, &last, false))
        };
        // `(x * x).sum(dim) + EPSILON`
        let square = |eager: &mut Eager, x: &Tensor| {
            let product = eager.mul(x, x)?;
            let sum = eager.reduction(Reduction::Sum, &product, &last, false);
            Ok(eager.add_scalar(&sum, 1e-12, Placement::New))
        };
        let product = dot(self, a, b)?;
        let first = square(self, a)?;
        let second = square(self, b)?;
        let lengths = {
            let squares = self.mul(&first, &second)?;
            self.apply("aten.sqrt_.default", &[&squares])?
        };
        let cosine = self.apply("aten.div.Tensor", &[&product, &lengths])?;
        let zeros = Tensor::new(self.zeros_like(&cosine, cosine.dtype));
        let near = self.with_number("aten.rsub.Scalar", &cosine, "other", 1.0)?;
        let far = {
            let shifted = self.with_number("aten.sub.Tensor", &cosine, "other", margin)?;
            self.with_number("aten.clamp_min_.default", &shifted, "min", 0.0)?
        };
        let chosen = |eager: &mut Eager, label: f64, value: &Tensor| {
            let equal = eager.with_number("aten.eq.Scalar", target, "other", label)?;
            eager.apply("aten.where.self", &[&equal, value, &zeros])
        };
        let of_near = chosen(self, 1.0, &near)?;
        let of_far = chosen(self, -1.0, &far)?;
        let output = self.add(&of_near, &of_far);
        Ok(self.summarized(&output, summary))
    }
}
