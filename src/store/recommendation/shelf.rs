//! What recommendations are found by, in memory.
//!
//! # Note [Any filter]
//!
//! Filters combine as their users like, so no index of the database serves all of them: two columns whose values are
//! frequent each and never occur together would have it read every row. So what can be filtered is kept in memory, by
//! column, each value as a number: 60 bytes a row. To look through 100,000 rows takes some tens of microseconds.
//!
//! The rows may be written by other processes too. Each row has a number, in the order in which they were stored
//! (`migrations/0020`), and every list first reads those that are new. Rows that are gone are noticed when their
//! documents are read, and when there are many of them, all rows are read anew.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::Mutex;

use super::RecommendationFilter;
use crate::store::{Db, StoreError, asking};

/// How many rows are read at a time.
const AT_A_TIME: i64 = 10_000;

/// Rows that are gone, before all are read anew, beside an eighth of those that are there.
const MANY_GONE: i64 = 1000;

/// The value of a column that holds none.
const NOTHING: u32 = 0;

/// Between the values of the columns of a row.
const SEPARATOR: char = '\u{1f}';

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
    // Last, because it may hold any character.
    Model,
}

/// How many columns there are.
const FACETS: usize = 9;

/// A page of recommendations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecommendationPage {
    /// The documents, newest first, with commas between them.
    pub items: String,
    /// The id of the last one, where there are more.
    pub next: Option<String>,
}

/// What recommendations are found by. Cloning it shares it.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Shelf {
    columns: Arc<RwLock<Columns>>,
    /// One reads what is new at a time; the others wait for it.
    reading: Arc<Mutex<()>>,
}

/// The rows, by column; each column has as many values as there are ids.
#[derive(Debug, Default)]
struct Columns {
    /// In their order, which is that of time.
    ids: Vec<Box<str>>,
    values: [Vec<u32>; FACETS],
    /// The numbers of the values of each column.
    words: [HashMap<Box<str>, u32>; FACETS],
    /// The number of the newest row.
    newest: i64,
    /// How many rows were gone when they were read.
    gone: i64,
}

impl Columns {
    /// Adds a row: its values in the order of [`Facet`].
    fn add<'a>(&mut self, id: &str, mut values: impl Iterator<Item = &'a str>) {
        let place = match self.ids.last() {
            Some(last) if &**last >= id => {
                match self.ids.binary_search_by(|other| (**other).cmp(id)) {
                    Ok(_there) => return,
                    Err(place) => place,
                }
            }
            Some(_) | None => self.ids.len(),
        };
        self.ids.insert(place, id.into());
        for (column, words) in self.values.iter_mut().zip(&mut self.words) {
            let word = values.next().unwrap_or_default();
            let value = if word.is_empty() {
                NOTHING
            } else if let Some(known) = words.get(word) {
                *known
            } else {
                let new = u32::try_from(words.len() + 1).unwrap_or(u32::MAX);
                words.insert(word.into(), new);
                new
            };
            column.insert(place, value);
        }
    }

    /// Where a row is.
    fn place(&self, id: &str) -> Option<usize> {
        self.ids.binary_search_by(|other| (**other).cmp(id)).ok()
    }

    /// The ids of those that are asked for, newest first, and one more than a page has where there are more.
    fn find(&self, filter: &RecommendationFilter) -> Vec<String> {
        let mut wanted = Vec::with_capacity(filter.facets.len());
        for (facet, word) in &filter.facets {
            let column = *facet as usize;
            let Some(value) = self.words[column].get(word.as_str()) else {
                return Vec::new();
            };
            wanted.push((self.values[column].as_slice(), *value));
        }
        let end = filter.before.as_ref().map_or(self.ids.len(), |before| {
            self.ids.partition_point(|id| **id < **before)
        });
        let most = filter.limit.saturating_add(1);
        let matches = (0..end)
            .rev()
            .filter(|row| wanted.iter().all(|(column, value)| column[*row] == *value));
        matches
            .take(most)
            .map(|row| self.ids[row].to_string())
            .collect()
    }

    fn remove(&mut self, gone: &HashSet<&str>) {
        for id in gone {
            if let Some(place) = self.place(id) {
                self.ids.remove(place);
                for column in &mut self.values {
                    column.remove(place);
                }
            }
        }
    }

    /// Whether so many rows are gone that all are better read anew.
    fn is_stale(&self, gone: i64) -> bool {
        let rows = i64::try_from(self.ids.len()).unwrap_or(i64::MAX);
        gone - self.gone > MANY_GONE + rows / 8
    }
}

