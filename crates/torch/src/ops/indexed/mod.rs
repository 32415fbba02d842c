//! Operations that look elements up by position, write there, sort or choose among them.

pub(in crate::ops) mod along;
mod extremes;
mod kernel;
mod ordering;
mod read;
mod run;
pub(in crate::ops) mod search;
mod writing;

pub(super) use read::ATEN;

use crate::ops::prelude::*;

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
}

/// A shape without these dimensions, or with lengths of one in their place.
pub(in crate::ops) fn reduced(x: &[Extent], dims: &[usize], keep: bool) -> Vec<Extent> {
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
        match self {
            Indexed::Gather { .. } => "gather",
            Indexed::Index(_) | Indexed::IndexMasked { .. } => "index",
            Indexed::Select { .. } => "index_select",
            Indexed::Put { .. } => "index_put_",
            Indexed::Add { .. } => "index_add",
            Indexed::Scatter { .. } => "scatter",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = (operands[0].0, &operands[0].1);
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
                vec![(dtype, along::with(x, *dim, |_| length)?)]
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
            Indexed::Add { .. } | Indexed::Scatter { .. } => vec![(dtype, x.clone())],
        })
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
