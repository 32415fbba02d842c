//! Operators whose results are as long as values decide.

mod cub;
mod kernel;
mod run;

pub use kernel::Beyond;

use crate::ops::prelude::*;

/// Operators by their names. `rows` is how many elements are taken to be chosen.
pub(super) const ATEN: &[(&str, Reader)] = &[
    // The places of elements that are not zero.
    ("aten.nonzero.default aten.argwhere.default", |args| {
        let nonzero = Function {
            name: "nonzero",
            arguments: args.rows(elements(args, "self")?),
            infer: |rows, x| {
                let rank = Extent::fixed(x[0].1.len() as u64);
                Ok(vec![(DType::Int64, vec![*rows, rank])])
            },
            run: |rows, eager, x, _| Ok(vec![eager.nonzero(&x[0], *rows, Beyond::Repeat)]),
        };
        Ok(nonzero.on(args.all(&["self"])?))
    }),
    ("aten.nonzero_numpy.default", |args| places(args, "self")),
    ("aten.where.default", |args| places(args, "condition")),
    ("aten.masked_select.default", |args| {
        let operands = args.all(&["self", "mask"])?;
        let shapes = [args.shape(operands[0]), args.shape(operands[1])];
        let select = Function {
            name: "masked_select",
            arguments: args.rows(numel(&broadcast(&shapes[0], &shapes[1])?)),
            infer: |rows, x| Ok(vec![(x[0].0, vec![*rows])]),
            run: |rows, eager, x, _| Ok(vec![eager.masked_select(&x[0], &x[1], *rows)?]),
        };
        Ok(select.on(operands))
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
        let bincount = Function {
            name: "bincount",
            arguments: known.ok_or(
                "it counts up to the largest element, which values decide; give it a minlength that is one more",
            )?,
            infer: |rows, _| Ok(vec![(DType::Int64, vec![*rows])]),
            run: |rows, eager, x, _| Ok(vec![eager.bincount(&x[0], *rows)]),
        };
        Ok(bincount.on(args.all(&["self"])?))
    }),
    // How often each element along a dimension.
    ("aten.repeat_interleave.self_Tensor", |args| {
        let operands = args.all(&["self", "repeats"])?;
        let rank = args.shape(operands[0]).len();
        let dim = match (args.has("dim"), rank) {
            (true, _) => args.dim("dim", None, rank)?,
            (false, 1) => 0,
            (false, _) => return Err(format!("it flattens {rank} dimensions")),
        };
        let repeat = Function {
            name: "repeat_interleave",
            arguments: (repeated(args)?, dim),
            infer: |(rows, dim), x| {
                let mut shape = x[0].1.clone();
                let length = shape.get_mut(*dim);
                *length.ok_or_else(|| format!("no dimension {dim} in {:?}", x[0].1))? = *rows;
                Ok(vec![(x[0].0, shape)])
            },
            run: |(rows, dim), eager, x, _| {
                let places = eager.repeated_places(&x[1], *rows);
                Ok(vec![eager.index_select(&x[0], &places, *dim)?])
            },
        };
        Ok(repeat.on(operands))
    }),
    // Of the repetitions alone, the positions that it takes.
    ("aten.repeat_interleave.Tensor", |args| {
        let places = Function {
            name: "repeat_interleave",
            arguments: repeated(args)?,
            infer: |rows, x| Ok(vec![(x[0].0, vec![*rows])]),
            run: |rows, eager, x, _| Ok(vec![eager.repeated_places(&x[0], *rows)]),
        };
        Ok(places.on(args.all(&["repeats"])?))
    }),
];

/// The same as `nonzero`, one tensor for each dimension.
fn places(args: &Arguments<'_>, condition: &str) -> Result<Read, String> {
    let places = Function {
        name: "where",
        arguments: args.rows(elements(args, condition)?),
        infer: |rows, x| Ok(vec![(DType::Int64, vec![*rows]); x[0].1.len()]),
        run: |rows, eager, x, _| Ok(eager.places(&x[0], *rows, Beyond::Repeat)),
    };
    Ok(places.on(args.all(&[condition])?))
}

/// How many elements an argument has.
fn elements(args: &Arguments<'_>, name: &str) -> Result<Extent, String> {
    Ok(numel(&args.shape(args.tensor(name)?)))
}

/// Distinct elements, then for each element which it is, then how many there are of each, where that is asked for.
fn unique(args: &Arguments<'_>) -> Result<Read, String> {
    args.absent("dim")?;
    let sorts = !args.target.contains("consecutive");
    let rows = args.rows(elements(args, "self")?);
    let more = [
        args.flag("return_inverse", false)?,
        args.flag("return_counts", false)?,
    ];
    let unique = Function {
        name: "unique",
        arguments: (rows, more, sorts),
        infer: |&(rows, [inverse, counts], _), x| {
            let of = |there: bool, shape: Vec<Extent>| {
                let nothing = vec![Extent::ZERO];
                (DType::Int64, if there { shape } else { nothing })
            };
            let of_each = of(inverse, x[0].1.clone());
            Ok(vec![(x[0].0, vec![rows]), of_each, of(counts, vec![rows])])
        },
        run: |&(rows, more, sorts), eager, x, _| Ok(eager.unique(&x[0], rows, more, sorts)),
    };
    Ok(unique.on(args.all(&["self"])?))
}

/// How many elements there are after `repeat_interleave`.
fn repeated(args: &Arguments<'_>) -> Result<Extent, String> {
    use crate::aten::Length;
    match args.length("output_size")? {
        Some(Length::Number(count)) => u64::try_from(count)
            .map(Extent::fixed)
            .map_err(|_| format!("its argument \"output_size\" is {count}")),
        Some(Length::Batched(count)) => Ok(count),
        None => {
            args.known_rows().ok_or_else(|| {
                "it repeats elements as often as values say, and nothing says how many there are then; give it an \
                 output_size, or let the model's code check the result, as in torch._check(y.shape[0] <= 512)"
                    .to_owned()
            })
        }
    }
}
