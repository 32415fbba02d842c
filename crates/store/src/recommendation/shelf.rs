//! All recommendations, in memory.
//!
//! # Note [Any filter]
//!
//! Filters combine as their users like, so no index of the database serves all of them: two columns whose values are
//! frequent each and never occur together would have it read every row. And a page of a filter is in as many places of
//! the file as it has rows. So the rows are kept in memory, packed, and beside them what can be filtered, by column, each
//! value as a number: 270 bytes a row in all (`tests/service/load.py`, rows without times; 30 more with them). To look through 100,000 rows takes some tens of microseconds.
//!
//! A row never changes. Rows may be written and dropped by other processes too: each has a number, in the order in which
//! they were stored, and the numbers of those that are gone are kept for a while (`migrations/0022`). Every list first
//! reads what is new of both; whoever asks for one row does so once a [`FRESH`].

use crate::text::by_name;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::row::{Row, Word, Words};
use super::stale::Present;
use super::{RecommendationFilter, StoredHeadroom, StoredRecommendation};
use crate::engine::ask;
use crate::outcome::{Lessons, share};
use crate::{Db, StoreError, Time, asking};

/// How many rows are read at a time.
const AT_A_TIME: i64 = 1000;

/// How long a row is taken to be there without a look: another process may have dropped it.
const FRESH: Duration = Duration::from_secs(1);

/// How many rows are compared at a time: a few kilobytes of each column, and few in vain where a page is full before.
const BLOCK: usize = 1024;

/// Rows that are dropped from memory, before all are read anew, beside as many as there are: texts that no row has any
/// more are not dropped with them.
const MANY_GONE: usize = 1000;

/// A column that can be filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a member of `StoredRecommendation`")]
pub enum Facet {
    Device,
    Gpu,
    Precision,
    Optimizer,
    Checkpointing,
    Evidence,
    LimitBytes,
    WorldSize,
    Model,
    Objective,
    ModelDigest,
}

/// How many columns there are.
pub(super) const FACETS: usize = 11;

/// A page of recommendations, packed.
#[derive(Debug)]
pub struct RecommendationPage {
    rows: Vec<Row>,
    words: Arc<Words>,
    present: Arc<Present>,
    lessons: Lessons,
    /// The id of the last one, where there are more.
    pub next: Option<String>,
}

impl RecommendationPage {
    /// The recommendations, newest first.
    pub fn items(&self) -> impl ExactSizeIterator<Item = StoredRecommendation> {
        self.rows
            .iter()
            .map(|row| self.present.marked(row.unpack(&self.words), &self.lessons))
    }
}

/// All recommendations. Cloning it shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shelf {
    columns: Arc<RwLock<Columns>>,
    /// One reads what is new at a time; the others wait for it.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// When somebody last looked for what is new.
    looked: Arc<Mutex<Option<Instant>>>,
}

/// The rows, and what they are found by; each column has as many values as there are rows.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// In the order of their ids, which is that of time.
    pub(super) rows: Vec<Row>,
    numbers: Vec<i64>,
    pub(super) values: [Vec<Word>; FACETS],
    /// Pages that are being written share them.
    pub(super) words: Arc<Words>,
    /// What answers of today are made with.
    pub(super) present: Arc<Present>,
    /// The place in the database up to which this is current.
    current: Current,
    /// How many rows were dropped since all were read.
    dropped: usize,
}

/// What has happened to the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Current {
    /// The largest number of a row.
    newest: i64,
    /// How many rows were ever dropped.
    gone: i64,
}

