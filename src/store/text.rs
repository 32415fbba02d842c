//! JSON that is stored and given back as the text it is.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Database, Decode, Encode, Sqlite, Type};

/// JSON text of up to megabytes. Nobody looks into it, so it is neither parsed nor copied on its way.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, shared.
    pub fn into_shared(self) -> Arc<str> {
        self.0
    }
}

impl From<Arc<str>> for JsonText {
    fn from(text: Arc<str>) -> JsonText {
        JsonText(text)
    }
}

impl From<&str> for JsonText {
    fn from(text: &str) -> JsonText {
        JsonText(Arc::from(text))
    }
}

impl fmt::Debug for JsonText {
    /// Leaves out most of a long one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self
            .0
            .char_indices()
            .nth(200)
            .map_or(self.0.len(), |(end, _)| end);
        f.write_str(&self.0[..end])
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        text.serialize(serializer)
    }
}

impl Type<Sqlite> for JsonText {
    fn type_info() -> <Sqlite as Database>::TypeInfo {
        <str as Type<Sqlite>>::type_info()
    }

    fn compatible(ty: &<Sqlite as Database>::TypeInfo) -> bool {
        <str as Type<Sqlite>>::compatible(ty)
    }
}

impl Encode<'_, Sqlite> for JsonText {
    fn encode_by_ref(
        &self,
        arguments: &mut <Sqlite as Database>::ArgumentBuffer,
    ) -> Result<IsNull, BoxDynError> {
        // By value: the text is shared, not copied.
        <Arc<str> as Encode<'_, Sqlite>>::encode(Arc::clone(&self.0), arguments)
    }
}

impl<'r> Decode<'r, Sqlite> for JsonText {
    fn decode(value: <Sqlite as Database>::ValueRef<'r>) -> Result<JsonText, BoxDynError> {
        <&str as Decode<'r, Sqlite>>::decode(value).map(JsonText::from)
    }
}
