//! The statements of composed losses. Temporaries of a statement go at its end, the last first; locals at the end of
//! the function. The right operand of an operator is made before the left one.

use super::{Composed, ComposedLoss};
use crate::aten::Constant;
use crate::eager::{Eager, Stop, Tensor};
use crate::ops::{Elementwise, Reduction};
use crate::program::{Kernel, Placement};

impl Eager {
    /// A composed loss, of operands that autocast makes float32.
    pub(super) fn composed_loss(
        &mut self,
        loss: ComposedLoss,
        operands: &[Tensor],
    ) -> Result<Tensor, Stop> {
        let mut operands = operands.to_vec();
        // `poisson_nll_loss` is composed under autocast where the others are composed of what it made.
        for operand in operands.iter_mut().rev() {
            *operand = self.high(operand);
        }
        let autocast = self.autocast.take();
        let each = self.composed(loss, &operands);
        self.autocast = autocast;
        each
    }

    #[expect(clippy::too_many_lines, reason = "the statements of six losses")]
    fn composed(&mut self, loss: ComposedLoss, operands: &[Tensor]) -> Result<Tensor, Stop> {
        let (a, b) = (&operands[0], &operands[1]);
        let summary = loss.summary;
        match loss.function {
            Composed::KullbackLeibler { log_target: false } => {
                // `at::xlogy(target, target) - target * input`
                let product = self.mul(b, a)?;
                let entropy = self.apply("aten.xlogy.Tensor", &[b, b])?;
                let output = self.apply("aten.sub.Tensor", &[&entropy, &product])?;
                drop(entropy);
                drop(product);
                Ok(self.summarized(&output, summary))
            }
            Composed::KullbackLeibler { log_target: true } => {
                // `at::exp(target) * (target - input)`
                let difference = self.apply("aten.sub.Tensor", &[b, a])?;
                let power = self.apply("aten.exp.default", &[b])?;
                let output = self.mul(&power, &difference)?;
                drop(power);
                drop(difference);
                Ok(self.summarized(&output, summary))
            }
            Composed::Poisson {
                log_input,
                full,
                eps,
            } => {
                let loss = if log_input {
                    let product = self.mul(b, a)?;
                    let power = self.apply("aten.exp.default", &[a])?;
                    let loss = self.apply("aten.sub.Tensor", &[&power, &product])?;
                    drop(power);
                    drop(product);
                    loss
                } else {
                    let shifted = self.add_scalar(a, eps, Placement::New);
                    let logarithm = self.apply("aten.log.default", &[&shifted])?;
                    let product = self.mul(b, &logarithm)?;
                    let loss = self.apply("aten.sub.Tensor", &[a, &product])?;
                    drop(product);
                    drop(logarithm);
                    drop(shifted);
                    loss
                };
                let stirling = if full { Some(self.stirling(b)?) } else { None };
                let loss = match &stirling {
                    Some(stirling) => {
                        let small = self.with_number("aten.le.Scalar", b, "other", 1.0)?;
                        let fill = Elementwise::of("aten.masked_fill.Scalar")
                            .with("value", Constant::Real(0.0));
                        let masked = self.elementwise(
                            &fill,
                            &[Tensor::clone(stirling), Tensor::clone(&small)],
                        )?;
                        let loss = self.add_in_place(&loss, &masked);
                        drop(masked);
                        drop(small);
                        loss
                    }
                    None => loss,
                };
                drop(stirling);
                Ok(self.summarized(&loss, summary))
            }
            Composed::HingeEmbedding { margin } => {
                let zeros = Tensor::new(self.empty_like(a, a.dtype));
                self.launch(Kernel::Fill(0.0), &[], &[&zeros]);
                let difference = self.with_number("aten.rsub.Scalar", a, "other", margin)?;
                let clamped =
                    self.with_number("aten.clamp_min_.default", &difference, "min", 0.0)?;
                drop(difference);
                let chosen = |eager: &mut Eager, label: f64, value: &Tensor| {
                    let other = eager.with_number("aten.ne.Scalar", b, "other", label)?;
                    eager.apply("aten.where.self", &[&other, value, &zeros])
                };
                let of_margin = chosen(self, 1.0, &clamped)?;
                let of_self = chosen(self, -1.0, a)?;
                let output = self.add(&of_margin, &of_self);
                let loss = self.summarized(&output, summary);
                drop(output);
                drop(of_self);
                drop(of_margin);
                drop(clamped);
                drop(zeros);
                Ok(loss)
            }
            Composed::MarginRanking { margin } => {
                let difference = self.apply("aten.sub.Tensor", &[a, b])?;
                let negative = self.apply("aten.neg.default", &[&operands[2]])?;
                let product = self.mul(&negative, &difference)?;
                let shifted = self.add_scalar(&product, margin, Placement::New);
                drop(product);
                drop(negative);
                drop(difference);
                let output = self.with_number("aten.clamp_min_.default", &shifted, "min", 0.0)?;
                drop(shifted);
                Ok(self.summarized(&output, summary))
            }
            Composed::CosineEmbedding { margin } => self.cosine_embedding(loss, operands, margin),
            Composed::TripletMargin {
                margin,
                order,
                eps,
                swap,
            } => {
                let negative = &operands[2];
                let near = self.pairwise_distance(a, b, (order, eps), false)?;
                let mut far = self.pairwise_distance(a, negative, (order, eps), false)?;
                let swapped = if swap {
                    let swapped = self.pairwise_distance(b, negative, (order, eps), false)?;
                    far = self.apply("aten.min.other", &[&far, &swapped])?;
                    Some(swapped)
                } else {
                    None
                };
                let shifted = self.add_scalar(&near, margin, Placement::New);
                let difference = self.apply("aten.sub.Tensor", &[&shifted, &far])?;
                let output = self.with_number("aten.clamp_min.default", &difference, "min", 0.0)?;
                drop(difference);
                drop(shifted);
                let loss = self.summarized(&output, summary);
                drop(output);
                drop(swapped);
                drop(far);
                drop(near);
                Ok(loss)
            }
        }
    }

