//! Lists, tables and texts that are charged for.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::value::given_twice;
use super::{ALLOCATION, spend};

/// Longest text read that has escapes in it, and so cannot stay where it is.
const LONGEST_ESCAPED: usize = 1 << 16;

/// A list that is charged for.
#[derive(Debug)]
pub struct List<T>(Box<[T]>);

impl<T> List<T> {
    /// The same list of something else, no larger.
    pub fn map<U>(self, change: impl FnMut(T) -> U) -> List<U> {
        List(self.0.into_iter().map(change).collect())
    }
}

impl<T> FromIterator<T> for List<T> {
    /// A list that was made here, for which nothing is charged.
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
                        spend(ALLOCATION)?;
                    }
                    spend(size_of::<T>())?;
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
pub struct Table<'a, T>(Box<[(Text<'a>, T)]>);

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
                    spend(size_of::<(Text<'de>, T)>())?;
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
pub enum Text<'a> {
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
                spend(ALLOCATION + text.len())?;
                Ok(Text::Here(text.into()))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}
