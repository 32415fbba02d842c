//! Operators whose results are as long as values decide.

mod cub;
mod kernel;
mod run;

pub use kernel::Beyond;

use serde::Serialize;

use super::{Context, Operator, Reader};
use crate::aten::Arguments;
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{DType, Extent, Mismatch, Type, numel};

/// Which operator. `rows` is how many elements are taken to be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum DataDependent {
    /// `nonzero(self)`, `argwhere`: the places of elements that are not zero.
    Nonzero {
        /// How many.
        rows: Extent,
    },
    /// `where(condition)`: the same, one tensor for each dimension.
    Where {
        /// How many.
        rows: Extent,
    },
    /// `masked_select(self, mask)`.
    MaskedSelect {
        /// How many.
        rows: Extent,
    },
    /// `unique(self)`: distinct elements, then for each element which it is, then how many there are of each.
    Unique {
        /// How many are distinct.
        rows: Extent,
        /// Whether the second result has elements.
        inverse: bool,
        /// Whether the third result has elements.
        counts: bool,
        /// Whether equal elements are neighbours already.
        consecutive: bool,
    },
    /// `bincount(self)`.
    Bincount {
        /// One more than the largest element, or as many as were asked for.
        rows: Extent,
    },
    /// `repeat_interleave(self, repeats)`: how often each element along a dimension; of `repeats` alone, the
    /// positions that it takes.
    Repeat {
        /// How many there are after that.
        rows: Extent,
        /// Along which dimension; positions if none.
        dim: Option<usize>,
        /// Whether the caller said how many.
        given: bool,
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.nonzero.default aten.argwhere.default", |args| {
        let rows = args.rows(elements(args, "self")?);
        Ok((DataDependent::Nonzero { rows }.into(), args.all(&["self"])?))
    }),
    ("aten.nonzero_numpy.default", |args| {
        let rows = args.rows(elements(args, "self")?);
        Ok((DataDependent::Where { rows }.into(), args.all(&["self"])?))
    }),
    ("aten.where.default", |args| {
        let rows = args.rows(elements(args, "condition")?);
        let operands = args.all(&["condition"])?;
        Ok((DataDependent::Where { rows }.into(), operands))
    }),
    ("aten.masked_select.default", |args| {
        let operands = args.all(&["self", "mask"])?;
        let shapes = [args.shape(operands[0]), args.shape(operands[1])];
        let rows = args.rows(numel(&crate::shape::broadcast(&shapes[0], &shapes[1])?));
        Ok((DataDependent::MaskedSelect { rows }.into(), operands))
    }),
    (
        "aten._unique2.default aten._unique.default aten.unique_consecutive.default",
        unique,
    ),
    ("aten.bincount.default", |args| {
        args.absent("weights")?;
        let least = Extent::fixed(args.count("minlength", Some(0))?);
        let known = match args.known_rows() {
            Some(rows) => rows.larger(least),
            None => (least != Extent::ZERO).then_some(least),
        };
        let rows = known.ok_or(
            "it counts up to the largest element, which values decide; give it a minlength that is one more",
        )?;
        Ok((
            DataDependent::Bincount { rows }.into(),
            args.all(&["self"])?,
        ))
    }),
    ("aten.repeat_interleave.self_Tensor", |args| {
        let operands = args.all(&["self", "repeats"])?;
        let rank = args.shape(operands[0]).len();
        let dim = match (args.has("dim"), rank) {
            (true, _) => args.dim("dim", None, rank)?,
            (false, 1) => 0,
            (false, _) => return Err(format!("it flattens {rank} dimensions")),
        };
        let (rows, given) = repeated(args)?;
        let dim = Some(dim);
        Ok((DataDependent::Repeat { rows, dim, given }.into(), operands))
    }),
    ("aten.repeat_interleave.Tensor", |args| {
        let (rows, given) = repeated(args)?;
        let op = DataDependent::Repeat {
            rows,
            dim: None,
            given,
        };
        Ok((op.into(), args.all(&["repeats"])?))
    }),
];

/// How many elements an argument has.
fn elements(args: &Arguments<'_>, name: &str) -> Result<Extent, String> {
    Ok(numel(&args.shape(args.tensor(name)?)))
}

