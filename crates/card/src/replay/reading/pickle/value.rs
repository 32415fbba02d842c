//! What a pickle holds.

use std::borrow::Cow;

use super::opcode::Opcode;

/// Names a value of a [`Pickle`]. The same value may be part of many others.
///
/// Numbers and texts stay in the file, and are named by where they are in it; containers have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub(super) u32);

/// Marks the number of a container.
const CONTAINER: u32 = 1 << 31;

/// The largest file: places in it and numbers of containers share 32 bits.
pub(super) const LARGEST_FILE: usize = CONTAINER as usize;

impl ValueId {
    /// The value whose opcode is here.
    pub(super) fn in_file(place: usize) -> ValueId {
        ValueId(u32::try_from(place).expect("the file is smaller than 2 GiB"))
    }

    pub(super) fn of_container(number: usize) -> ValueId {
        let number = u32::try_from(number).expect("there are fewer containers than bytes");
        ValueId(number | CONTAINER)
    }

    pub(super) fn container(self) -> Option<usize> {
        (self.0 & CONTAINER != 0).then_some((self.0 & !CONTAINER) as usize)
    }
}

/// What a container holds.
#[derive(Debug, Clone)]
pub(super) enum Container {
    /// A `list`, `tuple`, `set` or `frozenset`.
    Sequence(Vec<ValueId>),
    /// A `dict`: keys and values in turn.
    Map(Vec<ValueId>),
}

/// The bytes of a text that is looked at: as long as a path of Linux. Few bytes of a pickle can name one text, or one `dict`, millions of times.
const MOST_TEXT: usize = 4096;

/// The members of a `dict` that are looked at: an event of PyTorch's snapshots has about ten.
const MOST_MEMBERS: usize = 64;

/// A Python value. Containers name their parts.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'p> {
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
    Text(Cow<'p, str>),
    /// A `bytes` or `bytearray`, or a `str` of more than [`MOST_TEXT`].
    Bytes(&'p [u8]),
    /// A `list`, `tuple`, `set` or `frozenset`.
    Sequence(&'p [ValueId]),
    /// A `dict`, in the order of insertion: keys with their values.
    Map(&'p [[ValueId; 2]]),
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
            Value::Bytes(_) => "bytes or a very long str",
            Value::Sequence(_) => "a list",
            Value::Map(_) => "a dict",
        }
    }
}

/// A pickle that has been read.
#[derive(Debug, Clone)]
pub struct Pickle<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) containers: Vec<Container>,
    pub(super) root: ValueId,
}

impl Pickle<'_> {
    /// The value that was pickled.
    pub fn root(&self) -> ValueId {
        self.root
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> Value<'_> {
        match id.container().map(|number| &self.containers[number]) {
            Some(Container::Sequence(parts)) => Value::Sequence(parts),
            Some(Container::Map(parts)) => Value::Map(parts.as_chunks().0),
            None => scalar(self.bytes, id.0 as usize),
        }
    }

    /// What a `dict` has under a key, as one of its last [`MOST_MEMBERS`]; the last one counts.
    pub fn member(&self, map: &[[ValueId; 2]], key: &str) -> Option<ValueId> {
        let named = |name: ValueId| {
            let is_scalar = name.container().is_none();
            is_scalar && text(self.bytes, name.0 as usize) == Some(key.as_bytes())
        };
        let mut last = map.iter().rev().take(MOST_MEMBERS);
        let found = last.find(|[name, _]| named(*name));
        found.map(|[_, value]| *value)
    }
}

/// What a length of `width` bytes is followed by.
fn counted(bytes: &[u8], width: usize) -> Option<&[u8]> {
    let (length, data) = bytes.split_at_checked(width)?;
    let length = length
        .iter()
        .rev()
        .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    data.get(..usize::try_from(length).ok()?)
}

/// The bytes of a `str` whose opcode is at `place`.
fn text(bytes: &[u8], place: usize) -> Option<&[u8]> {
    let (first, rest) = bytes.get(place..)?.split_first()?;
    let width = match Opcode::from_byte(*first)? {
        Opcode::SHORT_BINSTRING | Opcode::SHORT_BINUNICODE => 1,
        Opcode::BINSTRING | Opcode::BINUNICODE => 4,
        Opcode::BINUNICODE8 => 8,
        _not_a_text => return None,
    };
    counted(rest, width)
}

/// The value whose opcode is at `place`, where the machine found one that is whole.
fn scalar(bytes: &[u8], place: usize) -> Value<'_> {
    let read = || {
        let (first, rest) = bytes.get(place..)?.split_first()?;
        if let Some(text) = text(bytes, place) {
            return Some(if text.len() > MOST_TEXT {
                Value::Bytes(text)
            } else {
                Value::Text(String::from_utf8_lossy(text))
            });
        }
        let counted = |width: usize| counted(rest, width);
        Some(match Opcode::from_byte(*first)? {
            Opcode::NONE => Value::None,
            Opcode::NEWTRUE => Value::Bool(true),
            Opcode::NEWFALSE => Value::Bool(false),
            Opcode::BININT => Value::Int(i32::from_le_bytes(*rest.first_chunk()?).into()),
            Opcode::BININT1 => Value::Int((*rest.first()?).into()),
            Opcode::BININT2 => Value::Int(u16::from_le_bytes(*rest.first_chunk()?).into()),
            Opcode::LONG1 => long(counted(1)?),
            Opcode::LONG4 => long(counted(4)?),
            Opcode::BINFLOAT => Value::Float(f64::from_be_bytes(*rest.first_chunk()?)),
            Opcode::SHORT_BINBYTES => Value::Bytes(counted(1)?),
            Opcode::BINBYTES => Value::Bytes(counted(4)?),
            Opcode::BINBYTES8 | Opcode::BYTEARRAY8 => Value::Bytes(counted(8)?),
            _not_a_scalar => return None,
        })
    };
    read().expect("the machine has seen a scalar here")
}

/// A two's complement number of any length, least significant byte first.
fn long(digits: &[u8]) -> Value<'static> {
    let length = digits.len();
    let negative = digits.last().is_some_and(|byte| byte & 0x80 != 0);
    if length > 9 || (length == 9 && digits[8] != 0) {
        return Value::Long;
    }
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    let kept = length.min(8);
    wide[..kept].copy_from_slice(&digits[..kept]);
    let value = u64::from_le_bytes(wide);
    match i64::try_from(value) {
        Ok(int) if !negative => Value::Int(int),
        _ if negative => Value::Int(value.cast_signed()),
        _ => Value::Unsigned(value),
    }
}
