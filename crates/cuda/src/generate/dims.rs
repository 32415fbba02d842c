//! Dimensions of a loop over any number of operands.

use super::{Named, NoKernel};
use crate::layout::Operand;

/// What has 31 bits is below this.
const SHORT: u64 = 1 << 31;

/// A loop over several operands at once: lengths, outermost first, and each operand's strides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dims {
    pub(super) lengths: Vec<u64>,
    pub(super) strides: Vec<Vec<u64>>,
}

impl Dims {
    /// The fewest dimensions that visit the same elements in the same order: those of length one dropped, those that
    /// lie behind one another in every operand merged; at least one.
    pub(super) fn merged(lengths: &[u64], strides: &[Vec<u64>], order: &[usize]) -> Dims {
        let mut merged = Dims {
            lengths: Vec::new(),
            strides: vec![Vec::new(); strides.len()],
        };
        for &d in order.iter().filter(|d| lengths[**d] != 1) {
            let goes_on = |(so_far, own): (&Vec<u64>, &Vec<u64>)| {
                so_far.last().copied() == own[d].checked_mul(lengths[d])
            };
            match merged.lengths.last_mut() {
                Some(last) if merged.strides.iter().zip(strides).all(goes_on) => {
                    *last *= lengths[d];
                    for (so_far, own) in merged.strides.iter_mut().zip(strides) {
                        if let Some(stride) = so_far.last_mut() {
                            *stride = own[d];
                        }
                    }
                }
                Some(_) | None => {
                    merged.lengths.push(lengths[d]);
                    for (so_far, own) in merged.strides.iter_mut().zip(strides) {
                        so_far.push(own[d]);
                    }
                }
            }
        }
        if merged.lengths.is_empty() {
            merged.lengths.push(1);
            for of_operand in &mut merged.strides {
                of_operand.push(0);
            }
        }
        merged
    }

    /// These dimensions, and those within them: of the operands that both have.
    pub(super) fn around(&self, within: &Dims) -> Dims {
        let strides = self.strides.iter().zip(&within.strides);
        Dims {
            lengths: [&self.lengths[..], &within.lengths].concat(),
            strides: strides.map(|(a, w)| [&a[..], w].concat()).collect(),
        }
    }

    /// How many elements are visited.
    pub(super) fn count(&self) -> u64 {
        self.lengths.iter().product()
    }

    pub(super) fn rank(&self) -> usize {
        self.lengths.len()
    }

    /// Whether it and all offsets in it have 31 bits.
    pub(super) fn is_short(&self) -> bool {
        let last = |strides: &Vec<u64>| {
            let steps = strides.iter().zip(&self.lengths);
            steps.fold(0_u64, |sum, (stride, length)| {
                sum.saturating_add(stride.saturating_mul(length.saturating_sub(1)))
            })
        };
        self.count() < SHORT && self.strides.iter().all(|strides| last(strides) < SHORT)
    }
}

/// Each operand's strides under a shape it broadcasts to.
pub(super) fn strides_under<'a>(
    operands: impl Iterator<Item = &'a Named<'a>>,
    shape: &[u64],
) -> Result<Vec<Vec<u64>>, NoKernel> {
    let under = |named: &Named<'_>| {
        let strides = named.operand.strides_under(shape);
        strides.ok_or_else(|| NoKernel::DoesNotBroadcast {
            name: named.name,
            shape: named.operand.shape.clone(),
            to: shape.to_vec(),
        })
    };
    operands.map(under).collect()
}

/// Whether an operand and all offsets in it have 31 bits.
pub(super) fn is_short(operand: &Operand) -> bool {
    operand.span() / operand.dtype.size() < SHORT
}
