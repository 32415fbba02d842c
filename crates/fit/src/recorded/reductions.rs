//! Which sum over rows asked for scratch memory: the gradients of biases, mostly.
//!
//! How many blocks share a sum follows from its lengths and the card, up to a bound that recordings of small batches do
//! not show. The lengths follow from the sizes of the result and of what is in use beside it.

use super::form::Point;
use super::scratch::InUse;
use crate::device::sim::CARDS;
use crate::ops::scratch_of_columns;
use crate::program::Capability;

/// Bytes of an element of what is summed, or of a sum.
const ELEMENTS: [u64; 2] = [4, 2];

/// Longest sums and most columns of them: far above what fits a card, far below where sizes overflow.
const MOST_ROWS: u64 = 1 << 30;
const MOST_COLUMNS: u64 = 1 << 24;

/// Bytes of a row of each sample of a batch, of a matrix that may be summed.
fn row(columns: u64, size: u64, batch: u64) -> Option<u64> {
    let is_sensible = (1..=MOST_COLUMNS).contains(&columns);
    (columns * size).checked_mul(batch).filter(|_| is_sensible)
}

/// A sum over the rows of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RowSum {
    card: Capability,
    columns: u64,
    rows_per_sample: u64,
}

impl RowSum {
    /// The sum with a result of this size that takes a buffer and semaphores of these sizes, if there is one whose
    /// operand is in use.
    pub(super) fn find(
        result: u64,
        [buffer, semaphores]: [&[Point]; 2],
        in_use: &InUse,
    ) -> Option<RowSum> {
        let last = buffer.last()?;
        let fits = |sum: &RowSum| {
            buffer.iter().zip(semaphores).all(|(buffer, semaphores)| {
                buffer.batch == semaphores.batch
                    && sum.at(buffer.batch) == [buffer.bytes, semaphores.bytes]
            })
        };
        for columns in ELEMENTS.map(|size| result / size) {
            let lengths = ELEMENTS.iter().flat_map(|size| {
                let row = row(columns, *size, last.batch).unwrap_or(u64::MAX);
                let operands = in_use.keys().filter(move |bytes| bytes.is_multiple_of(row));
                operands.map(move |bytes| bytes / row)
            });
            let mut lengths: Vec<u64> = lengths.collect();
            lengths.sort_unstable();
            lengths.dedup();
            let of = |rows_per_sample: &u64| {
                let mut cards = CARDS.iter().map(|card| RowSum {
                    card: card.capability,
                    columns,
                    rows_per_sample: *rows_per_sample,
                });
                cards.find(fits)
            };
            if let Some(found) = lengths.iter().find_map(of) {
                return Some(found);
            }
        }
        None
    }

    /// The sum that the gradient of a linear layer's bias is, by the sizes of the gradients of weight and bias, if what
    /// it sums and what the weight was multiplied with are in use, and it takes nothing at these batches.
    ///
    /// Small batches take no scratch memory, so that recordings of them do not show it.
    pub(super) fn of_bias(
        card: Capability,
        [weight, bias]: [u64; 2],
        batches: &[u64],
        in_use: &InUse,
    ) -> Option<RowSum> {
        let (last, features) = (*batches.last()?, weight / bias);
        if !weight.is_multiple_of(bias) || features < 2 {
            return None;
        }
        let rows = ELEMENTS.iter().flat_map(|size| {
            let columns = bias / size;
            let row = row(columns, *size, last).unwrap_or(u64::MAX);
            let is_read = move |rows: &u64| {
                let read = rows
                    .checked_mul(last)
                    .and_then(|rows| rows.checked_mul(features * size));
                read.is_some_and(|read| in_use.contains_key(&read))
            };
            let operands = in_use.keys().filter(move |bytes| bytes.is_multiple_of(row));
            let rows = operands.map(move |bytes| bytes / row).filter(is_read);
            rows.map(move |rows_per_sample| RowSum {
                card,
                columns,
                rows_per_sample,
            })
        });
        let takes_nothing = |sum: &RowSum| batches.iter().all(|batch| sum.at(*batch) == [0, 0]);
        rows.filter(takes_nothing)
            .min_by_key(|sum| sum.rows_per_sample)
    }

    /// The card whose rules it follows.
    pub(super) fn card(&self) -> Capability {
        self.card
    }

    /// Bytes of the buffer and of the semaphores.
    pub(super) fn at(&self, batch: u64) -> [u64; 2] {
        let rows = self.rows_per_sample.saturating_mul(batch).min(MOST_ROWS);
        let scratch = scratch_of_columns(&self.card, self.columns, rows);
        [scratch.buffer, scratch.semaphores]
    }
}
