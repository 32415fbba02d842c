//! The rows in memory, and what they are found by.

use std::collections::HashSet;
use std::sync::Arc;

use super::result_index::{FACETS, FilterColumn, RecommendationPage};
use super::row::{PackedRow, TextId, TextTable};
use super::stale::CurrentGpus;
use super::{RecommendationFilter, StoredRecommendation};
use crate::outcome::Lessons;

/// How many rows are compared at a time: a few kilobytes of each column, and few in vain where a page is full before.
const BLOCK: usize = 1024;

/// The rows, and what they are found by; each column has as many values as there are rows.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// In the order of their ids, which is that of time.
    pub(super) rows: Vec<PackedRow>,
    numbers: Vec<i64>,
    pub(super) values: [Vec<TextId>; FACETS],
    /// Pages that are being written share them.
    pub(super) texts: Arc<TextTable>,
    /// What answers of today are made with.
    pub(super) present: Arc<CurrentGpus>,
    /// The place in the database up to which this is current.
    pub(super) current: Current,
    /// How many rows were dropped since all were read.
    pub(super) dropped: usize,
}

/// What has happened to the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Current {
    /// The largest number of a row.
    pub(super) newest: i64,
    /// How many rows were ever dropped.
    pub(super) gone: i64,
}

impl Columns {
    pub(super) fn add(&mut self, number: i64, row: &StoredRecommendation) {
        let place = match self.rows.last() {
            Some(last) if last.id() >= row.id.as_str() => match self.search(&row.id) {
                Ok(_there) => return,
                Err(place) => place,
            },
            Some(_) | None => self.rows.len(),
        };
        CurrentGpus::see(&mut self.present, row);
        let texts = Arc::make_mut(&mut self.texts);
        self.rows.insert(place, PackedRow::pack(row, texts));
        self.numbers.insert(place, number);
        let limit_bytes = row.limit_bytes.to_string();
        let world_size = row.world_size.to_string();
        let values: [(FilterColumn, &str); FACETS] = [
            (FilterColumn::Device, &row.device),
            (FilterColumn::Gpu, &row.gpu),
            (FilterColumn::Precision, &row.precision),
            (
                FilterColumn::Optimizer,
                row.optimizer.as_deref().unwrap_or(""),
            ),
            (FilterColumn::Checkpointing, &row.checkpointing),
            (FilterColumn::Evidence, &row.evidence),
            (FilterColumn::LimitBytes, &limit_bytes),
            (FilterColumn::WorldSize, &world_size),
            (FilterColumn::Model, &row.model),
            (FilterColumn::Objective, &row.objective),
            (FilterColumn::ModelDigest, &row.model_digest),
        ];
        for (facet, text) in values {
            let word = texts.number(text);
            self.values[facet as usize].insert(place, word);
        }
    }

    /// Where a row is, or would be.
    fn search(&self, id: &str) -> Result<usize, usize> {
        self.rows.binary_search_by(|row| row.id().cmp(id))
    }

    pub(super) fn get(&self, id: &str) -> Option<StoredRecommendation> {
        let place = self.search(id).ok()?;
        Some(self.rows[place].unpack(&self.texts))
    }

    /// Those that are asked for, and the id of the last one where there are more; `None` where there is no row before which
    /// they are to be.
    pub(super) fn page(
        &self,
        filter: &RecommendationFilter,
        lessons: &Lessons,
    ) -> Option<RecommendationPage> {
        let end = match &filter.before {
            Some(before) => self.search(before).ok()?,
            None => self.rows.len(),
        };
        let mut wanted = Vec::with_capacity(filter.facets.len());
        for (facet, text) in &filter.facets {
            // No row has 0 there.
            let word = self.texts.find(text).unwrap_or(0);
            wanted.push((self.values[*facet as usize].as_slice(), word));
        }
        let mut matches = Matches::before(end, wanted);
        let page = matches.by_ref().take(filter.limit);
        let rows: Vec<PackedRow> = page.map(|row| self.rows[row].clone()).collect();
        let last = rows.last().map(|last| last.id().to_owned());
        Some(RecommendationPage {
            next: matches.next().and(last),
            rows,
            texts: Arc::clone(&self.texts),
            present: Arc::clone(&self.present),
            lessons: lessons.clone(),
        })
    }

    pub(super) fn drop_rows(&mut self, gone: &HashSet<i64>) {
        let is_kept: Vec<bool> = self
            .numbers
            .iter()
            .map(|number| !gone.contains(number))
            .collect();
        let before = self.rows.len();
        keep(&mut self.rows, &is_kept);
        keep(&mut self.numbers, &is_kept);
        for column in &mut self.values {
            keep(column, &is_kept);
        }
        self.dropped += before - self.rows.len();
    }
}

/// The places of the rows that have these values, newest first.
///
/// Rows are compared by the block, column after column, which processors do for eight and more at a time: where two frequent
/// values never meet, a million rows take one millisecond, and ten where each row is looked at by itself.
pub(super) struct Matches<'a> {
    wanted: Vec<(&'a [TextId], TextId)>,
    /// Rows from here on were compared.
    begin: usize,
    /// Places of the block that was compared last, the next one at the end.
    found: Vec<usize>,
}

impl<'a> Matches<'a> {
    fn before(end: usize, wanted: Vec<(&'a [TextId], TextId)>) -> Matches<'a> {
        Matches {
            wanted,
            begin: end,
            found: Vec::with_capacity(BLOCK),
        }
    }
}

impl Iterator for Matches<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        loop {
            if let Some(place) = self.found.pop() {
                return Some(place);
            }
            if self.begin == 0 {
                return None;
            }
            let end = self.begin;
            self.begin = end.saturating_sub(BLOCK);
            let mut marks = [true; BLOCK];
            let marks = &mut marks[..end - self.begin];
            for (column, word) in &self.wanted {
                for (mark, value) in marks.iter_mut().zip(&column[self.begin..end]) {
                    *mark &= value == word;
                }
            }
            if marks.contains(&true) {
                let marked = (self.begin..end).zip(&*marks);
                let marked = marked.filter(|(_, mark)| **mark);
                self.found.extend(marked.map(|(place, _)| place));
            }
        }
    }
}

/// Drops the values of the rows that are not kept.
fn keep<T>(values: &mut Vec<T>, is_kept: &[bool]) {
    let mut kept = is_kept.iter();
    values.retain(|_| *kept.next().expect("a column is as long as another"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_newest_first_in_blocks_of_any_length() {
        for rows in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let column = |of: usize| -> Vec<TextId> {
                let values = (0..rows).map(|row| TextId::try_from(row % of).unwrap());
                values.collect()
            };
            let (third, fifth) = (column(3), column(5));
            let wanted = vec![(third.as_slice(), 1), (fifth.as_slice(), 2)];
            for end in [0, rows / 2, rows] {
                let expected: Vec<usize> = (0..end).rev().filter(|row| row % 15 == 7).collect();

                let found: Vec<usize> = Matches::before(end, wanted.clone()).collect();

                assert_eq!(found, expected, "{end} of {rows}");
                let all: Vec<usize> = Matches::before(end, Vec::new()).collect();
                assert!(all.iter().copied().eq((0..end).rev()));
            }
        }
    }
}
