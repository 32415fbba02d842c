//! Operations that look elements up by position, sort them or choose among them.

mod extremes;
mod kernel;
mod ordering;
mod read;
mod run;
pub(in crate::ops) mod search;
mod writing;

pub use extremes::Choice;
pub(super) use read::ATEN;

use super::{Context, Operator};
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{DType, Extent, Mismatch, Type, broadcast};
use serde::Serialize;

/// Which operation; operands are in the order of the ATen operator's arguments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Indexed {
    /// `gather(input, index)`.
    Gather {
        /// Which dimension.
        dim: usize,
    },
    /// `index(self, indices)`: a tensor of positions for each dimension marked here, broadcast together.
    Index(Vec<bool>),
    /// `index(self, indices)`, some of which are truth values: those stand for the places where they are true.
    IndexMasked {
        /// The dimensions that are looked up in; a tensor of truth values marks as many as it has.
        marked: Vec<bool>,
        /// How many places are taken to be chosen.
        rows: Extent,
    },
    /// `index_select(self, index)`.
    Select {
        /// Which dimension.
        dim: usize,
    },
    /// `index_put_(self, indices, values)`.
    Put {
        /// Whether equal positions add up.
        accumulate: bool,
        /// Whether the result is a tensor of its own.
        fresh: bool,
        /// The dimensions that are looked up in; a tensor of truth values marks as many as it has.
        marked: Vec<bool>,
        /// How many places are taken to be chosen, where truth values choose them.
        rows: Option<Extent>,
    },
    /// `index_add_(self, dim, index, source)`.
    Add {
        /// Which dimension.
        dim: usize,
        /// Whether the result is a tensor of its own.
        fresh: bool,
        /// What is added is multiplied by this number.
        alpha: Option<f64>,
    },
    /// `scatter(self, index, source)`, `scatter_add`.
    Scatter {
        /// Which dimension.
        dim: usize,
        /// Whether it adds.
        adds: bool,
        /// What is written where no tensor is.
        value: Option<f64>,
        /// Whether the result replaces the first operand.
        in_place: bool,
    },
    /// One element along a dimension, such as the largest, and where it is.
    Extreme {
        /// Which element.
        choice: Choice,
        /// Which dimension.
        dim: usize,
        /// Whether it stays, with a length of one.
        keep: bool,
    },
    /// Where the largest or smallest element along a dimension is.
    ArgExtreme {
        /// Whether it is the largest.
        largest: bool,
        /// Which dimension; all of them together if none.
        dim: Option<usize>,
        /// Whether it stays, with a length of one.
        keep: bool,
    },
    /// Whether any or all elements along some dimensions are true.
    Truth {
        /// Whether all have to be.
        all: bool,
        /// Which dimensions, ascending.
        dims: Vec<usize>,
        /// Whether they stay, with a length of one.
        keep: bool,
    },
    /// `topk(self, k)`: values and positions.
    TopK {
        /// How many.
        count: u64,
        /// Which dimension.
        dim: usize,
        /// Whether the largest.
        largest: bool,
    },
    /// `sort(self)`: values and positions.
    Sort {
        /// Which dimension.
        dim: usize,
        /// Whether the largest comes first.
        descending: bool,
    },
    /// `argsort(self)`.
    ArgSort {
        /// Which dimension.
        dim: usize,
        /// Whether the largest comes first.
        descending: bool,
    },
    /// `histc(self, bins)`.
    Histogram {
        /// How many.
        bins: u64,
        /// Where the first begins and the last ends; where the smallest and the largest element are if equal.
        range: [f64; 2],
    },
    /// `one_hot(self, classes)`.
    OneHot {
        /// How many.
        classes: u64,
    },
    /// `repeat_interleave(self, repeats)`.
    RepeatInterleave {
        /// How often each element.
        times: u64,
        /// Which dimension.
        dim: usize,
    },
    /// `cumsum(self)`.
    CumulativeSum {
        /// Which dimension.
        dim: usize,
        /// The type to sum in, where the model's code says.
        dtype: Option<DType>,
    },
    /// `tril` or `triu` of each matrix.
    Triangle {
        /// Whether it keeps what is above the diagonal, not below.
        upper: bool,
        /// Which diagonal: how far above the main one.
        diagonal: i64,
    },
}

