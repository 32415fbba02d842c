//! What a pickle holds.

use std::borrow::Cow;

/// Names a value of a [`Pickle`]. The same value may be part of many others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub(super) u32);

/// A Python value. Containers name their parts.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer from 2^63 to 2^64, such as the handle of a stream.
    Unsigned(u64),
    /// An integer beyond 64 bits; which one is not kept.
    Long,
    /// A `float`.
    Float(f64),
    /// A `str`.
    Text(Cow<'a, str>),
    /// A `bytes` or `bytearray`.
    Bytes(&'a [u8]),
    /// A `list`, `tuple`, `set` or `frozenset`.
    Sequence(Vec<ValueId>),
    /// A `dict`, in the order of insertion.
    Map(Vec<(ValueId, ValueId)>),
}

impl Value<'_> {
    /// What Python calls its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Int(_) | Value::Unsigned(_) | Value::Long => "an int",
            Value::Float(_) => "a float",
            Value::Text(_) => "a str",
            Value::Bytes(_) => "bytes",
            Value::Sequence(_) => "a list",
            Value::Map(_) => "a dict",
        }
    }
}

/// A pickle that has been read.
#[derive(Debug, Clone)]
pub struct Pickle<'a> {
    pub(super) values: Vec<Value<'a>>,
    pub(super) root: ValueId,
}

impl<'a> Pickle<'a> {
    /// The value that was pickled.
    pub fn root(&self) -> ValueId {
        self.root
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value<'a> {
        &self.values[id.0 as usize]
    }

    /// What a `dict` has under a key; the last one counts.
    pub fn member(&self, map: &[(ValueId, ValueId)], key: &str) -> Option<ValueId> {
        let found = map.iter().rev().find(
            |(name, _)| matches!(self.value(*name), Value::Text(text) if text.as_ref() == key),
        );
        found.map(|(_, value)| *value)
    }
}
