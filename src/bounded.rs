//! Bounds on what reading a document may take, and on what errors repeat of it.
//!
//! A few bytes of JSON can become many in memory: `{},` is three in the text and a hundred as a value. So what
//! is read from a document is charged to an account while it is being read, and reading ends when the account is
//! empty. The account belongs to the thread, because derived deserialization has no place to carry it along.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// What reading a document may take beyond the document, in bytes; a larger document may take its own size.
///
/// An export of 100,000 operators takes 40 to 60 MiB.
pub(crate) const LEAST_ACCOUNT: usize = 64 << 20;

/// What an allocation takes besides its contents: two words, as in glibc's `malloc`.
const ALLOCATION: usize = 16;

/// Longest text read that has escapes in it, and so cannot stay where it is.
const LONGEST_ESCAPED: usize = 1 << 16;

/// How much an error repeats of a word of somebody else, in characters.
const LONGEST_WORD: usize = 60;

/// How much of a sentence with such words in it is kept at its beginning and at its end, in characters. The longest
/// of our own have a few hundred.
const SENTENCE: [usize; 2] = [700, 300];

thread_local! {
    static ACCOUNT: Cell<Option<Account>> = const { Cell::new(None) };
    /// Becomes true when nobody wants what this thread reads.
    static CANCEL: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

#[derive(Debug, Clone, Copy)]
struct Account {
    left: usize,
    nodes_left: usize,
    names_left: usize,
    excess: Option<Excess>,
}

/// Which bound a document passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    /// It would take more memory than it may.
    Memory,
    /// It has more nodes.
    Nodes,
    /// They have more operands and results.
    Names,
    /// Not a bound of the document: nobody wants it any more.
    Cancelled,
}

/// Most nodes of a graph. The largest models in use have a few tens of thousands.
pub(crate) const MOST_NODES: usize = 100_000;

/// Most operands and results of all nodes together. Convolutional nets have six for each node, most others three.
pub(crate) const MOST_NAMES: usize = 8 * MOST_NODES;

/// Runs `read` with an account of this many bytes; says which bound was passed, when one was.
pub(crate) fn within<T>(bytes: usize, read: impl FnOnce() -> T) -> (T, Option<Excess>) {
    let account = Account {
        left: bytes,
        nodes_left: MOST_NODES,
        names_left: MOST_NAMES,
        excess: None,
    };
    let outer = ACCOUNT.replace(Some(account));
    let read = read();
    let excess = ACCOUNT.replace(outer).and_then(|account| account.excess);
    (read, excess)
}

/// Runs `read`, whose reading ends soon after `cancel` becomes true; `None` when it was true at the end, and so perhaps
/// ended it.
pub(crate) fn unless<T>(cancel: &Arc<AtomicBool>, read: impl FnOnce() -> T) -> Option<T> {
    let outer = CANCEL.replace(Some(Arc::clone(cancel)));
    let read = read();
    CANCEL.replace(outer);
    (!cancel.load(Ordering::Relaxed)).then_some(read)
}

/// Asks whoever has the flag to stop, once nobody waits any more.
#[derive(Debug, Default)]
pub(crate) struct CancelOnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether nobody wants what this thread reads any more: see [`unless`].
pub(crate) fn is_cancelled() -> bool {
    CANCEL.with_borrow(|cancel| {
        cancel
            .as_ref()
            .is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    })
}

/// A word of a document, short enough to repeat in a message.
pub(crate) fn shorten(word: &str) -> String {
    match word.char_indices().nth(LONGEST_WORD) {
        None => word.to_owned(),
        Some((end, _)) => format!("{}…", &word[..end]),
    }
}

/// A sentence about a document, short enough to read whatever words it repeats: of a long one, both ends.
pub(crate) fn shorten_sentence(sentence: impl Into<String>) -> String {
    let sentence = sentence.into();
    let [first, last] = SENTENCE;
    if sentence.char_indices().nth(first + last).is_none() {
        return sentence;
    }
    let end = |mut places: std::str::CharIndices<'_>| places.nth(first).map(|(end, _)| end);
    let start = sentence
        .char_indices()
        .rev()
        .nth(last - 1)
        .map(|(start, _)| start);
    match (end(sentence.char_indices()), start) {
        (Some(end), Some(start)) => format!("{} … {}", &sentence[..end], &sentence[start..]),
        _ => sentence,
    }
}