impl Indexed {
    /// The name a PyTorch user knows it by.
    fn aten_name(&self) -> &'static str {
        match self {
            Indexed::Gather { .. } => "gather",
            Indexed::Index(_) | Indexed::IndexMasked { .. } => "index",
            Indexed::Select { .. } => "index_select",
            Indexed::Put { .. } => "index_put_",
            Indexed::Add { .. } => "index_add",
            Indexed::Scatter { .. } => "scatter",
            Indexed::Extreme { choice, .. } => choice.name(),
            Indexed::ArgExtreme { largest: true, .. } => "argmax",
            Indexed::ArgExtreme { largest: false, .. } => "argmin",
            Indexed::Truth { all: false, .. } => "any",
            Indexed::Truth { all: true, .. } => "all",
            Indexed::TopK { .. } => "topk",
            Indexed::Sort { .. } => "sort",
            Indexed::ArgSort { .. } => "argsort",
            Indexed::Histogram { .. } => "histc",
            Indexed::OneHot { .. } => "one_hot",
            Indexed::RepeatInterleave { .. } => "repeat_interleave",
            Indexed::CumulativeSum { .. } => "cumsum",
            Indexed::Triangle { .. } => "tril",
        }
    }

    /// Fewest and most operands.
    fn operands(&self) -> (usize, usize) {
        match self {
            Indexed::Index(marked) => {
                let count = 1 + marked.iter().filter(|marked| **marked).count();
                (count, count)
            }
            Indexed::IndexMasked { marked, .. } => (2, 1 + marked.len()),
            Indexed::Gather { .. } | Indexed::Select { .. } => (2, 2),
            Indexed::Put { marked, .. } => (2, 2 + marked.len()),
            Indexed::Add { .. } => (3, 3),
            Indexed::Scatter { .. } => (2, 3),
            _ => (1, 1),
        }
    }

    /// The results on operands of these types.
    fn results(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = (operands[0].0, &operands[0].1);
        let with = |dim: usize, length: Extent| {
            let mut shape = x.clone();
            let place = shape
                .get_mut(dim)
                .ok_or_else(|| format!("no dimension {dim} in {x:?}"))?;
            *place = length;
            Ok::<_, String>(shape)
        };
        let along = |dim: usize| {
            x.get(dim)
                .copied()
                .ok_or_else(|| format!("no dimension {dim} in {x:?}"))
        };
        Ok(match self {
            Indexed::Gather { dim } => vec![(dtype, gather(x, &operands[1].1, *dim)?)],
            Indexed::Index(marked) => {
                if operands[1..].iter().any(|(dtype, _)| *dtype == DType::Bool) {
                    return Err(
                        "indices that are truth values give a result whose length depends on them"
                            .into(),
                    );
                }
                vec![(
                    dtype,
                    looked_up(x, marked, &shapes_of(&operands[1..], None))?,
                )]
            }
            Indexed::IndexMasked { marked, rows } => {
                vec![(
                    dtype,
                    looked_up(x, marked, &shapes_of(&operands[1..], Some(*rows)))?,
                )]
            }
            Indexed::Select { dim } => {
                let length = operands[1].1.first().copied().unwrap_or(Extent::ONE);
                vec![(dtype, with(*dim, length)?)]
            }
            Indexed::Put { marked, rows, .. } => {
                let (written, indices) = operands[1..].split_last().ok_or("it writes nothing")?;
                let (written, shapes) = (&written.1, shapes_of(indices, *rows));
                let place = looked_up(x, marked, &shapes)?;
                if broadcast(written, &place)? != place {
                    return Err(format!(
                        "values {written:?} do not fit the places {place:?}"
                    ));
                }
                vec![(dtype, x.clone())]
            }
            Indexed::Extreme { dim, keep, .. } => {
                along(*dim)?;
                let shape = reduced(x, &[*dim], *keep);
                vec![(dtype, shape.clone()), (DType::Int64, shape)]
            }
            Indexed::ArgExtreme { dim, keep, .. } => {
                let dims: Vec<usize> = match dim {
                    Some(dim) => vec![*dim],
                    None => (0..x.len()).collect(),
                };
                vec![(DType::Int64, reduced(x, &dims, *keep))]
            }
            Indexed::Truth { dims, keep, .. } => vec![(DType::Bool, reduced(x, dims, *keep))],
            Indexed::TopK { count, dim, .. } => {
                let shape = with(*dim, Extent::fixed(*count))?;
                vec![(dtype, shape.clone()), (DType::Int64, shape)]
            }
            Indexed::Sort { dim, .. } => {
                along(*dim)?;
                vec![(dtype, x.clone()), (DType::Int64, x.clone())]
            }
            Indexed::ArgSort { .. } => vec![(DType::Int64, x.clone())],
            Indexed::Histogram { bins, .. } => vec![(dtype, vec![Extent::fixed(*bins)])],
            Indexed::OneHot { classes } => {
                let mut shape = x.clone();
                shape.push(Extent::fixed(*classes));
                vec![(DType::Int64, shape)]
            }
            Indexed::RepeatInterleave { times, dim } => {
                vec![(dtype, with(*dim, along(*dim)? * Extent::fixed(*times))?)]
            }
            Indexed::CumulativeSum { dim, dtype: into } => {
                if !x.is_empty() {
                    along(*dim)?;
                }
                let own = if dtype.is_float() {
                    dtype
                } else {
                    DType::Int64
                };
                let dtype = into.unwrap_or(own);
                vec![(dtype, x.clone())]
            }
            Indexed::Add { .. } | Indexed::Scatter { .. } | Indexed::Triangle { .. } => {
                vec![(dtype, x.clone())]
            }
        })
    }
}

