//! JSON that is stored and given back as the text it is.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgTypeInfo, Postgres};
use sqlx::{Database, Decode, Encode, Sqlite, Type};

/// JSON text of up to megabytes. It is opaque here, so it is neither parsed nor copied on its way.
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

impl JsonText {
    /// A value as text.
    pub(crate) fn written(value: &impl Serialize) -> JsonText {
        let text = serde_json::to_string(value).expect("names and numbers can be written");
        JsonText(Arc::from(text))
    }

    /// A document as text.
    pub fn of(document: &serde_json::Value) -> JsonText {
        JsonText(Arc::from(document.to_string()))
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

/// The type `json`, which keeps a text as it is; `jsonb` does not keep the order of members.
/// <https://github.com/postgres/postgres/blob/REL_15_STABLE/src/include/catalog/pg_type.dat>
const JSON: Oid = Oid(114);

impl Type<Postgres> for JsonText {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(JSON)
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        ty.oid() == Some(JSON)
    }
}

impl Encode<'_, Postgres> for JsonText {
    fn encode_by_ref(
        &self,
        arguments: &mut <Postgres as Database>::ArgumentBuffer,
    ) -> Result<IsNull, BoxDynError> {
        arguments.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Postgres> for JsonText {
    fn decode(value: <Postgres as Database>::ValueRef<'r>) -> Result<JsonText, BoxDynError> {
        Ok(JsonText::from(value.as_str()?))
    }
}

/// Has a type be what it wraps in the tables, in either engine.
macro_rules! as_inner {
    ($outer:ident($inner:ty)) => {
        impl<D: sqlx::Database> sqlx::Type<D> for $outer
        where
            $inner: sqlx::Type<D>,
        {
            fn type_info() -> D::TypeInfo {
                <$inner as sqlx::Type<D>>::type_info()
            }

            fn compatible(ty: &D::TypeInfo) -> bool {
                <$inner as sqlx::Type<D>>::compatible(ty)
            }
        }

        impl<'q, D: sqlx::Database> sqlx::Encode<'q, D> for $outer
        where
            $inner: sqlx::Encode<'q, D>,
        {
            fn encode_by_ref(
                &self,
                arguments: &mut D::ArgumentBuffer,
            ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
                self.0.encode_by_ref(arguments)
            }
        }

        impl<'r, D: sqlx::Database> sqlx::Decode<'r, D> for $outer
        where
            $inner: sqlx::Decode<'r, D>,
        {
            fn decode(value: D::ValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
                <$inner as sqlx::Decode<'r, D>>::decode(value).map($outer)
            }
        }
    };
}
pub(super) use as_inner;

/// Has a row of either engine be read by the names of its columns; behind `and`, by those of parts that are read by name themselves.
macro_rules! by_name {
    ($row:ident: $($column:ident),* $(and $($part:ident),*)?) => {
        by_name!(@ sqlx::sqlite::SqliteRow, $row: [$($column),*] [$($($part),*)?]);
        by_name!(@ sqlx::postgres::PgRow, $row: [$($column),*] [$($($part),*)?]);
    };
    (@ $of:ty, $row:ident: [$($column:ident),*] [$($part:ident),*]) => {
        impl sqlx::FromRow<'_, $of> for $row {
            fn from_row(row: &$of) -> Result<$row, sqlx::Error> {
                Ok($row {
                    $($column: sqlx::Row::try_get(row, stringify!($column))?,)*
                    $($part: sqlx::FromRow::from_row(row)?,)*
                })
            }
        }
    };
}
pub(super) use by_name;

/// Has an enum with `ALL` and `name` be its name in the tables, in either engine.
macro_rules! named_in_text {
    ($named:ty) => {
        impl<D: sqlx::Database> sqlx::Type<D> for $named
        where
            str: sqlx::Type<D>,
        {
            fn type_info() -> D::TypeInfo {
                <str as sqlx::Type<D>>::type_info()
            }

            fn compatible(ty: &D::TypeInfo) -> bool {
                <str as sqlx::Type<D>>::compatible(ty)
            }
        }

        impl<'q, D: sqlx::Database> sqlx::Encode<'q, D> for $named
        where
            &'static str: sqlx::Encode<'q, D>,
        {
            fn encode_by_ref(
                &self,
                arguments: &mut D::ArgumentBuffer,
            ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
                <&'static str as sqlx::Encode<'q, D>>::encode(self.name(), arguments)
            }
        }

        impl<'r, D: sqlx::Database> sqlx::Decode<'r, D> for $named
        where
            &'r str: sqlx::Decode<'r, D>,
        {
            fn decode(value: D::ValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
                let name = <&'r str as sqlx::Decode<'r, D>>::decode(value)?;
                <$named>::named(name)
                    .ok_or_else(|| format!("there is no {} {name:?}", stringify!($named)).into())
            }
        }
    };
}
pub(super) use named_in_text;
