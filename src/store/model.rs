//! The table of descriptions of models that are too large to be shown with each fit.

use super::{Db, StoreError, Time, asking};

/// How long a description is kept before it may be dropped, in milliseconds: far longer than a request takes from
/// the moment when its description is stored to the moment when its fit is.
const LEAST_AGE_MS: i64 = 3_600_000;

impl Db {
    /// Keeps the JSON text of a model, compressed with gzip, and drops those that no fit will ask for again.
    pub async fn keep_model(&self, digest: &str, gzip: &[u8], now: Time) -> Result<(), StoreError> {
        let oldest = now.0.saturating_sub(LEAST_AGE_MS);
        sqlx::query!(
            "DELETE FROM model
              WHERE created_at < ?1
                AND NOT EXISTS (SELECT 1 FROM fit WHERE state IN ('queued', 'running')
                                                    AND instr(request, model.digest) > 0)",
            oldest,
        )
        .execute(&self.pool)
        .await
        .map_err(asking("drop models that no fit needs"))?;
        sqlx::query!(
            "INSERT INTO model (digest, gzip, created_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (digest) DO UPDATE SET created_at = excluded.created_at",
            digest,
            gzip,
            now,
        )
        .execute(&self.pool)
        .await
        .map(|_| ())
        .map_err(asking("keep a model"))
    }

    /// The JSON text of a model, compressed with gzip.
    pub async fn model(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        sqlx::query_scalar!("SELECT gzip FROM model WHERE digest = ?1", digest)
            .fetch_optional(&self.pool)
            .await
            .map_err(asking("read a model"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NewFit, Reuse};
    use super::*;

    #[tokio::test]
    async fn models_are_kept_while_a_fit_needs_them() {
        let db = Db::open("sqlite::memory:").await.unwrap();
        db.keep_model("needed", b"1", Time(0)).await.unwrap();
        db.keep_model("not needed", b"2", Time(0)).await.unwrap();
        let fit = NewFit {
            id: "1".to_owned(),
            fingerprint: "1".to_owned(),
            batchfit_version: "0.1.0".to_owned(),
            model: "exported-needed".to_owned(),
            device: "sim:t4".to_owned(),
            lane: "simulated".to_owned(),
            request: r#"{"model":{"exported":"sha256:needed"}}"#.into(),
            created_at: Time(0),
        };
        db.enqueue(&fit, Reuse::Finished, 10).await.unwrap();

        db.keep_model("new", b"3", Time(2 * LEAST_AGE_MS))
            .await
            .unwrap();

        assert_eq!(
            db.model("needed").await.unwrap().as_deref(),
            Some(&b"1"[..])
        );
        assert_eq!(db.model("not needed").await.unwrap(), None);
        assert_eq!(db.model("new").await.unwrap().as_deref(), Some(&b"3"[..]));
    }
}
