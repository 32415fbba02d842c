//! Moments, as the tables and the documents hold them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::engine::{Pool, in_time};
use crate::text::as_inner;
use crate::{Db, StoreError, with_context};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// A moment in Unix milliseconds: an integer in SQL, RFC 3339 with `Z` in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-11-20T22:57:00.123Z")]
pub struct Time(pub i64);

as_inner!(Time(i64));

impl From<Timestamp> for Time {
    fn from(moment: Timestamp) -> Time {
        Time(moment.as_millisecond())
    }
}

impl Time {
    /// By this machine's clock.
    fn here() -> Time {
        Time::from(Timestamp::now())
    }
}

/// By how many milliseconds a database's clock is ahead of this machine's.
#[derive(Debug, Clone, Default)]
pub(super) struct Ahead(Arc<AtomicI64>);

impl Db {
    /// What time it is by the database's clock, as of the last look at it: several servers whose clocks differ agree on what is old. A file
    /// has that of the machine.
    pub fn now(&self) -> Time {
        let ahead = self.ahead.0.load(Ordering::Relaxed);
        Time(Time::here().0.saturating_add(ahead))
    }

    /// Looks at the database's clock.
    pub async fn look_at_clock(&self) -> Result<Time, StoreError> {
        if let Pool::Postgres(pool) = &self.pool {
            let before = Time::here().0;
            let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
            let asked = in_time(sqlx::query_scalar(clock).fetch_one(pool)).await;
            let there: i64 = asked.map_err(with_context("read the database's clock"))?;
            let here = before.midpoint(Time::here().0);
            let ahead = there.saturating_sub(here);
            self.ahead.0.store(ahead, Ordering::Relaxed);
        }
        Ok(self.now())
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let moment = Timestamp::from_millisecond(self.0).map_err(serde::ser::Error::custom)?;
        serializer.collect_str(&format_args!("{moment:.3}"))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        Timestamp::deserialize(deserializer).map(Time::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_with_milliseconds_and_z() {
        let text = serde_json::to_string(&Time(1_795_212_000_007)).unwrap();

        assert_eq!(text, "\"2026-11-20T22:00:00.007Z\"");
        assert_eq!(
            serde_json::from_str::<Time>(&text).unwrap(),
            Time(1_795_212_000_007)
        );
    }
}
