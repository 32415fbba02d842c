//! Reading elementwise operators.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::row::Row;
use super::table::TABLES;
use super::{Elementwise, Operand};
use crate::aten::Arguments;
use crate::ops::{Read, Reader};
use crate::program::Placement;

/// How many operators the tables name.
const COUNT: usize = {
    let mut count = 0;
    let mut table = 0;
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            count += TABLES[table][row].aten.len();
            row += 1;
        }
        table += 1;
    }
    count
};

/// Operators by their names.
pub(in crate::ops) const ATEN: &[(&str, Reader)] = &{
    let mut list: [(&str, Reader); COUNT] = [("", read); COUNT];
    let mut filled = 0;
    let mut table = 0;
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            let aten = TABLES[table][row].aten;
            let mut name = 0;
            while name < aten.len() {
                list[filled].0 = aten[name];
                filled += 1;
                name += 1;
            }
            row += 1;
        }
        table += 1;
    }
    list
};

/// Rows by the names of their operators.
static ROWS: LazyLock<BTreeMap<&'static str, &'static Row>> = LazyLock::new(|| {
    let rows = TABLES.iter().copied().flatten();
    rows.flat_map(|row| row.aten.iter().map(move |name| (*name, row)))
        .collect()
});

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
    for (operand, name) in op.operands.iter_mut().zip(op.row.operands) {
        if !args.has(name) {
            *operand = Operand::Missing;
        } else if let Some(number) = args.attribute(name)? {
            *operand = Operand::Number(number);
        } else {
            tensors.push(args.tensor(name)?);
        }
    }
    for name in op.row.attributes {
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
