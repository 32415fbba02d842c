//! The table of scripts that ran on a virtual GPU.

use serde::Serialize;
use utoipa::ToSchema;

use super::engine::{Transaction, query};
use super::text::by_name;
use super::{Db, JsonText, StoreError, Time};

/// Most runs that are kept; the oldest make room.
const MOST: i64 = 10_000;

/// Most of them whose allocations are kept, up to [`MOST_STEP`] each.
const MOST_WITH_STEP: i64 = 50;

/// The longest answer that is kept, in bytes: a few thousand phases, lines and names.
const MOST_ANSWER: usize = 4 << 20;

/// The most compressed bytes of allocations and frees that are kept of a run: some million of them.
const MOST_STEP: usize = 8 << 20;

/// A run, as lists have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct VirtualRun {
    /// Its id.
    #[schema(example = "01kz3vm6q0p3kq8d")]
    pub id: String,
    /// What was run, or the beginning of it.
    #[schema(example = "python train.py")]
    pub command: String,
    /// The card.
    #[schema(example = "rtx4090")]
    pub card: String,
    /// How many of them the machine had.
    pub gpus: i64,
    /// How it ended: `fits`, `fits_with_retries`, `out_of_memory`, or `failed` for another reason.
    #[schema(example = "fits")]
    pub verdict: String,
    /// How far to trust it: `exact`, `chosen`, `estimated` or `doubtful`.
    #[schema(example = "exact")]
    pub certainty: String,
    /// What PyTorch could reserve.
    pub limit_bytes: i64,
    /// Most bytes allocated at a time; null where it was no PyTorch.
    pub peak_allocated_bytes: Option<i64>,
    /// Most bytes reserved at a time.
    pub peak_reserved_bytes: i64,
    /// The batchfit that ran it.
    pub batchfit_version: String,
    /// Whether its allocations and frees are kept: `GET /v1/runs/{id}/step`.
    pub has_step: bool,
    /// When it ended.
    pub created_at: Time,
}

by_name!(VirtualRun: id, command, card, gpus, verdict, certainty, limit_bytes, peak_allocated_bytes, peak_reserved_bytes,
    batchfit_version, has_step, created_at);

