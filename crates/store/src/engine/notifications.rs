//! What servers on one database of PostgreSQL tell each other.
//!
//! # Note [News]
//!
//! A trigger tells when a fit waits, runs or has ended (`NOTIFY`), and a server tells how far those are that it works on. A
//! listener has one connection for it. What is told while that is lost is gone, so that is said, and what depends on news looks at the
//! table then, and every few seconds anyway. PostgreSQL keeps what is not read yet, up to 8 GB, and refuses to commit when that is
//! full: so texts are short, and how far a fit is, is told a few times a second at most.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::postgres::PgListener;

use super::Pool;
use crate::{Db, FitState, StoreError, with_context};

/// The longest text that is told; PostgreSQL's is of 8000 bytes.
const LONGEST: usize = 4_000;

/// Which channel the servers on this schema use.
const CHANNEL: &str = "SELECT left('batchfit ' || current_schema(), 63)";

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Payload {
    /// A fit waits, runs or has ended.
    State {
        /// The fit.
        fit: String,
        /// Where it stands.
        state: FitState,
        /// How often it was begun.
        #[serde(default)]
        attempts: i64,
        /// Who works on it, or did last.
        holder: Option<String>,
    },
    /// How far a fit is.
    Progress {
        /// The fit.
        fit: String,
        /// Who works on it.
        holder: String,
        /// How far, as its holder says it.
        progress: Value,
    },
}

/// Where news come in.
#[derive(Debug)]
pub struct Listener(PgListener);

impl Listener {
    /// The next news; `None` when some may have been lost. Fails while the database cannot be reached.
    pub async fn next(&mut self) -> Result<Option<Payload>, StoreError> {
        loop {
            let told = self.0.try_recv().await;
            let Some(told) = told.map_err(with_context("listen for news"))? else {
                return Ok(None);
            };
            // Another version may tell what this one does not know.
            if let Ok(told) = serde_json::from_str(told.payload()) {
                return Ok(Some(told));
            }
        }
    }
}

impl Db {
    /// Whether other servers may work on the same queue.
    pub fn is_shared(&self) -> bool {
        matches!(self.pool, Pool::Postgres(_))
    }

    /// Listens to other servers; `None` where there are none.
    pub async fn listen(&self) -> Result<Option<Listener>, StoreError> {
        let Pool::Postgres(pool) = &self.pool else {
            return Ok(None);
        };
        let listening = async {
            let channel: String = sqlx::query_scalar(CHANNEL).fetch_one(pool).await?;
            let mut listener = PgListener::connect_with(pool).await?;
            listener.listen(&channel).await?;
            Ok(Listener(listener))
        };
        listening
            .await
            .map(Some)
            .map_err(with_context("listen for news"))
    }

    /// Tells other servers how far a fit is: JSON, which must be short.
    pub async fn tell_progress(
        &self,
        id: &str,
        holder: &str,
        progress: &RawValue,
    ) -> Result<(), StoreError> {
        let Pool::Postgres(pool) = &self.pool else {
            return Ok(());
        };
        let text = json!({"fit": id, "holder": holder, "progress": progress}).to_string();
        if text.len() > LONGEST {
            return Ok(());
        }
        sqlx::query("SELECT pg_notify(left('batchfit ' || current_schema(), 63), $1)")
            .bind(text)
            .execute(pool)
            .await
            .map(|_| ())
            .map_err(with_context("tell how far a fit is"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_read_and_what_is_none_is_passed_over() {
        let read = |text: &str| serde_json::from_str(text).ok();
        let (fit, holder) = ("1".to_owned(), "server a".to_owned());
        let told = Payload::State {
            fit: fit.clone(),
            state: FitState::Running,
            attempts: 2,
            holder: Some(holder.clone()),
        };
        let state = r#"{"fit": "1", "state": "running", "attempts": 2, "holder": "server a"}"#;
        assert_eq!(read(state), Some(told));
        let told = Payload::Progress {
            fit,
            holder,
            progress: json!({"batch": 8}),
        };
        let progress = r#"{"fit": "1", "holder": "server a", "progress": {"batch": 8}}"#;
        assert_eq!(read(progress), Some(told));
        for other in [
            "",
            "{}",
            "x",
            r#"{"fit": "1"}"#,
            r#"{"fit": "1", "state": "asleep"}"#,
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