/// What is wrong with a document by its reader, without the position.
pub(crate) fn clause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let clause = match text.rfind(" at line ") {
        Some(end) if error.line() > 0 => &text[..end],
        _ => &text,
    };
    shorten_sentence(clause)
}

/// Takes bytes out of the account, where there is one.
pub(crate) fn charge<E: de::Error>(bytes: usize) -> Result<(), E> {
    let Some(mut account) = ACCOUNT.get() else {
        return Ok(());
    };
    if is_cancelled() {
        account.excess = Some(Excess::Cancelled);
        ACCOUNT.set(Some(account));
        return Err(E::custom("nobody wants it any more"));
    }
    let left = account.left.checked_sub(bytes);
    if left.is_none() {
        account.excess = Some(Excess::Memory);
    }
    account.left = left.unwrap_or(0);
    ACCOUNT.set(Some(account));
    left.map(drop)
        .ok_or_else(|| E::custom("reading it would take more memory than it may"))
}

/// Counts one more node of a graph.
pub(crate) fn count_node<E: de::Error>() -> Result<(), E> {
    let Some(mut account) = ACCOUNT.get() else {
        return Ok(());
    };
    let left = account.nodes_left.checked_sub(1);
    if left.is_none() {
        account.excess = Some(Excess::Nodes);
    }
    account.nodes_left = left.unwrap_or(0);
    ACCOUNT.set(Some(account));
    left.map(drop).ok_or_else(|| E::custom("too many nodes"))
}

/// Counts operands or results of a node.
pub(crate) fn count_names<E: de::Error>(names: usize) -> Result<(), E> {
    let Some(mut account) = ACCOUNT.get() else {
        return Ok(());
    };
    let left = account.names_left.checked_sub(names);
    if left.is_none() {
        account.excess = Some(Excess::Names);
    }
    account.names_left = left.unwrap_or(0);
    ACCOUNT.set(Some(account));
    left.map(drop).ok_or_else(|| E::custom("too many operands"))
}

/// A list that is charged for.
#[derive(Debug)]
pub(crate) struct List<T>(Box<[T]>);

impl<T> List<T> {
    /// The same list of something else, no larger.
    pub(crate) fn map<U>(self, change: impl FnMut(T) -> U) -> List<U> {
        List(self.0.into_iter().map(change).collect())
    }
}

impl<T> FromIterator<T> for List<T> {
    /// A list that nobody outside made, and nothing charges for.
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> List<T> {
        List(items.into_iter().collect())
    }
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List(Box::default())
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        struct Items<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<List<T>, S::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    if list.is_empty() {
                        charge(ALLOCATION)?;
                    }
                    charge(size_of::<T>())?;
                    list.push(item);
                }
                Ok(List(list.into_boxed_slice()))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// An object whose keys are names, in the order of the document; charged for.
#[derive(Debug)]
pub(crate) struct Table<'a, T>(Box<[(Text<'a>, T)]>);

impl<T> Default for Table<'_, T> {
    fn default() -> Self {
        Table(Box::default())
    }
}

impl<'a, T> Deref for Table<'a, T> {
    type Target = [(Text<'a>, T)];

    fn deref(&self) -> &[(Text<'a>, T)] {
        &self.0
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Table<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Table<'a, T>, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Box<[(Text<'de>, T)]>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut entries: M) -> Result<Self::Value, M::Error> {
                let mut list: Vec<(Text<'de>, T)> = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    charge(size_of::<(Text<'de>, T)>())?;
                    list.push(entry);
                }
                let mut names = HashSet::with_capacity(list.len());
                if let Some((twice, _)) = list.iter().find(|(name, _)| !names.insert(&**name)) {
                    return Err(given_twice(twice));
                }
                drop(names);
                Ok(list.into_boxed_slice())
            }
        }
        deserializer
            .deserialize_map(Entries(PhantomData))
            .map(Table)
    }
}