impl Columns {
    fn add(&mut self, number: i64, row: &StoredRecommendation) {
        let place = match self.rows.last() {
            Some(last) if last.id() >= row.id.as_str() => match self.search(&row.id) {
                Ok(_there) => return,
                Err(place) => place,
            },
            Some(_) | None => self.rows.len(),
        };
        Present::see(&mut self.present, row);
        let words = Arc::make_mut(&mut self.words);
        self.rows.insert(place, Row::pack(row, words));
        self.numbers.insert(place, number);
        let limit_bytes = row.limit_bytes.to_string();
        let world_size = row.world_size.to_string();
        let values: [(Facet, &str); FACETS] = [
            (Facet::Device, &row.device),
            (Facet::Gpu, &row.gpu),
            (Facet::Precision, &row.precision),
            (Facet::Optimizer, row.optimizer.as_deref().unwrap_or("")),
            (Facet::Checkpointing, &row.checkpointing),
            (Facet::Evidence, &row.evidence),
            (Facet::LimitBytes, &limit_bytes),
            (Facet::WorldSize, &world_size),
            (Facet::Model, &row.model),
            (Facet::Objective, &row.objective),
            (Facet::ModelDigest, &row.model_digest),
        ];
        for (facet, text) in values {
            let word = words.number(text);
            self.values[facet as usize].insert(place, word);
        }
    }

    /// Where a row is, or would be.
    fn search(&self, id: &str) -> Result<usize, usize> {
        self.rows.binary_search_by(|row| row.id().cmp(id))
    }

    fn get(&self, id: &str) -> Option<StoredRecommendation> {
        let place = self.search(id).ok()?;
        Some(self.rows[place].unpack(&self.words))
    }

    /// Those that are asked for, and the id of the last one where there are more; `None` where there is no row before which
    /// they are to be.
    fn page(&self, filter: &RecommendationFilter, lessons: &Lessons) -> Option<RecommendationPage> {
        let end = match &filter.before {
            Some(before) => self.search(before).ok()?,
            None => self.rows.len(),
        };
        let mut wanted = Vec::with_capacity(filter.facets.len());
        for (facet, text) in &filter.facets {
            // No row has 0 there.
            let word = self.words.find(text).unwrap_or(0);
            wanted.push((self.values[*facet as usize].as_slice(), word));
        }
        let mut matches = Matches::before(end, wanted);
        let page = matches.by_ref().take(filter.limit);
        let rows: Vec<Row> = page.map(|row| self.rows[row].clone()).collect();
        let last = rows.last().map(|last| last.id().to_owned());
        Some(RecommendationPage {
            next: matches.next().and(last),
            rows,
            words: Arc::clone(&self.words),
            present: Arc::clone(&self.present),
            lessons: lessons.clone(),
        })
    }

