//! Losses that PyTorch composes of other operators (`Loss.cpp`), each in the order of its C++ statements.

mod run;

use serde::Serialize;

use crate::aten::Arguments;
use crate::eager::{Eager, Outputs, Tensor};
use crate::ops::{Context, Operator, Read, Reader, Summary, loss as losses};
use crate::shape::{DType, Mismatch, Type, broadcast};

/// A composed loss. Operands are in the order of the ATen operator's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ComposedLoss {
    /// Which one.
    pub function: Composed,
    /// How the losses of all elements or examples become one number.
    pub summary: Summary,
}

/// What a composed loss computes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Composed {
    /// `kl_div(self, target)`.
    KullbackLeibler {
        /// Whether the target is a logarithm too.
        log_target: bool,
    },
    /// `poisson_nll_loss(input, target)`.
    Poisson {
        /// Whether the input is a logarithm.
        log_input: bool,
        /// Whether Stirling's approximation is added.
        full: bool,
        /// What keeps the logarithm finite.
        eps: f64,
    },
    /// `hinge_embedding_loss(self, target)`.
    HingeEmbedding {
        /// How far apart the others should be.
        margin: f64,
    },
    /// `margin_ranking_loss(input1, input2, target)`.
    MarginRanking {
        /// How far apart they should be.
        margin: f64,
    },
    /// `cosine_embedding_loss(input1, input2, target)`.
    CosineEmbedding {
        /// How far apart the others should be.
        margin: f64,
    },
    /// `triplet_margin_loss(anchor, positive, negative)`.
    TripletMargin {
        /// How far apart they should be.
        margin: f64,
        /// The order of the norm.
        order: f64,
        /// What keeps differences from zero.
        eps: f64,
        /// Whether the positive may take the anchor's place.
        swap: bool,
    },
}

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.kl_div.default", |args| {
        let log_target = args.flag("log_target", false)?;
        let function = Composed::KullbackLeibler { log_target };
        read(args, function, &["self", "target"])
    }),
    ("aten.poisson_nll_loss.default", |args| {
        let function = Composed::Poisson {
            log_input: args.flag("log_input", true)?,
            full: args.flag("full", false)?,
            eps: args.number_or("eps", 1e-8)?,
        };
        read(args, function, &["input", "target"])
    }),
    ("aten.hinge_embedding_loss.default", |args| {
        let margin = args.number_or("margin", 1.0)?;
        read(
            args,
            Composed::HingeEmbedding { margin },
            &["self", "target"],
        )
    }),
    ("aten.margin_ranking_loss.default", |args| {
        let margin = args.number_or("margin", 0.0)?;
        read(
            args,
            Composed::MarginRanking { margin },
            &["input1", "input2", "target"],
        )
    }),
    ("aten.cosine_embedding_loss.default", |args| {
        let margin = args.number_or("margin", 0.0)?;
        read(
            args,
            Composed::CosineEmbedding { margin },
            &["input1", "input2", "target"],
        )
    }),
    ("aten.triplet_margin_loss.default", |args| {
        let function = Composed::TripletMargin {
            margin: args.number_or("margin", 1.0)?,
            order: args.number_or("p", 2.0)?,
            eps: args.number_or("eps", 1e-6)?,
            swap: args.flag("swap", false)?,
        };
        read(args, function, &["anchor", "positive", "negative"])
    }),
];

fn read(args: &Arguments<'_>, function: Composed, operands: &[&str]) -> Result<Read, String> {
    let summary = losses::summary(args)?;
    let loss = ComposedLoss { function, summary };
    Ok((loss.into(), args.all(operands)?))
}

impl Operator for ComposedLoss {
    fn name(&self) -> &'static str {
        match self.function {
            Composed::KullbackLeibler { .. } => "kl_div",
            Composed::Poisson { .. } => "poisson_nll_loss",
            Composed::HingeEmbedding { .. } => "hinge_embedding_loss",
            Composed::MarginRanking { .. } => "margin_ranking_loss",
            Composed::CosineEmbedding { .. } => "cosine_embedding_loss",
            Composed::TripletMargin { .. } => "triplet_margin_loss",
        }
    }

    fn arity(&self) -> (usize, usize) {
        match self.function {
            Composed::KullbackLeibler { .. }
            | Composed::Poisson { .. }
            | Composed::HingeEmbedding { .. } => (2, 2),
            Composed::MarginRanking { .. }
            | Composed::CosineEmbedding { .. }
            | Composed::TripletMargin { .. } => (3, 3),
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let floats = operands.iter().map(|(dtype, _)| *dtype);
        let dtype = floats
            .filter(|dtype| dtype.is_float())
            .reduce(DType::promote);
        let mut each = operands[0].1.clone();
        for (_, shape) in &operands[1..2] {
            each = broadcast(&each, shape)?;
        }
        match self.function {
            Composed::CosineEmbedding { .. } | Composed::TripletMargin { .. } => {
                each.pop().ok_or("its operands are no vectors")?;
            }
            Composed::KullbackLeibler { .. }
            | Composed::Poisson { .. }
            | Composed::HingeEmbedding { .. }
            | Composed::MarginRanking { .. } => {}
        }
        let shape = match self.summary {
            Summary::None => each,
            Summary::Mean | Summary::Sum => Vec::new(),
        };
        Ok(vec![(dtype.unwrap_or(DType::Float32), shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        Ok(vec![eager.composed_loss(*self, operands)?])
    }
}