/// A text that stays where it is in the document, unless it has escapes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Text<'a> {
    /// As it is in the document.
    There(&'a str),
    /// With its escapes replaced.
    Here(Box<str>),
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Default for Text<'_> {
    fn default() -> Self {
        Text::There("")
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text::Here(text.into_boxed_str())
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::There(text) => text,
            Text::Here(text) => text,
        }
    }
}

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        self
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'a>, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text::There(text))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                if text.len() > LONGEST_ESCAPED {
                    return Err(E::custom(format!(
                        "a text of {} bytes with escapes; at most {LONGEST_ESCAPED} are read",
                        text.len()
                    )));
                }
                charge(ALLOCATION + text.len())?;
                Ok(Text::Here(text.into()))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A JSON value of any shape, charged for.
#[derive(Debug)]
pub(crate) struct AnyValue(pub(crate) Value);

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
        charge(ALLOCATION + text.len())?;
        Ok(Value::from(text))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Value, S::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(AnyVisitor)? {
            // A list grows to twice what it needs.
            charge(ALLOCATION + 2 * size_of::<Value>())?;
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Value, M::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<Text<'de>>()? {
            charge(2 * ALLOCATION + MEMBER + key.len())?;
            let value = members.next_value_seed(AnyVisitor)?;
            insert_once(&mut map, &key, value)?;
        }
        Ok(Value::Object(map))
    }
}

/// Adds a member to an object that has none of this name: of two, nobody could tell which was meant.
pub(crate) fn insert_once<E: de::Error>(
    members: &mut Map<String, Value>,
    name: &str,
    value: Value,
) -> Result<(), E> {
    match members.insert(name.to_owned(), value) {
        None => Ok(()),
        Some(_) => Err(given_twice(name)),
    }
}

fn given_twice<E: de::Error>(name: &str) -> E {
    E::custom(format!("{:?} is given twice", shorten(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_repeats_is_short_and_has_both_ends() {
        assert_eq!(shorten("é"), "é");
        assert_eq!(shorten(&"é".repeat(61)), format!("{}…", "é".repeat(60)));
        assert_eq!(shorten_sentence("a".repeat(1000)).len(), 1000);
        let long = format!("{}{}", "é".repeat(5000), "b".repeat(300));
        let short = format!("{} … {}", "é".repeat(700), "b".repeat(300));
        assert_eq!(shorten_sentence(long), short);
    }

    #[test]
    fn a_member_is_given_once_however_deep() {
        for (text, twice) in [
            (r#"{"a": 1, "a": 1}"#, r#""a" is given twice"#),
            (
                r#"[{"a": [{"b": 1, "\u0062": 2}]}]"#,
                r#""b" is given twice"#,
            ),
        ] {
            let error = serde_json::from_str::<AnyValue>(text).unwrap_err();
            assert_eq!(clause(&error), twice);
        }
        let table = serde_json::from_str::<Table<'_, u64>>(r#"{"a": 1, "b": 2, "a": 3}"#);
        assert_eq!(clause(&table.unwrap_err()), r#""a" is given twice"#);
    }

    #[test]
    fn what_would_take_too_much_is_not_read() {
        let objects = format!("[{}{{}}]", "{},".repeat(100_000));
        let read = || serde_json::from_str::<AnyValue>(&objects).is_ok();

        assert_eq!(within(1 << 30, read), (true, None));
        assert_eq!(within(1 << 20, read), (false, Some(Excess::Memory)));
    }

    #[test]
    fn accounts_end_with_what_they_are_for() {
        let (inner, outer) = within(0, || within(64, || charge::<de::value::Error>(64).is_ok()));

        assert_eq!(inner, (true, None));
        assert_eq!(outer, None);
        assert!(charge::<de::value::Error>(usize::MAX).is_ok());
    }

    #[test]
    fn texts_stay_where_they_are_unless_they_have_escapes() {
        let plain: Text<'_> = serde_json::from_str(r#""layer.0""#).unwrap();
        let escaped: Text<'_> = serde_json::from_str(r#""caf\u00e9""#).unwrap();

        assert_eq!(plain, Text::There("layer.0"));
        assert_eq!(escaped, Text::Here("café".into()));
    }
}