    fn drop_rows(&mut self, gone: &HashSet<i64>) {
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
struct Matches<'a> {
    wanted: Vec<(&'a [Word], Word)>,
    /// Rows from here on were compared.
    begin: usize,
    /// Places of the block that was compared last, the next one at the end.
    found: Vec<usize>,
}

impl<'a> Matches<'a> {
    fn before(end: usize, wanted: Vec<(&'a [Word], Word)>) -> Matches<'a> {
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

impl Shelf {
    /// How many rows are in memory.
    pub(crate) fn rows(&self) -> usize {
        self.read().rows.len()
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Columns> {
        self.columns
            .read()
            .expect("nothing panics while it is held")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Columns> {
        self.columns
            .write()
            .expect("nothing panics while it is held")
    }

    /// Whether it is time to look for what is new. Says so to one who asks, not to all who do meanwhile.
    fn is_due(&self) -> bool {
        let mut looked = self.looked.lock().expect("nothing panics while it is held");
        let is_due = looked.is_none_or(|looked| looked.elapsed() >= FRESH);
        if is_due {
            *looked = Some(Instant::now());
        }
        is_due
    }
}

/// A row as the table has it.
struct Found {
    number: i64,
    id: String,
    fit_id: String,
    rank: i64,
    model: String,
    model_kind: String,
    device: String,
    gpu: String,
    precision: String,
    optimizer: Option<String>,
    optimizer_impl: Option<String>,
    checkpointing: String,
    mode: String,
    limit_bytes: i64,
    world_size: i64,
    micro_batch: i64,
    accumulation_steps: i64,
    global_batch: i64,
    max_batch: i64,
    max_batch_without_retries: i64,
    peak_allocated_bytes: i64,
    peak_reserved_bytes: i64,
    headroom_bytes: i64,
    limited_by: String,
    evidence: String,
    samples_per_second: Option<f64>,
    step_ms: Option<f64>,
    optimizer_step_ms: Option<f64>,
    speed_from: Option<String>,
    pareto: Option<bool>,
    objective: String,
    batchfit_version: String,
    created_at: Time,
    strategy: String,
    driver: Option<String>,
    cudnn: Option<String>,
    pytorch: String,
    rules: String,
    headroom_millionths: i64,
    headroom_from: String,
    headroom_outcomes: i64,
    model_digest: String,
}

by_name!(Found: number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries, peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, step_ms, optimizer_step_ms, speed_from, pareto, objective, batchfit_version, created_at, strategy, driver, cudnn, pytorch, rules, headroom_millionths, headroom_from, headroom_outcomes, model_digest);

/// What has happened to the tables.
struct Now {
    newest: i64,
    gone: i64,
    learnt: i64,
}

by_name!(Now: newest, gone, learnt);

impl Db {
    /// A recommendation. One that another process dropped may be there for a [`FRESH`] longer.
    pub async fn recommendation(
        &self,
        id: &str,
    ) -> Result<Option<StoredRecommendation>, StoreError> {
        if self.shelf.is_due() {
            self.read_recommendations().await?;
        }
        if let Some(row) = self.recommendation_in_memory(id) {
            return Ok(Some(row));
        }
        self.read_recommendations().await?;
        Ok(self.recommendation_in_memory(id))
    }

    fn recommendation_in_memory(&self, id: &str) -> Option<StoredRecommendation> {
        let columns = self.shelf.read();
        let row = columns.get(id)?;
        Some(columns.present.marked(row, &self.lessons))
    }

    /// A page of recommendations, newest first; `None` where there is no row `before` which they are to be.
    pub async fn recommendations(
        &self,
        filter: &RecommendationFilter,
    ) -> Result<Option<RecommendationPage>, StoreError> {
        self.read_recommendations().await?;
        Ok(self.shelf.read().page(filter, &self.lessons))
    }

    /// Reads the recommendations, as far as they are new: all of them, the first time.
    pub async fn read_recommendations(&self) -> Result<(), StoreError> {
        let (current, learnt) = self.recommendations_now().await?;
        self.read_learnt_up_to(learnt).await?;
        if self.shelf.read().current == current {
            return Ok(());
        }
        let _reading = self.shelf.reading.lock().await;
        // Whoever was here before may have read it all.
        let (current, _learnt) = self.recommendations_now().await?;
        let (known, is_stale) = {
            let columns = self.shelf.read();
            let is_stale = columns.dropped > MANY_GONE + columns.rows.len();
            (columns.current, is_stale)
        };
        if known == current {
            return Ok(());
        }
        let gone = self.recommendations_gone(known.gone).await?;
        let missed = current.gone - known.gone > i64::try_from(gone.len()).unwrap_or(i64::MAX);
        let mut newest = known.newest;
        let mut anew = None;
        if known.newest == 0 || is_stale || missed {
            newest = 0;
            anew = Some(Columns::default());
        } else if !gone.is_empty() {
            // This goes through all rows, while nobody reads them.
            self.shelf.write().drop_rows(&gone);
        }
        loop {
            let rows = self.recommendations_after(newest).await?;
            let Some((last, _)) = rows.last() else {
                break;
            };
            newest = *last;
            let mut kept;
            let columns = if let Some(anew) = &mut anew {
                anew
            } else {
                kept = self.shelf.write();
                &mut *kept
            };
            for (number, row) in &rows {
                columns.add(*number, row);
            }
        }
        let mut kept = self.shelf.write();
        if let Some(anew) = anew {
            *kept = anew;
        }
        kept.current = current;
        Ok(())
    }

    /// The rows after this one in the order in which they were stored, with their numbers.
    async fn recommendations_after(
        &self,
        number: i64,
    ) -> Result<Vec<(i64, StoredRecommendation)>, StoreError> {
        let rows = ask!(fetch_all Found, self.pool.on(), "SELECT number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl,
                      checkpointing, mode, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch,
                      max_batch, max_batch_without_retries, peak_allocated_bytes, peak_reserved_bytes, headroom_bytes,
                      limited_by, evidence, samples_per_second, step_ms, optimizer_step_ms, speed_from,
                      pareto, objective, batchfit_version, created_at, strategy,
                      driver, cudnn, pytorch, rules, headroom_millionths, headroom_from,
                      headroom_outcomes, model_digest
                 FROM recommendation WHERE number > $1 ORDER BY number LIMIT $2", number, AT_A_TIME)
        .map_err(asking("read recommendations"))?;
        let rows = rows.into_iter().map(|row| {
            let recommendation = StoredRecommendation {
                id: row.id,
                fit_id: row.fit_id,
                rank: row.rank,
                model: row.model,
                model_kind: row.model_kind,
                device: row.device,
                gpu: row.gpu,
                precision: row.precision,
                optimizer: row.optimizer,
                optimizer_impl: row.optimizer_impl,
                checkpointing: row.checkpointing,
                mode: row.mode,
                limit_bytes: row.limit_bytes,
                world_size: row.world_size,
                micro_batch: row.micro_batch,
                accumulation_steps: row.accumulation_steps,
                global_batch: row.global_batch,
                max_batch: row.max_batch,
                max_batch_without_retries: row.max_batch_without_retries,
                peak_allocated_bytes: row.peak_allocated_bytes,
                peak_reserved_bytes: row.peak_reserved_bytes,
                headroom_bytes: row.headroom_bytes,
                limited_by: row.limited_by,
                evidence: row.evidence,
                step_ms: row.step_ms,
                optimizer_step_ms: row.optimizer_step_ms,
                samples_per_second: row.samples_per_second,
                speed_from: row.speed_from,
                pareto: row.pareto,
                objective: row.objective,
                batchfit_version: row.batchfit_version,
                strategy: row.strategy,
                driver: row.driver,
                cudnn: row.cudnn,
                pytorch: row.pytorch,
                // Earlier versions did not say.
                headroom: (!row.rules.is_empty()).then_some(StoredHeadroom {
                    share: share(row.headroom_millionths),
                    from: row.headroom_from,
                    outcomes: row.headroom_outcomes,
                }),
                created_at: row.created_at,
                stale: None,
                model_digest: row.model_digest,
                rules: row.rules,
            };
            (row.number, recommendation)
        });
        Ok(rows.collect())
    }

    /// What has happened to the table, and the last change of what was learnt: one question, because every list asks it.
    async fn recommendations_now(&self) -> Result<(Current, i64), StoreError> {
        let now = ask!(fetch_one Now, self.pool.on(), "SELECT (SELECT coalesce(max(number), 0) FROM recommendation) AS newest,
                      (SELECT coalesce(max(place), 0) FROM recommendation_gone) AS gone,
                      (SELECT coalesce(max(changed), 0) FROM learnt) AS learnt")
        .map_err(asking("look for new recommendations"))?;
        let current = Current {
            newest: now.newest,
            gone: now.gone,
        };
        Ok((current, now.learnt))
    }

    /// The numbers of the rows that were dropped after so many others, as far as they are still known.
    async fn recommendations_gone(&self, after: i64) -> Result<HashSet<i64>, StoreError> {
        let gone = ask!(fetch_all scalar, self.pool.on(), "SELECT number FROM recommendation_gone WHERE place > $1",
            after)
        .map_err(asking("look for recommendations that are gone"))?;
        Ok(gone.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_newest_first_in_blocks_of_any_length() {
        for rows in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let column = |of: usize| -> Vec<Word> {
                let values = (0..rows).map(|row| Word::try_from(row % of).unwrap());
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
