//! Reads JSON objects field by field, so that every problem names its place, its value and what would be
//! right.
//!
//! Derived deserialization was rejected for requests: through tagged and flattened enums it loses the
//! place, and it cannot suggest the nearest field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::members::{Choice, Kind, Member, Object};
use super::request_error::RequestError;
use super::synonyms;
use crate::limits::shorten;

/// Largest size read for anything in a model: keeps products of a few of them inside `u64`.
pub const LARGEST: u64 = 1 << 31;

/// How many unknown fields of an object are named.
const MOST_NAMED: usize = 8;

/// A JSON object all of whose fields are known.
#[derive(Debug)]
pub struct Fields<'a> {
    pointer: String,
    map: &'a Map<String, Value>,
    /// Their rows, where the object has some.
    members: &'static [Member],
}

impl<'a> Fields<'a> {
    /// The object at `pointer` of which there are rows.
    pub fn of_object(
        value: &'a Value,
        pointer: &str,
        object: &'static Object,
    ) -> Result<Fields<'a>, RequestError> {
        let known: Vec<&str> = object.names().collect();
        let members = object.members;
        let fields = Fields::of(value, pointer, object.what, &known)?;
        Ok(Fields { members, ..fields })
    }

    /// A member that is an object of which there are rows.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, RequestError> {
        let (value, Kind::Object(object)) = (self.get(name), self.row(name).kind) else {
            return Ok(None);
        };
        value
            .map(|value| Fields::of_object(value, &self.at(name), object))
            .transpose()
    }

    /// A member, as its row says.
    pub fn read<T: Readable<'a>>(&self, name: &str) -> Result<Option<T>, RequestError> {
        T::read(self, self.row(name))
    }

    /// The members of one value each, as their rows say, read into the fields of a type that have their names.
    pub fn read_into<T: DeserializeOwned>(&self) -> Result<T, RequestError> {
        let mut read = Map::new();
        for row in self.members {
            let value = match row.kind {
                Kind::Whole(..) => self.read::<u64>(row.name)?.map(Value::from),
                Kind::Number(..) | Kind::Positive => self.read::<f64>(row.name)?.map(Value::from),
                Kind::Bool => self.read::<bool>(row.name)?.map(Value::from),
                Kind::Text => self.text(row.name)?.map(Value::from),
                Kind::Word(what, words) => {
                    let known: Vec<_> = words().into_iter().map(|word| (word, word)).collect();
                    self.choice(row.name, what, &known)?.map(Value::from)
                }
                Kind::Bools
                | Kind::Words(_)
                | Kind::Globs
                | Kind::Size
                | Kind::Object(_)
                | Kind::Other => None,
            };
            read.extend(value.map(|value| (row.name.to_owned(), value)));
        }
        serde_json::from_value(Value::Object(read))
            .map_err(|error| RequestError::at(&self.pointer, error.to_string()))
    }

    /// The names of the members that are there and that inference has none of.
    pub fn of_training(&self) -> impl Iterator<Item = &'static str> {
        let rows = self.members.iter().filter(|row| row.trains);
        rows.map(|row| row.name)
            .filter(|name| self.get(name).is_some())
    }

    /// What the words of one member say of another, such as `adamw_torch_fused` of how an optimizer is implemented.
    pub fn implied<T: Choice>(&self, by: &str, member: &str) -> Option<T> {
        let words = match self.get(by)? {
            Value::Array(words) => words.as_slice(),
            word => std::slice::from_ref(word),
        };
        let mut values = words
            .iter()
            .filter_map(|word| synonyms::implied(word.as_str()?, member));
        let value = values.next()?;
        let named = T::names().into_iter().find(|(name, _)| *name == value);
        named.map(|(_, meaning)| meaning)
    }

    fn row(&self, name: &str) -> &'static Member {
        let row = self.members.iter().find(|member| member.name == name);
        row.expect("what is read has a row")
    }

    /// The object at `pointer`; `what` names it in problems, such as "the request".
    pub fn of(
        value: &'a Value,
        pointer: &str,
        what: &str,
        known: &[&str],
    ) -> Result<Fields<'a>, RequestError> {
        let fields = Fields::any(value, pointer, what)?;
        let unknown: Vec<&str> = fields.unknown_keys(known).take(MOST_NAMED).collect();
        match unknown.as_slice() {
            [] => Ok(fields),
            [one] => Err(fields.unknown(one, what, known)),
            several => {
                let problems: Vec<RequestError> = several
                    .iter()
                    .map(|key| fields.unknown(key, what, known))
                    .collect();
                let others = fields.unknown_keys(known).count() - several.len();
                Err(synonyms::together(pointer, what, &problems, others))
            }
        }
    }

    /// The object at `pointer`, whatever its fields.
    pub fn any(value: &'a Value, pointer: &str, what: &str) -> Result<Fields<'a>, RequestError> {
        match value {
            Value::Object(map) => Ok(Fields {
                pointer: pointer.to_owned(),
                map,
                members: &[],
            }),
            other => {
                let example = match other {
                    Value::String(name) if pointer == "/model" => {
                        format!(", such as {{\"preset\": {:?}}}", shorten(name))
                    }
                    Value::String(name) if pointer.ends_with("/parallel") => {
                        format!(", such as {{\"strategy\": {:?}}}", shorten(name))
                    }
                    Value::Number(rank) if pointer == "/model/lora" => {
                        format!(", such as {{\"r\": {rank}}}")
                    }
                    _ => String::new(),
                };
                Err(wrong(
                    pointer,
                    other,
                    &format!("{what} must be an object{example}"),
                ))
            }
        }
    }

    /// The first field that is none of these.
    pub fn unknown_key(&self, known: &[&str]) -> Option<&'a str> {
        self.unknown_keys(known).next()
    }

    fn unknown_keys(&self, known: &[&str]) -> impl Iterator<Item = &'a str> {
        let keys = self.map.keys().map(String::as_str);
        keys.filter(|key| !known.contains(key))
    }

    /// The pointer to a field.
    pub fn at(&self, field: &str) -> String {
        format!(
            "{}/{}",
            self.pointer,
            shorten(field).replace('~', "~0").replace('/', "~1")
        )
    }

    /// A problem with a field.
    pub fn wrong(&self, field: &str, problem: impl Into<String>) -> RequestError {
        RequestError::at(self.at(field), problem)
    }

    /// A field; `null` is as good as absent.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// The last of these fields that is there.
    pub fn last_of(&self, names: &[String]) -> Option<&'a str> {
        let mut keys = self.map.keys().rev();
        let is_there = |key: &&String| names.contains(key) && self.get(key).is_some();
        keys.find(is_there).map(String::as_str)
    }

    /// Whether a field is there and `null`.
    pub fn is_null(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(Value::is_null)
    }

    /// A problem with a field that `what` does not have.
    pub fn unknown(&self, key: &str, what: &str, known: &[&str]) -> RequestError {
        let field = (key, self.map.get(key));
        synonyms::unknown_field(&self.pointer, &self.at(key), field, what, known)
    }

    /// A problem with the object for lack of a field.
    pub fn missing(&self, field: &str) -> RequestError {
        RequestError::at(&self.pointer, format!("the field {field:?} is missing"))
    }

    /// A field, as `read` understands it; what it does not is told what it must be.
    fn understood<T>(
        &self,
        field: &str,
        must: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, RequestError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let must = || wrong(&self.at(field), value, &format!("{field} must be {must}"));
        read(value).map(Some).ok_or_else(must)
    }

    /// A text.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, RequestError> {
        self.understood(field, "a text", Value::as_str)
    }

    /// `true` or `false`.
    pub fn flag(&self, field: &str) -> Result<Option<bool>, RequestError> {
        self.understood(field, "true or false", Value::as_bool)
    }

    /// A number within bounds.
    pub fn number(&self, field: &str, least: f64, most: f64) -> Result<Option<f64>, RequestError> {
        let wanted = format!("a number from {least} to {most}");
        self.understood(field, &wanted, |value| {
            value
                .as_f64()
                .filter(|number| (least..=most).contains(number))
        })
    }

    /// A number above 0.
    fn positive(&self, field: &str) -> Result<Option<f64>, RequestError> {
        let is_positive = |number: &f64| number.is_finite() && *number > 0.0;
        self.understood(field, "a number above 0, such as 1.0", |value| {
            value.as_f64().filter(is_positive)
        })
    }

    /// A whole number within bounds.
    pub fn whole(&self, field: &str, least: u64, most: u64) -> Result<Option<u64>, RequestError> {
        let value = self.get(field);
        value
            .map(|value| whole(value, &self.at(field), field, least, most))
            .transpose()
    }

    /// A size: a whole number of at least one.
    pub fn size(&self, field: &str) -> Result<Option<u64>, RequestError> {
        self.whole(field, 1, LARGEST)
    }

    /// Height and width, of which one number stands for both.
    pub fn pair(&self, field: &str, least: u64) -> Result<Option<[u64; 2]>, RequestError> {
        let at = self.at(field);
        let one = |value: &Value, at: &str| whole(value, at, field, least, LARGEST);
        match self.get(field) {
            None => Ok(None),
            Some(Value::Array(values)) => {
                let [height, width] = values.as_slice() else {
                    let problem = format!("{field} must be a number or [height, width]");
                    let found = values.len();
                    return Err(RequestError::at(
                        at,
                        format!("{problem}, not {found} numbers"),
                    ));
                };
                Ok(Some([
                    one(height, &format!("{at}/0"))?,
                    one(width, &format!("{at}/1"))?,
                ]))
            }
            Some(both) => one(both, &at).map(|both| Some([both, both])),
        }
    }

    /// A list of `what`, each of which is read from where it is.
    pub fn list<T>(
        &self,
        field: &str,
        what: &str,
        read: impl Fn(&'a Value, &str) -> Result<T, RequestError>,
    ) -> Result<Option<Vec<T>>, RequestError> {
        let form = format!("a list of {what}");
        let Some(items) = self.understood(field, &form, Value::as_array)? else {
            return Ok(None);
        };
        let at = self.at(field);
        let each = |(index, item)| read(item, &format!("{at}/{index}"));
        items
            .iter()
            .enumerate()
            .map(each)
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// A list of sizes.
    pub fn sizes(&self, field: &str) -> Result<Option<Vec<u64>>, RequestError> {
        self.list(field, "sizes", |value, at| {
            whole(value, at, field, 1, LARGEST)
        })
    }

    /// A list of texts.
    pub fn texts(&self, field: &str) -> Result<Option<Vec<&'a str>>, RequestError> {
        self.list(field, "texts", |value, at| {
            let text = value.as_str();
            text.ok_or_else(|| wrong(at, value, &format!("{field} must be a list of texts")))
        })
    }

    /// One of a few words.
    pub fn choice<T: Copy>(
        &self,
        field: &str,
        what: &str,
        known: &[(&str, T)],
    ) -> Result<Option<T>, RequestError> {
        let value = self.get(field);
        value
            .map(|value| choice(value, &self.at(field), what, known))
            .transpose()
    }
}

