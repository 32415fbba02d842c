//! The tables: one row for each elementwise operator.

mod activation;
mod arithmetic;
mod choices;
mod comparison;
mod fill;
mod formulas;
mod unary;

use super::row::Row;

/// All of them.
pub(super) const TABLES: &[&[Row]] = &[
    activation::ROWS,
    arithmetic::ROWS,
    comparison::ROWS,
    fill::ROWS,
    unary::ROWS,
    #[cfg(test)]
    super::tests::ROWS,
];
