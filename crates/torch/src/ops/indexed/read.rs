//! Reading look-ups and what writes at looked-up places.

use super::Indexed;
use crate::ops::prelude::*;

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[(
    "aten.gather.default aten.index.Tensor aten.index_add.default aten.index_add_.default aten.index_put.default \
     aten.index_put_.default aten.index_select.default aten.scatter.src aten.scatter.value aten.scatter_.src aten.scatter_.value \
     aten.scatter_add.default aten.scatter_add_.default",
    read,
)];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    let target = args.target;
    let input = args.tensor("self")?;
    let dim = || args.dim("dim", None, args.shape(input).len());
    let mut operands = vec![input];
    let indexed = match target {
        "aten.gather.default" => {
            operands.push(args.tensor("index")?);
            Indexed::Gather { dim: dim()? }
        }
        "aten.index.Tensor" => {
            let indices = args.optional_tensors("indices")?;
            operands.extend(indices.iter().flatten());
            let (marked, rows) = marks(args, &indices);
            match rows {
                None => Indexed::Index(marked),
                Some(rows) => Indexed::IndexMasked { marked, rows },
            }
        }
        "aten.index_select.default" => {
            operands.push(args.tensor("index")?);
            Indexed::Select { dim: dim()? }
        }
        "aten.index_put.default" | "aten.index_put_.default" => {
            let indices = args.optional_tensors("indices")?;
            operands.extend(indices.iter().flatten());
            operands.push(args.tensor("values")?);
            let (marked, rows) = marks(args, &indices);
            // A node that makes no rows does not say how many places it writes to: as many as it has values.
            let written = args.shape(operands[operands.len() - 1]);
            let rows = match written.first() {
                Some(count) if *count != Extent::ONE && rows.is_some() => {
                    let dims = marked.iter().rev().skip_while(|marked| !**marked).count();
                    let rest = args.shape(input).len().saturating_sub(dims);
                    if written.len() > rest {
                        Some(*count)
                    } else {
                        rows
                    }
                }
                _ => rows,
            };
            Indexed::Put {
                accumulate: args.flag("accumulate", false)?,
                fresh: !target.contains("_."),
                marked,
                rows,
            }
        }
        "aten.index_add.default" | "aten.index_add_.default" => {
            operands.push(args.tensor("index")?);
            operands.push(args.tensor("source")?);
            Indexed::Add {
                dim: dim()?,
                fresh: !target.contains("_."),
                alpha: Some(args.number_or("alpha", 1.0)?)
                    .filter(|_| args.always("alpha", 1.0).is_err()),
            }
        }
        "aten.scatter.src"
        | "aten.scatter.value"
        | "aten.scatter_.src"
        | "aten.scatter_.value"
        | "aten.scatter_add.default"
        | "aten.scatter_add_.default" => {
            operands.push(args.tensor("index")?);
            operands.extend(args.optional_tensor("src")?);
            Indexed::Scatter {
                dim: dim()?,
                adds: target.contains("scatter_add"),
                value: args.if_given("value", |name| args.number(name))?,
                in_place: target.contains("_."),
            }
        }
        other => return Err(format!("{other} looks nothing up")),
    };
    Ok((indexed.into(), operands))
}

/// The dimensions that are looked up in, and how many places truth values may choose.
fn marks(args: &Arguments<'_>, indices: &[Option<ValueId>]) -> (Vec<bool>, Option<Extent>) {
    let mut marked = Vec::new();
    let mut most: Option<Extent> = None;
    for index in indices {
        match index.map(|index| args.typed(index)) {
            None => marked.push(false),
            Some((DType::Bool, shape)) => {
                marked.extend(shape.iter().map(|_| true));
                most = most.or(Some(numel(&shape)));
            }
            Some(_) => marked.push(true),
        }
    }
    (marked, most.map(|most| args.rows(most)))
}
