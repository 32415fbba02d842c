//! Normalizations besides those of whole batches and of last dimensions.

use serde::Serialize;

use crate::shape::Extent;

/// What is normalized. Operands are `input`, then `weight` and `bias` where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Normalize {
    /// `batch_norm` in training without a weight, a bias or running statistics; the last two may follow.
    Batch {
        /// Whether there is a weight.
        weight: bool,
        /// Whether there is a bias.
        bias: bool,
    },
    /// `group_norm`.
    Group {
        /// How many groups the channels form.
        groups: u64,
    },
    /// `instance_norm` with the statistics of its input.
    Instance,
}

impl Normalize {
    /// The name a PyTorch user knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Normalize::Batch { .. } => "batch_norm",
            Normalize::Group { .. } => "group_norm",
            Normalize::Instance => "instance_norm",
        }
    }

    /// The shape of the result, or what does not fit.
    pub fn shape(self, operands: &[&[Extent]]) -> Result<Vec<Extent>, String> {
        let [_, channels, ..] = operands[0] else {
            return Err("the input has no channels".into());
        };
        let other = operands.iter().enumerate().skip(1);
        let mut other = other.filter(|(_, shape)| **shape != [*channels]);
        if let Some((i, shape)) = other.next() {
            return Err(format!("operand {i} is {shape:?}, not [{channels}]"));
        }
        let whole = channels.as_fixed().filter(|channels| *channels > 0);
        let fits = match self {
            Normalize::Group { groups } => {
                groups > 0 && whole.is_some_and(|channels| channels.is_multiple_of(groups))
            }
            Normalize::Batch { .. } => operands[0].len() >= 2,
            Normalize::Instance => operands[0].len() >= 3,
        };
        if !fits {
            return Err(format!("cannot normalize {:?} like this", operands[0]));
        }
        Ok(operands[0].to_vec())
    }
}
