//! Dropout.

use crate::ops::prelude::*;

/// Elements set to zero by chance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Random {
    /// Share of elements dropped.
    pub p: f64,
    /// Whether it does anything.
    pub train: bool,
    /// Which kind of dropout.
    pub dropout: Dropout,
}

/// Kinds of dropout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Dropout {
    /// `dropout(input, p, train)`: one kernel with a mask.
    Fused,
    /// By a product with noise: of whole features, or in place.
    ByNoise {
        /// Whether the result replaces the operand.
        placement: Placement,
        /// Whether whole channels are dropped.
        features: bool,
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.dropout.default", dropout),
    ("aten.dropout_.default", dropout),
    ("aten.feature_dropout.default", dropout),
    ("aten.feature_dropout_.default", dropout),
];

fn dropout(args: &Arguments<'_>) -> Result<Read, String> {
    let features = args.target.contains("feature");
    let random = Random {
        p: args.number("p")?,
        train: args.flag("train", true)?,
        dropout: match (args.placement(), features) {
            (Placement::New, false) => Dropout::Fused,
            (placement, features) => Dropout::ByNoise {
                placement,
                features,
            },
        },
    };
    let operand = if args.has("input") { "input" } else { "self" };
    Ok((random.into(), vec![args.tensor(operand)?]))
}

impl Operator for Random {
    fn name(&self) -> &'static str {
        match self.dropout {
            Dropout::Fused => "dropout",
            Dropout::ByNoise {
                placement,
                features,
            } => match (placement, features) {
                (Placement::New, false) => "dropout",
                (Placement::InPlace, false) => "dropout_",
                (Placement::New, true) => "feature_dropout",
                (Placement::InPlace, true) => "feature_dropout_",
            },
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(operands[..1].to_vec())
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let x = &operands[0];
        if !self.train || context.inference || self.p <= 0.0 {
            return Ok(vec![Tensor::clone(x)]);
        }
        Ok(vec![match self.dropout {
            Dropout::Fused => eager.dropout(x, self.p)?,
            Dropout::ByNoise {
                placement,
                features,
            } => eager.noise_dropout(x, self.p, placement, features)?,
        }])
    }
}

impl Eager {
    /// `dropout` in training: the mask first, then the result.
    pub fn dropout(&mut self, x: &Tensor, p: f64) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        let mask = Tensor::new(self.empty(&x.shape, DType::Bool));
        let y = self.empty_like(x, x.dtype);
        self.launch(Kernel::Dropout { p }, &[x], &[&y, &mask]);
        draft.save(self, "mask", &mask)?;
        Ok(draft.finish_one(self, y, move |eager, gradient, saved| {
            // Row-major or channels-last, whatever the gradient's own order.
            let strides = gradient.suggested_format().strides(&gradient.shape);
            let grad = eager.empty_strided(&gradient.shape, strides, gradient.dtype);
            let inputs = [&**gradient, saved.get("mask")];
            eager.computed(grad, Kernel::DropoutGrad { p }, &inputs)
        }))
    }

    /// Dropout by a product with noise, of elements or of whole channels.
    pub fn noise_dropout(
        &mut self,
        x: &Tensor,
        p: f64,
        placement: Placement,
        features: bool,
    ) -> Output {
        let noise = if features {
            let mut shape = x.shape.clone();
            shape[2..].fill(Extent::ONE);
            self.empty(&shape, x.dtype)
        } else {
            self.empty_like(x, x.dtype)
        };
        // `noise.bernoulli_(1 - p).div_(1 - p)` (`Dropout.cpp`).
        let drawn = "result = uniform(seed, index) < kept ? 1 / kept : 0;";
        let drawn = Generated::map("bernoulli_", [], drawn)
            .with("kept", 1.0 - p)
            .with("seed", Number::Seed);
        self.launch(drawn, &[], &[&noise]);
        let noise = Tensor::new(noise);
        match placement {
            Placement::New => self.mul(x, &noise),
            Placement::InPlace => self.mul_in_place(x, &noise),
        }
    }
}
