//! Matrix products with a weight: `linear` and `addmm`.

mod run;

use super::matmul::product;
use crate::ops::prelude::*;

/// A product with a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Linear {
    /// `linear(input, weight[, bias])`; `weight` is `[out, in]`.
    Linear,
    /// `addmm(bias, mat1, mat2)`; `mat2` is `[in, out]`.
    Addmm,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.linear.default", |args| {
        let operands = args.all_and(&["input", "weight"], &["bias"])?;
        Ok((Linear::Linear.into(), operands))
    }),
    ("aten.addmm.default", |args| {
        if args.always("beta", 1.0).is_err() || args.always("alpha", 1.0).is_err() {
            return super::scripted::read_as("scaled.addmm", args);
        }
        Ok((Linear::Addmm.into(), args.all(&["self", "mat1", "mat2"])?))
    }),
];

impl Operator for Linear {
    fn name(&self) -> &'static str {
        match self {
            Linear::Linear => "linear",
            Linear::Addmm => "addmm",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(match self {
            Linear::Linear => vec![(operands[0].0, linear(&operands[0].1, &operands[1].1)?)],
            Linear::Addmm => vec![(operands[1].0, product(&operands[1].1, &operands[2].1)?)],
        })
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        Ok(vec![match self {
            Linear::Linear => eager.linear(&operands[0], &operands[1], operands.get(2))?,
            Linear::Addmm => eager.addmm(&operands[0], &operands[1], &operands[2])?,
        }])
    }
}

fn linear(x: &[Extent], weight: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
    let [out, features] = weight else {
        return Err(format!("the weight {weight:?} is not a matrix"));
    };
    let (last, lead) = x.split_last().ok_or("the input is a scalar")?;
    if last != features {
        return Err(format!(
            "the input has {last} features, the weight takes {features}"
        ));
    }
    Ok(lead.iter().copied().chain([*out]).collect())
}