/// A shape without these dimensions, or with lengths of one in their place.
fn reduced(x: &[Extent], dims: &[usize], keep: bool) -> Vec<Extent> {
    let lengths = x.iter().enumerate();
    lengths
        .filter(|(i, _)| keep || !dims.contains(i))
        .map(|(i, length)| {
            if dims.contains(&i) {
                Extent::ONE
            } else {
                *length
            }
        })
        .collect()
}

/// The shapes of positions; truth values stand for `rows` of them along each of their dimensions.
fn shapes_of(indices: &[Type], rows: Option<Extent>) -> Vec<Vec<Extent>> {
    let shapes = indices.iter().map(|(dtype, shape)| match (dtype, rows) {
        (DType::Bool, Some(rows)) => vec![vec![rows]; shape.len()],
        _ => vec![shape.clone()],
    });
    shapes.flatten().collect()
}

/// The shape of `x[indices]`: the indices' common shape stands where the indexed dimensions are, or first
/// if they are not neighbours.
pub fn looked_up(
    x: &[Extent],
    marked: &[bool],
    indices: &[Vec<Extent>],
) -> Result<Vec<Extent>, String> {
    let places: Vec<usize> = (0..marked.len()).filter(|i| marked[*i]).collect();
    let (Some(first), Some(last)) = (places.first(), places.last()) else {
        return Ok(x.to_vec());
    };
    if marked.len() > x.len() || indices.len() != places.len() {
        return Err(format!("{} indices do not fit {x:?}", marked.len()));
    }
    let common = indices
        .iter()
        .try_fold(Vec::new(), |common, index| broadcast(&common, index))?;
    let neighbours = last - first + 1 == places.len();
    let kept = |range: std::ops::Range<usize>| -> Vec<Extent> {
        range
            .filter(|i| !places.contains(i))
            .map(|i| x[i])
            .collect()
    };
    let at = if neighbours { *first } else { 0 };
    Ok([kept(0..at), common, kept(at..x.len())].concat())
}

fn gather(x: &[Extent], index: &[Extent], dim: usize) -> Result<Vec<Extent>, Mismatch> {
    if dim >= x.len() || index.len() != x.len() {
        return Err(format!(
            "indices {index:?} do not fit {x:?} along dimension {dim}"
        ));
    }
    Ok(index.to_vec())
}

impl Operator for Indexed {
    fn name(&self) -> &'static str {
        self.aten_name()
    }

    fn arity(&self) -> (usize, usize) {
        self.operands()
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        self.results(operands)
    }

    fn positions(&self, operands: &[Type]) -> Vec<(usize, Extent)> {
        let shape = &operands[0].1;
        match self {
            Indexed::Gather { dim }
            | Indexed::Select { dim }
            | Indexed::Add { dim, .. }
            | Indexed::Scatter { dim, .. } => along(shape, *dim),
            Indexed::Index(marked)
            | Indexed::Put {
                marked, rows: None, ..
            } => {
                let chosen = marked.iter().zip(shape).filter(|(marked, _)| **marked);
                let lengths = chosen.map(|(_, length)| *length);
                (1..).zip(lengths).collect()
            }
            // Truth values are among them, and stand for as many dimensions as they have.
            Indexed::IndexMasked { .. } | Indexed::Put { .. } => (1..operands.len())
                .map(|operand| (operand, Extent::ONE))
                .collect(),
            Indexed::OneHot { classes } => vec![(0, Extent::fixed(*classes))],
            Indexed::Extreme { .. }
            | Indexed::ArgExtreme { .. }
            | Indexed::Truth { .. }
            | Indexed::TopK { .. }
            | Indexed::Sort { .. }
            | Indexed::ArgSort { .. }
            | Indexed::Histogram { .. }
            | Indexed::RepeatInterleave { .. }
            | Indexed::CumulativeSum { .. }
            | Indexed::Triangle { .. } => Vec::new(),
        }
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        eager.indexed(self, operands, context.results)
    }
}

/// The second operand, of positions along a dimension; a number has one of its own.
pub(in crate::ops) fn along(shape: &[Extent], dim: usize) -> Vec<(usize, Extent)> {
    vec![(1, shape.get(dim).copied().unwrap_or(Extent::ONE))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(values: &[u64]) -> Vec<Extent> {
        values.iter().map(|n| Extent::fixed(*n)).collect()
    }

    #[test]
    fn looked_up_elements_stand_where_their_dimensions_were() {
        let x = fixed(&[4, 5, 6, 7]);
        let (rows, columns) = (fixed(&[3, 1]), fixed(&[2]));
        let at = |marked: &[bool]| looked_up(&x, marked, &[rows.clone(), columns.clone()]).unwrap();

        assert_eq!(at(&[false, true, true]), fixed(&[4, 3, 2, 7]));
        assert_eq!(at(&[true, false, true]), fixed(&[3, 2, 5, 7]));
    }
}
