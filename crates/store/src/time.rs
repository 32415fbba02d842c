//! Moments, as the tables and the documents hold them.

use crate::text::as_inner;
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