impl Db {
    /// Stores a run: `answer` is its document, `step` its allocations and frees as compressed JSON, which is left out where it is longer
    /// than is kept. Says whether it was stored: not with an answer that is longer than is kept.
    pub async fn add_virtual_run(
        &self,
        run: &VirtualRun,
        answer: &JsonText,
        step: Option<&[u8]>,
    ) -> Result<bool, StoreError> {
        let store = "store a run";
        if answer.as_str().len() > MOST_ANSWER {
            return Ok(false);
        }
        let step = step.filter(|step| step.len() <= MOST_STEP);
        let mut transaction = self.pool.begin_alone(store).await?;
        query!(store: execute, transaction.on(),
            "INSERT INTO virtual_run (id, command, card, gpus, verdict, certainty, limit_bytes, peak_allocated_bytes,
                    peak_reserved_bytes, batchfit_version, answer, step, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
            run.id, run.command, run.card, run.gpus, run.verdict, run.certainty, run.limit_bytes, run.peak_allocated_bytes, run.peak_reserved_bytes, run.batchfit_version, answer, step, run.created_at)?;
        query!("drop the oldest runs": execute, transaction.on(),
            "DELETE FROM virtual_run WHERE id <= (SELECT id FROM virtual_run ORDER BY id DESC LIMIT 1 OFFSET $1)", MOST)?;
        query!("drop the oldest steps of runs": execute, transaction.on(),
            "UPDATE virtual_run SET step = NULL
              WHERE step IS NOT NULL
                AND id <= (SELECT id FROM virtual_run WHERE step IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET $1)", MOST_WITH_STEP)?;
        transaction.commit(store).await?;
        Ok(true)
    }

    /// Runs, newest first: at most `limit` of those before the one of this id.
    pub async fn virtual_runs(
        &self,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<VirtualRun>, StoreError> {
        query!("list runs": fetch_all VirtualRun, self.pool.on(),
            "SELECT id, command, card, gpus, verdict, certainty, limit_bytes, peak_allocated_bytes,
                      peak_reserved_bytes, batchfit_version, step IS NOT NULL AS has_step, created_at
                 FROM virtual_run WHERE ($1 IS NULL OR id < $1) ORDER BY id DESC LIMIT $2", before, limit)
    }

    /// A run and its answer.
    pub async fn virtual_run(
        &self,
        id: &str,
    ) -> Result<Option<(VirtualRun, JsonText)>, StoreError> {
        let run = query!("read a run": fetch_optional VirtualRun, self.pool.on(),
            "SELECT id, command, card, gpus, verdict, certainty, limit_bytes, peak_allocated_bytes,
                      peak_reserved_bytes, batchfit_version, step IS NOT NULL AS has_step, created_at
                 FROM virtual_run WHERE id = $1", id)?;
        let answer = query!("read the answer of a run": fetch_optional scalar, self.pool.on(),
            "SELECT answer FROM virtual_run WHERE id = $1", id)?;
        Ok(run.zip(answer))
    }

    /// Of the allocations and frees of a run, as compressed JSON, so many bytes from there on: none behind the end. `None` where nothing is kept.
    pub async fn part_of_step(
        &self,
        id: &str,
        from: usize,
        bytes: usize,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let first = i64::try_from(from).unwrap_or(i64::MAX).saturating_add(1);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let found: Option<Option<Vec<u8>>> = query!("read the step of a run": fetch_optional scalar, self.pool.on(),
            "SELECT substr(step, CAST($2 AS INTEGER), CAST($3 AS INTEGER)) FROM virtual_run WHERE id = $1", id, first, bytes)?;
        Ok(found.flatten())
    }
}

/// Drops at most `most` runs of before `oldest`, if they were stored before all that are young at `now`. Says how many.
pub(super) async fn drop_old_runs(
    transaction: &mut Transaction,
    (oldest, now): (Time, Time),
    most: i64,
) -> Result<u64, StoreError> {
    query!("drop old runs": execute, transaction.on(),
        "DELETE FROM virtual_run WHERE id IN
            (SELECT id FROM virtual_run
              WHERE created_at < $1
                AND rowid < coalesce((SELECT min(rowid) FROM virtual_run WHERE created_at BETWEEN $1 AND $2), 9223372036854775807)
              ORDER BY created_at, id LIMIT $3)", oldest, now, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::test_database::TestDatabase;

    fn run(id: &str, created_at: i64) -> VirtualRun {
        VirtualRun {
            id: id.to_owned(),
            command: "python train.py".to_owned(),
            card: "rtx4090".to_owned(),
            gpus: 1,
            verdict: "fits".to_owned(),
            certainty: "exact".to_owned(),
            limit_bytes: 1000,
            peak_allocated_bytes: None,
            peak_reserved_bytes: 900,
            batchfit_version: "0.1.0".to_owned(),
            has_step: true,
            created_at: Time(created_at),
        }
    }

    #[tokio::test]
    async fn a_run_is_read_as_it_was_stored_and_the_newest_keep_their_steps() {
        let db = TestDatabase::new().await;
        let answer = JsonText::from(r#"{"b": 1, "a": 2}"#);
        for number in 10..=60 {
            let run = run(&number.to_string(), number);
            assert!(
                db.add_virtual_run(&run, &answer, Some(b"gz"))
                    .await
                    .unwrap()
            );
        }

        let newest = db.virtual_runs(None, 2).await.unwrap();
        assert_eq!(newest, [run("60", 60), run("59", 59)]);
        let before = db.virtual_runs(Some("59"), 99).await.unwrap();
        assert_eq!(before.len(), 49);
        let found = db.virtual_run("60").await.unwrap();
        assert_eq!(found, Some((run("60", 60), answer)));
        let part = async |id: &str, from| db.part_of_step(id, from, 1).await.unwrap();
        assert_eq!(part("11", 0).await.unwrap(), b"g");
        assert_eq!(part("11", 1).await.unwrap(), b"z");
        assert_eq!(part("11", 2).await.unwrap(), b"");
        assert_eq!(part("10", 0).await, None);
        assert_eq!(db.virtual_run("9").await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_too_long_is_not_kept() {
        let db = TestDatabase::new().await;
        let step = vec![0; MOST_STEP + 1];
        let answer = JsonText::from("{}");
        assert!(
            db.add_virtual_run(&run("a", 1), &answer, Some(&step))
                .await
                .unwrap()
        );
        assert_eq!(db.part_of_step("a", 0, 1).await.unwrap(), None);

        let answer = JsonText::from(format!("\"{}\"", " ".repeat(MOST_ANSWER)).as_str());
        assert!(
            !db.add_virtual_run(&run("b", 2), &answer, None)
                .await
                .unwrap()
        );
        assert_eq!(db.virtual_run("b").await.unwrap(), None);
    }

    #[tokio::test]
    async fn old_runs_are_dropped_unless_younger_ones_were_stored_before() {
        let db = TestDatabase::new().await;
        let answer = JsonText::from("{}");
        for (id, created_at) in [("a", 1), ("b", 2), ("c", 50), ("d", 3)] {
            let run = run(id, created_at);
            db.add_virtual_run(&run, &answer, None).await.unwrap();
        }

        let pruned = db.prune(Time(10), Time(60), 1).await.unwrap();
        assert_eq!(pruned.runs, 1);
        db.prune(Time(10), Time(60), 9).await.unwrap();

        let left = db.virtual_runs(None, 9).await.unwrap();
        let left: Vec<&str> = left.iter().map(|run| run.id.as_str()).collect();
        assert_eq!(left, ["d", "c"]);
    }
}
