//! Recommendations as documents that are ready to send.
//!
//! # Note [Reading for others]
//!
//! A statement goes to the thread of its connection and back, which takes longer than to look up a row. So whoever wants
//! a document while others are being read waits for its turn, and then reads for all who wait: one after the other they
//! are read alone, as before, and under load dozens at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, oneshot};

use super::StoredRecommendation;
use crate::store::{Db, StoreError, Time, asking};

/// How many read for others at a time. The other connections are left for lists, and for those who write.
const READERS: usize = 2;

/// Most documents that are read at a time: a fraction of a millisecond.
const AT_A_TIME: usize = 256;

/// Most documents that are written for rows without, in one transaction.
const WRITTEN_AT_A_TIME: i64 = 1000;

/// A document, or nothing where there is no such row.
type Found = Option<Arc<str>>;

/// Who waits for a document: its id, and where it is sent.
type Waiting = (String, oneshot::Sender<Found>);

/// Those who wait for documents: see Note [Reading for others].
#[derive(Debug, Clone)]
pub(in crate::store) struct Readers {
    waiting: Arc<Mutex<Vec<Waiting>>>,
    turns: Arc<Semaphore>,
}

impl Default for Readers {
    fn default() -> Readers {
        Readers {
            waiting: Arc::default(),
            turns: Arc::new(Semaphore::new(READERS)),
        }
    }
}

impl Readers {
    fn wait(&self, id: &str) -> oneshot::Receiver<Found> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self
            .waiting
            .lock()
            .expect("nothing panics while it is held");
        waiting.push((id.to_owned(), sender));
        receiver
    }

    /// Those who have waited longest, of whom nobody has gone.
    fn next(&self) -> Vec<Waiting> {
        let mut waiting = self
            .waiting
            .lock()
            .expect("nothing panics while it is held");
        let many = waiting.len().min(AT_A_TIME);
        let mut next: Vec<_> = waiting.drain(..many).collect();
        drop(waiting);
        next.retain(|(_, sender)| !sender.is_closed());
        next
    }
}

impl Db {
    /// The document of a recommendation.
    pub async fn recommendation(&self, id: &str) -> Result<Option<Arc<str>>, StoreError> {
        let mut found = self.readers.wait(id);
        loop {
            let turn = tokio::select! {
                biased;
                answer = &mut found => {
                    if let Ok(answer) = answer {
                        return Ok(answer);
                    }
                    // Whoever read for us failed, or was given up.
                    found = self.readers.wait(id);
                    continue;
                }
                turn = self.readers.turns.acquire() => turn.expect("it is never closed"),
            };
            let next = self.readers.next();
            let read = self.read_for(next).await;
            drop(turn);
            read?;
        }
    }

    /// Reads for those who wait.
    async fn read_for(&self, waiting: Vec<Waiting>) -> Result<(), StoreError> {
        if waiting.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = waiting.iter().map(|(id, _)| id.as_str()).collect();
        let ids = serde_json::to_string(&ids).expect("texts are JSON");
        let rows = sqlx::query!(
            r#"SELECT id, document AS "document!" FROM recommendation
                WHERE id IN (SELECT value FROM json_each(?1)) AND document IS NOT NULL"#,
            ids
        )
        .fetch_all(&self.pool)
        .await
        .map_err(asking("read a recommendation"))?;
        let found: HashMap<String, Arc<str>> = rows
            .into_iter()
            .map(|row| (row.id, Arc::from(row.document)))
            .collect();
        for (id, sender) in waiting {
            // Nobody listens when the client is gone.
            let _ = sender.send(found.get(&id).cloned());
        }
        Ok(())
    }

    /// The documents of these rows, newest first and with commas between them, and how many there are: fewer than asked
    /// for where rows are gone.
    pub(super) async fn recommendation_documents(
        &self,
        ids: &[&str],
    ) -> Result<(String, usize), StoreError> {
        let ids = serde_json::to_string(ids).expect("texts are JSON");
        // PostgreSQL: string_agg.
        let found = sqlx::query!(
            r#"SELECT group_concat(document, ',' ORDER BY id DESC) AS "documents: String",
                      count(document) AS "count!: i64"
                 FROM recommendation WHERE id IN (SELECT value FROM json_each(?1))"#,
            ids
        )
        .fetch_one(&self.pool)
        .await
        .map_err(asking("read recommendations"))?;
        Ok((
            found.documents.unwrap_or_default(),
            usize::try_from(found.count).unwrap_or(0),
        ))
    }

    /// Which of these rows are there.
    pub(super) async fn recommendations_there(
        &self,
        ids: &[&str],
    ) -> Result<Vec<String>, StoreError> {
        let ids = serde_json::to_string(ids).expect("texts are JSON");
        sqlx::query_scalar!(
            "SELECT id FROM recommendation
              WHERE id IN (SELECT value FROM json_each(?1)) AND document IS NOT NULL",
            ids
        )
        .fetch_all(&self.pool)
        .await
        .map_err(asking("look for recommendations"))
    }

    /// Writes the documents of rows without: of an earlier version, or of whoever writes rows by hand.
    pub(in crate::store) async fn write_recommendation_documents(&self) -> Result<(), StoreError> {
        loop {
            let rows = sqlx::query_as!(
                StoredRecommendation,
                r#"SELECT id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl,
                          checkpointing, mode, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch,
                          max_batch, max_batch_without_retries, peak_allocated_bytes, peak_reserved_bytes,
                          headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version,
                          created_at AS "created_at: Time"
                     FROM recommendation WHERE document IS NULL LIMIT ?1"#,
                WRITTEN_AT_A_TIME
            )
            .fetch_all(&self.pool)
            .await
            .map_err(asking("read recommendations without documents"))?;
            if rows.is_empty() {
                return Ok(());
            }
            let mut transaction = self
                .pool
                .begin()
                .await
                .map_err(asking("begin to write documents"))?;
            for row in rows {
                let document = row.document();
                sqlx::query!(
                    "UPDATE recommendation SET document = ?2 WHERE id = ?1",
                    row.id,
                    document
                )
                .execute(&mut *transaction)
                .await
                .map_err(asking("write the document of a recommendation"))?;
            }
            transaction
                .commit()
                .await
                .map_err(asking("commit documents"))?;
        }
    }
}
