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
//! reads what is new of both; reads of one row do so once a [`FRESH`].

use std::collections::HashSet;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use sqlx::Row as _;
use sqlx::types::Json;

use super::columns::{Columns, Current};
use super::row::{PackedRow, TextTable};
use super::stale::CurrentGpus;
use super::{RecommendationFilter, StoredHeadroom, StoredRecommendation};
use crate::engine::query;
use crate::outcome::{Lessons, share};
use crate::{Db, StoreError};
use batchfit_fit::search::headroom::Doubts;

/// How many rows are read at a time.
const AT_A_TIME: i64 = 1000;

/// How long a row is taken to be there without a look: another process may have dropped it.
const FRESH: Duration = Duration::from_secs(1);

/// Rows that are dropped from memory, before all are read again, beside as many as there are: texts that no row has any
/// more are not dropped with them.
const MANY_GONE: usize = 1000;

/// A column that can be filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a member of `StoredRecommendation`")]
pub enum FilterColumn {
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
    pub(super) rows: Vec<PackedRow>,
    pub(super) texts: Arc<TextTable>,
    pub(super) present: Arc<CurrentGpus>,
    pub(super) lessons: Lessons,
    /// The id of the last one, where there are more.
    pub next: Option<String>,
}

impl RecommendationPage {
    /// The recommendations, newest first.
    pub fn items(&self) -> impl ExactSizeIterator<Item = StoredRecommendation> {
        self.rows
            .iter()
            .map(|row| self.present.marked(row.unpack(&self.texts), &self.lessons))
    }
}

/// All recommendations. Cloning it shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResultIndex {
    columns: Arc<RwLock<Columns>>,
    /// One reads what is new at a time; the others wait for it.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// When new rows were last read.
    looked: Arc<Mutex<Option<Instant>>>,
}

impl ResultIndex {
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

/// A row as the table has it, with its number.
struct Numbered(i64, StoredRecommendation);

macro_rules! read {
    (texts: [$($text:ident),*], optional: [$($optional:ident),*], numbers: [$($number:ident),*], others: [$($other:ident: $type:ty),*]) => {
        read!(@ sqlx::sqlite::SqliteRow: $($text,)* $($optional,)* $($number,)* $($other,)* id, fit_id, created_at);
        read!(@ sqlx::postgres::PgRow: $($text,)* $($optional,)* $($number,)* $($other,)* id, fit_id, created_at);
    };
    (@ $of:ty: $($column:ident),*) => {
        impl sqlx::FromRow<'_, $of> for Numbered {
            fn from_row(row: &$of) -> Result<Numbered, sqlx::Error> {
                let headroom = StoredHeadroom {
                    share: share(row.try_get("headroom_millionths")?),
                    from: row.try_get("headroom_from")?,
                    outcomes: row.try_get("headroom_outcomes")?,
                    doubts: row.try_get::<Json<Doubts>, _>("doubts")?.0,
                };
                let mut stored = StoredRecommendation {
                    $($column: row.try_get(stringify!($column))?,)*
                    headroom: None,
                    stale: None,
                };
                // Earlier versions did not say.
                stored.headroom = (!stored.rules.is_empty()).then_some(headroom);
                Ok(Numbered(row.try_get("number")?, stored))
            }
        }
    };
}
each_column!(read);

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
        // An earlier reader may have read it all.
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
        let mut again = None;
        if known.newest == 0 || is_stale || missed {
            newest = 0;
            again = Some(Columns::default());
        } else if !gone.is_empty() {
            // This goes through all rows, while they are locked.
            self.shelf.write().drop_rows(&gone);
        }
        loop {
            let rows = self.recommendations_after(newest).await?;
            let Some((last, _)) = rows.last() else {
                break;
            };
            newest = *last;
            let mut kept;
            let columns = if let Some(again) = &mut again {
                again
            } else {
                kept = self.shelf.write();
                &mut *kept
            };
            for (number, row) in &rows {
                columns.add(*number, row);
            }
        }
        let mut kept = self.shelf.write();
        if let Some(again) = again {
            *kept = again;
        }
        kept.current = current;
        Ok(())
    }

    /// The rows after this one in the order in which they were stored, with their numbers.
    async fn recommendations_after(
        &self,
        number: i64,
    ) -> Result<Vec<(i64, StoredRecommendation)>, StoreError> {
        let rows = query!("read recommendations": fetch_all Numbered, self.pool.on(),
            "SELECT number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl,
                      checkpointing, mode, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch,
                      max_batch, max_batch_without_retries, peak_allocated_bytes, peak_reserved_bytes, headroom_bytes,
                      limited_by, evidence, samples_per_second, step_ms, optimizer_step_ms, speed_from,
                      pareto, objective, batchfit_version, created_at, strategy,
                      driver, cudnn, pytorch, rules, headroom_millionths, headroom_from,
                      headroom_outcomes, doubts, model_digest, training
                 FROM recommendation WHERE number > $1 ORDER BY number LIMIT $2", number, AT_A_TIME)?;
        Ok(rows
            .into_iter()
            .map(|Numbered(number, row)| (number, row))
            .collect())
    }

    /// What has happened to the table, and the last change of what was learnt: one question, because every list asks it.
    async fn recommendations_now(&self) -> Result<(Current, i64), StoreError> {
        let (newest, gone, learnt) = query!("look for new recommendations": fetch_one (i64, i64, i64), self.pool.on(),
            "SELECT (SELECT coalesce(max(number), 0) FROM recommendation) AS newest,
                      (SELECT coalesce(max(place), 0) FROM recommendation_gone) AS gone,
                      (SELECT coalesce(max(changed), 0) FROM learnt) AS learnt")?;
        Ok((Current { newest, gone }, learnt))
    }

    /// The numbers of the rows that were dropped after so many others, as far as they are still known.
    async fn recommendations_gone(&self, after: i64) -> Result<HashSet<i64>, StoreError> {
        let gone = query!("look for recommendations that are gone": fetch_all scalar, self.pool.on(),
            "SELECT number FROM recommendation_gone WHERE place > $1", after)?;
        Ok(gone.into_iter().collect())
    }
}