/// What a member can be read as.
pub trait Readable<'a>: Sized {
    /// Reads it as its row says.
    fn read(fields: &Fields<'a>, row: &Member) -> Result<Option<Self>, RequestError>;
}

impl<'a> Readable<'a> for u64 {
    fn read(fields: &Fields<'a>, row: &Member) -> Result<Option<u64>, RequestError> {
        match row.kind {
            Kind::Whole(least, most) => fields.whole(row.name, least, most),
            kind => unreachable!("{} is {kind:?}", row.name),
        }
    }
}

impl<'a> Readable<'a> for f64 {
    fn read(fields: &Fields<'a>, row: &Member) -> Result<Option<f64>, RequestError> {
        match row.kind {
            Kind::Number(least, most) => fields.number(row.name, least, most),
            _ => fields.positive(row.name),
        }
    }
}

impl<'a> Readable<'a> for bool {
    fn read(fields: &Fields<'a>, row: &Member) -> Result<Option<bool>, RequestError> {
        fields.flag(row.name)
    }
}

impl<'a> Readable<'a> for &'a str {
    fn read(fields: &Fields<'a>, row: &Member) -> Result<Option<&'a str>, RequestError> {
        fields.text(row.name)
    }
}

impl<'a, T: Choice> Readable<'a> for T {
    fn read(fields: &Fields<'a>, row: &Member) -> Result<Option<T>, RequestError> {
        match row.kind {
            Kind::Word(what, _) => fields.choice(row.name, what, &T::names()),
            kind => unreachable!("{} is {kind:?}", row.name),
        }
    }
}