    /// `target * at::log(target) - target + 0.5 * at::log(2 * pi * target)`.
    fn stirling(&mut self, target: &Tensor) -> Result<Tensor, Stop> {
        let scaled = self.mul_scalar(target, 2.0 * std::f64::consts::PI);
        let wide = self.apply("aten.log.default", &[&scaled])?;
        let half = self.mul_scalar(&wide, 0.5);
        let logarithm = self.apply("aten.log.default", &[target])?;
        let product = self.mul(target, &logarithm)?;
        let difference = self.apply("aten.sub.Tensor", &[&product, target])?;
        let sum = self.add(&difference, &half);
        drop(difference);
        drop(product);
        drop(logarithm);
        drop(half);
        drop(wide);
        drop(scaled);
        Ok(sum)
    }

    fn cosine_embedding(
        &mut self,
        loss: ComposedLoss,
        operands: &[Tensor],
        margin: f64,
    ) -> Result<Tensor, Stop> {
        let (a, b, target) = (&operands[0], &operands[1], &operands[2]);
        let last = [a.shape.len().saturating_sub(1)];
        let dot = |eager: &mut Eager, a: &Tensor, b: &Tensor| {
            let product = eager.mul(a, b)?;
            let sum = eager.reduction(Reduction::Sum, &product, &last, false);
            drop(product);
            Ok(sum)
        };
        // `(x * x).sum(dim) + EPSILON`
        let square = |eager: &mut Eager, x: &Tensor| {
            let product = eager.mul(x, x)?;
            let sum = eager.reduction(Reduction::Sum, &product, &last, false);
            let shifted = eager.add_scalar(&sum, 1e-12, Placement::New);
            drop(sum);
            drop(product);
            Ok(shifted)
        };
        let product = dot(self, a, b)?;
        let first = square(self, a)?;
        let second = square(self, b)?;
        let squares = self.mul(&first, &second)?;
        let lengths = self.apply("aten.sqrt_.default", &[&squares])?;
        drop(squares);
        let cosine = self.apply("aten.div.Tensor", &[&product, &lengths])?;
        let zeros = Tensor::new(self.empty_like(&cosine, cosine.dtype));
        self.launch(Kernel::Fill(0.0), &[], &[&zeros]);
        let near = self.with_number("aten.rsub.Scalar", &cosine, "other", 1.0)?;
        let shifted = self.with_number("aten.sub.Tensor", &cosine, "other", margin)?;
        let far = self.with_number("aten.clamp_min_.default", &shifted, "min", 0.0)?;
        drop(shifted);
        let chosen = |eager: &mut Eager, label: f64, value: &Tensor| {
            let equal = eager.with_number("aten.eq.Scalar", target, "other", label)?;
            eager.apply("aten.where.self", &[&equal, value, &zeros])
        };
        let of_near = chosen(self, 1.0, &near)?;
        let of_far = chosen(self, -1.0, &far)?;
        let output = self.add(&of_near, &of_far);
        let loss = self.summarized(&output, loss.summary);
        for local in [
            output, of_far, of_near, far, near, zeros, cosine, lengths, second, first, product,
        ] {
            drop(local);
        }
        Ok(loss)
    }
}
