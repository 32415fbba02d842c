//! Reading elementwise operators.

use super::row::Row;
use super::table::TABLE;
use super::{Elementwise, Operand};
use crate::ops::prelude::*;

rows!(TABLE: Row, read by read);

/// The row of an operator, and its name as the row has it.
pub(super) fn find(target: &str) -> Option<(&'static str, &'static Row)> {
    let (target, row) = ROWS.get_key_value(target)?;
    Some((target, row))
}

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    if find(args.target).is_none() {
        return Err("it is in no table of elementwise operators".into());
    }
    if let Some(complex) = crate::ops::complex::of_complex(args) {
        return complex;
    }
    let mut op = Elementwise::of(args.target);
    let mut tensors = Vec::new();
    for (operand, name) in op.operands.iter_mut().zip(&op.row.operands) {
        if !args.has(name) {
            *operand = Operand::Missing;
        } else if let Some(number) = args.attribute(name)? {
            *operand = Operand::Number(number);
        } else {
            tensors.push(args.tensor(name)?);
        }
    }
    for name in &op.row.attributes {
        if let Some(value) = args.attribute(name)? {
            op = op.with(name, value);
        }
    }
    if tensors.is_empty() {
        return Err("it reads no tensor".into());
    }
    if op.placement() == Placement::InPlace && op.operands[0] != Operand::Tensor {
        return Err("it writes over a number".into());
    }
    Ok((op.into(), tensors))
}
