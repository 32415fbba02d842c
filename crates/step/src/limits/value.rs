//! JSON values that are charged for.

use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::{ALLOCATION, Text, shorten, spend};

/// A JSON value of any shape, charged for.
#[derive(Debug)]
pub struct AnyValue(pub Value);

/// What a member of an object takes besides its key's text and its value: a place in the list of members and
/// one in the table that finds it, as `indexmap` keeps them, each up to twice as large as needed.
const MEMBER: usize = 2 * (size_of::<(String, Value, usize)>() + 2 * size_of::<usize>());

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyValue, D::Error> {
        AnyVisitor.deserialize(deserializer).map(AnyValue)
    }
}

struct AnyVisitor;

impl<'de> DeserializeSeed<'de> for AnyVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        spend(ALLOCATION + text.len())?;
        Ok(Value::from(text))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Value, S::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(AnyVisitor)? {
            // A list grows to twice what it needs.
            spend(ALLOCATION + 2 * size_of::<Value>())?;
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Value, M::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<Text<'de>>()? {
            spend(2 * ALLOCATION + MEMBER + key.len())?;
            let value = members.next_value_seed(AnyVisitor)?;
            insert_once(&mut map, &key, value)?;
        }
        Ok(Value::Object(map))
    }
}

/// Adds a member to an object that has none of this name: of two, it would be unclear which was meant.
pub fn insert_once<E: de::Error>(
    members: &mut Map<String, Value>,
    name: &str,
    value: Value,
) -> Result<(), E> {
    match members.insert(name.to_owned(), value) {
        None => Ok(()),
        Some(_) => Err(given_twice(name)),
    }
}

pub(super) fn given_twice<E: de::Error>(name: &str) -> E {
    E::custom(format!("{:?} is given twice", shorten(name)))
}
