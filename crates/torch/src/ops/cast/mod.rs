//! Conversions to another type.

use crate::ops::prelude::*;

/// `to(dtype)`, and whether a conversion makes its result row-major (`memory_format=torch.contiguous_format`); with a second
/// operand `type_as`, to the type that it has when the graph runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Cast(pub DType, pub bool);

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.to.device aten.to.dtype aten.to.dtype_layout", to),
    ("aten.type_as.default", |args| {
        let other = args.tensor("other")?;
        let dtype = args.typed(other).0;
        Ok((Cast(dtype, false).into(), vec![args.tensor("self")?, other]))
    }),
];

fn to(args: &Arguments<'_>) -> Result<Read, String> {
    let input = args.tensor("self")?;
    let own = args.typed(input).0;
    let dtype = args.dtype("dtype")?.unwrap_or(own);
    if args.is_channels_last() && dtype == own {
        let copy = super::Copy::ChannelsLast { always: false };
        return Ok((copy.into(), vec![input]));
    }
    Ok((Cast(dtype, args.is_row_major()).into(), vec![input]))
}

impl Operator for Cast {
    fn name(&self) -> &'static str {
        "to"
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        Ok(vec![(self.0, operands[0].1.clone())])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let of_other = operands.get(1).map(|other| other.dtype);
        // What is of half precision now is converted up, whatever came before.
        let back = context.goes_back_to.filter(|_| operands[0].dtype == self.0);
        let dtype = of_other.or(context.asks_for).or(back);
        let dtype = dtype.unwrap_or(self.0);
        Ok(vec![if self.1 {
            eager.cast_row_major(&operands[0], dtype)
        } else {
            eager.cast(&operands[0], dtype)
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Cancel;
    use crate::ops::calls::H200;
    use crate::shape::Extent;

    /// As PyTorch 2.11: `x.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)` of the delta rules of transformers copies
    /// where `x` is in bfloat16, and gives `x` as it lies where it is in float32.
    #[test]
    fn a_conversion_to_a_row_major_tensor_is_row_major() {
        let mut eager = Eager::new(H200, &Cancel::NEVER);
        let sizes = |lengths: [u64; 4]| lengths.map(Extent::fixed).to_vec();
        for (dtype, row_major) in [(DType::BFloat16, true), (DType::Float32, false)] {
            let x = eager.empty_strided(sizes([2, 4, 256, 32]), sizes([32768, 32, 128, 1]), dtype);
            let y = eager.cast_row_major(&Tensor::new(x), DType::Float32);
            assert_eq!(y.is_contiguous(), row_major, "{dtype}");
        }
    }
}