impl Shelf {
    /// How many rows are in memory.
    #[cfg(test)]
    pub(super) fn rows(&self) -> usize {
        self.read().ids.len()
    }

    fn read(&self) -> RwLockReadGuard<'_, Columns> {
        self.columns
            .read()
            .expect("nothing panics while it is held")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Columns> {
        self.columns
            .write()
            .expect("nothing panics while it is held")
    }
}

impl Db {
    /// A page of recommendations, newest first; `None` where there is no row `before` which they are to be.
    pub async fn recommendations(
        &self,
        filter: &RecommendationFilter,
    ) -> Result<Option<RecommendationPage>, StoreError> {
        self.read_recommendation_columns().await?;
        if let Some(before) = &filter.before
            && self.shelf.read().place(before).is_none()
        {
            return Ok(None);
        }
        loop {
            let found = self.shelf.read().find(filter);
            let ids: Vec<&str> = found
                .iter()
                .take(filter.limit)
                .map(String::as_str)
                .collect();
            if ids.is_empty() {
                return Ok(Some(RecommendationPage {
                    items: String::new(),
                    next: None,
                }));
            }
            let (items, count) = self.recommendation_documents(&ids).await?;
            if count == ids.len() {
                let next = (found.len() > ids.len()).then(|| ids[ids.len() - 1].to_owned());
                return Ok(Some(RecommendationPage { items, next }));
            }
            let there = self.recommendations_there(&ids).await?;
            let mut gone: HashSet<&str> = ids.into_iter().collect();
            for id in &there {
                gone.remove(id.as_str());
            }
            self.shelf.write().remove(&gone);
        }
    }

    /// Reads what recommendations are found by, as far as that is new: all of it, the first time.
    pub async fn read_recommendation_columns(&self) -> Result<(), StoreError> {
        let count = sqlx::query!("SELECT inserted, deleted FROM recommendation_count")
            .fetch_one(&self.pool)
            .await
            .map_err(asking("count recommendations"))?;
        let is_current = |columns: &Columns| {
            columns.newest >= count.inserted && !columns.is_stale(count.deleted)
        };
        if is_current(&self.shelf.read()) {
            return Ok(());
        }
        let _reading = self.shelf.reading.lock().await;
        if is_current(&self.shelf.read()) {
            return Ok(());
        }
        let mut newest = self.shelf.read().newest;
        let mut anew = None;
        if newest == 0 || self.shelf.read().is_stale(count.deleted) {
            newest = 0;
            anew = Some(Columns {
                gone: count.deleted,
                ..Columns::default()
            });
        }
        loop {
            let rows = self.recommendations_after(newest).await?;
            let Some((last, _, _)) = rows.last() else {
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
            for (_, id, values) in &rows {
                columns.add(id, values.splitn(FACETS, SEPARATOR));
            }
            columns.newest = newest;
        }
        let mut kept = self.shelf.write();
        if let Some(anew) = anew {
            *kept = anew;
        }
        // The newest ones may be gone already.
        kept.newest = kept.newest.max(count.inserted);
        Ok(())
    }

    /// The rows after this one in the order in which they were stored: number, id, and the values of their columns.
    async fn recommendations_after(
        &self,
        number: i64,
    ) -> Result<Vec<(i64, String, String)>, StoreError> {
        // One text for each row: what a row costs is mostly its values, one by one.
        let rows = sqlx::query!(
            r#"SELECT number AS "number!", id,
                      concat_ws(char(31), device, gpu, precision, coalesce(optimizer, ''), checkpointing, evidence,
                                limit_bytes, world_size, model) AS "columns!: String"
                 FROM recommendation WHERE number > ?1 ORDER BY number LIMIT ?2"#,
            number,
            AT_A_TIME
        )
        .fetch_all(&self.pool)
        .await
        .map_err(asking("read what recommendations are found by"))?;
        Ok(rows
            .into_iter()
            .map(|row| (row.number, row.id, row.columns))
            .collect())
    }
}