fn unique(args: &Arguments<'_>) -> Result<super::Read, String> {
    args.absent("dim")?;
    let consecutive = args.target.contains("consecutive");
    let op = DataDependent::Unique {
        rows: args.rows(elements(args, "self")?),
        inverse: args.flag("return_inverse", false)?,
        counts: args.flag("return_counts", false)?,
        consecutive,
    };
    Ok((op.into(), args.all(&["self"])?))
}

fn repeated(args: &Arguments<'_>) -> Result<(Extent, bool), String> {
    use crate::aten::Length;
    match args.length("output_size")? {
        Some(Length::Number(count)) => u64::try_from(count)
            .map(|count| (Extent::fixed(count), true))
            .map_err(|_| format!("its argument \"output_size\" is {count}")),
        Some(Length::Batched(count)) => Ok((count, true)),
        None => {
            let rows = args.known_rows().ok_or(
                "it repeats elements as often as values say, and nothing says how many there are then; give it an \
                 output_size, or let the model's code check the result, as in torch._check(y.shape[0] <= 512)",
            )?;
            Ok((rows, false))
        }
    }
}

impl Operator for DataDependent {
    fn name(&self) -> &'static str {
        match self {
            DataDependent::Nonzero { .. } => "nonzero",
            DataDependent::Where { .. } => "where",
            DataDependent::MaskedSelect { .. } => "masked_select",
            DataDependent::Unique { .. } => "unique",
            DataDependent::Bincount { .. } => "bincount",
            DataDependent::Repeat { .. } => "repeat_interleave",
        }
    }

    fn arity(&self) -> (usize, usize) {
        match self {
            DataDependent::MaskedSelect { .. } | DataDependent::Repeat { dim: Some(_), .. } => {
                (2, 2)
            }
            DataDependent::Nonzero { .. }
            | DataDependent::Where { .. }
            | DataDependent::Unique { .. }
            | DataDependent::Bincount { .. }
            | DataDependent::Repeat { dim: None, .. } => (1, 1),
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let places = |rows: &Extent| (DType::Int64, vec![*rows]);
        Ok(match self {
            DataDependent::Nonzero { rows } => {
                let rank = Extent::fixed(x.len() as u64);
                vec![(DType::Int64, vec![*rows, rank])]
            }
            DataDependent::Where { rows } => x.iter().map(|_| places(rows)).collect(),
            DataDependent::MaskedSelect { rows } => vec![(*dtype, vec![*rows])],
            DataDependent::Unique {
                rows,
                inverse,
                counts,
                ..
            } => {
                let of = |there: bool, shape: Vec<Extent>| {
                    let nothing = vec![Extent::ZERO];
                    (DType::Int64, if there { shape } else { nothing })
                };
                vec![
                    (*dtype, vec![*rows]),
                    of(*inverse, x.clone()),
                    of(*counts, vec![*rows]),
                ]
            }
            DataDependent::Bincount { rows } => vec![places(rows)],
            DataDependent::Repeat { rows, dim, .. } => match dim {
                None => vec![(*dtype, vec![*rows])],
                Some(dim) => {
                    let mut shape = x.clone();
                    let length = shape.get_mut(*dim);
                    *length.ok_or_else(|| format!("no dimension {dim} in {x:?}"))? = *rows;
                    vec![(*dtype, shape)]
                }
            },
        })
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let x = &operands[0];
        Ok(match self {
            DataDependent::Nonzero { rows } => vec![eager.nonzero(x, *rows, Beyond::Repeat)],
            DataDependent::Where { rows } => eager.places(x, *rows, Beyond::Repeat),
            DataDependent::MaskedSelect { rows } => {
                vec![eager.masked_select(x, &operands[1], *rows)?]
            }
            DataDependent::Unique {
                rows,
                inverse,
                counts,
                consecutive,
            } => eager.unique(x, *rows, [*inverse, *counts], !*consecutive),
            DataDependent::Bincount { rows } => vec![eager.bincount(x, *rows)],
            DataDependent::Repeat {
                rows,
                dim: None,
                given,
            } => {
                vec![eager.repeated_places(x, *rows, *given)]
            }
            DataDependent::Repeat {
                rows,
                dim: Some(dim),
                given,
            } => {
                let places = eager.repeated_places(&operands[1], *rows, *given);
                vec![eager.index_select(x, &places, *dim)?]
            }
        })
    }
}
