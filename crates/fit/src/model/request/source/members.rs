//! A model's description as it is read: what may be megabytes stays text.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::limits::{AnyValue, Text, clause, insert_once, with_budget};
use batchfit_models::RequestError;

/// What a model's description may take in memory, apart from a graph and a list of layers: a config that names the 21,841 classes of
/// `ImageNet` in two tables takes half of it.
const MEMBERS_BYTES: usize = 16 << 20;

/// The members of a model's description. Those that may be megabytes stay text; `true` stands for them.
#[derive(Default)]
pub(super) struct Members<'a> {
    pub(super) values: Value,
    pub(super) exported: Option<&'a str>,
    pub(super) recorded: Option<&'a str>,
    pub(super) layers: Option<&'a str>,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut members = Members::default();
        let mut values = Map::new();
        while let Some(key) = map.next_key::<Text<'de>>()? {
            let text = match &*key {
                "exported" => &mut members.exported,
                "recorded" => &mut members.recorded,
                "layers" => &mut members.layers,
                _ => {
                    let value = map.next_value::<AnyValue>()?.0;
                    insert_once(&mut values, &key, value)?;
                    continue;
                }
            };
            *text = Some(map.next_value::<&'de RawValue>()?.get()).filter(|text| *text != "null");
            let stands = text.map_or(Value::Null, |_| Value::Bool(true));
            insert_once(&mut values, &key, stands)?;
        }
        members.values = Value::Object(values);
        Ok(members)
    }
}

impl<'a> Members<'a> {
    pub(super) fn read(text: &'a str, pointer: &str) -> Result<Members<'a>, RequestError> {
        let (members, excess) = with_budget(MEMBERS_BYTES, || {
            if text.starts_with('{') {
                return serde_json::from_str(text);
            }
            serde_json::from_str(text).map(|AnyValue(values)| Members {
                values,
                ..Members::default()
            })
        });
        members.map_err(|error: serde_json::Error| {
            RequestError::at(
                pointer,
                match excess {
                    Some(_) => format!(
                        "the model's description would take more than {} MiB of memory, beside a graph or layers",
                        MEMBERS_BYTES >> 20
                    ),
                    None => clause(&error),
                },
            )
        })
    }
}