/// One of a few words.
pub fn choice<T: Copy>(
    value: &Value,
    pointer: &str,
    what: &str,
    known: &[(&str, T)],
) -> Result<T, RequestError> {
    let Value::String(word) = value else {
        let must = format!("the {what} must be a text");
        return Err(wrong(pointer, value, &must).or_word(what, value));
    };
    let named = |word: &str| known.iter().find(|(name, _)| *name == word);
    let found = named(word)
        .or_else(|| named(&word.to_lowercase()))
        .or_else(|| named(synonyms::same(what, word)?));
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        RequestError::unknown(pointer, what, word, known.iter().map(|(name, _)| *name))
    })
}

/// A whole number within bounds; `1024.0` is one too, because many JSON writers print it so.
pub fn whole(
    value: &Value,
    pointer: &str,
    field: &str,
    least: u64,
    most: u64,
) -> Result<u64, RequestError> {
    /// Up to here every whole `f64` is the number that was written.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be whole, not negative and exact"
    )]
    let integral = |number: f64| {
        (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
    };
    let number = value.as_u64().or_else(|| value.as_f64().and_then(integral));
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| {
            wrong(
                pointer,
                value,
                &format!("{field} must be a whole number from {least} to {most}"),
            )
        })
}

/// `{must}, not {value}`.
pub fn wrong(pointer: &str, value: &Value, must: &str) -> RequestError {
    let found = match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => shorten(&other.to_string()),
    };
    RequestError::at(pointer, format!("{must}, not {found}")).with_value(value)
}
