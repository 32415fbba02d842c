//! Reads JSON objects field by field, so that every problem names its place, its value and what would be
//! right.
//!
//! Derived deserialization was rejected for requests: through tagged and flattened enums it loses the
//! place, and it cannot suggest the nearest field.

use serde_json::{Map, Value};

use super::invalid::Invalid;
use crate::bounded::shorten;

/// Largest size read for anything in a model: keeps products of a few of them inside `u64`.
pub(crate) const LARGEST: u64 = 1 << 31;

/// A JSON object all of whose fields are known.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    pointer: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The object at `pointer`; `what` names it in problems, such as "the request".
    pub(crate) fn of(
        value: &'a Value,
        pointer: &str,
        what: &str,
        known: &[&str],
    ) -> Result<Fields<'a>, Invalid> {
        let fields = Fields::any(value, pointer, what)?;
        match fields.unknown_key(known) {
            None => Ok(fields),
            Some(key) => Err(fields.unknown(key, what, known)),
        }
    }

    /// The object at `pointer`, whatever its fields.
    pub(crate) fn any(value: &'a Value, pointer: &str, what: &str) -> Result<Fields<'a>, Invalid> {
        match value {
            Value::Object(map) => Ok(Fields {
                pointer: pointer.to_owned(),
                map,
            }),
            other => Err(wrong(pointer, other, &format!("{what} must be an object"))),
        }
    }

    /// The first field that is none of these.
    pub(crate) fn unknown_key(&self, known: &[&str]) -> Option<&'a str> {
        self.map
            .keys()
            .map(String::as_str)
            .find(|key| !known.contains(key))
    }

    /// The pointer to a field.
    pub(crate) fn at(&self, field: &str) -> String {
        format!(
            "{}/{}",
            self.pointer,
            shorten(field).replace('~', "~0").replace('/', "~1")
        )
    }

    /// A field; `null` is as good as absent.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// Whether a field is there and `null`.
    pub(crate) fn is_null(&self, field: &str) -> bool {
        self.map.get(field).is_some_and(Value::is_null)
    }

    /// A problem with a field that `what` does not have.
    pub(crate) fn unknown(&self, key: &str, what: &str, known: &[&str]) -> Invalid {
        let shown = shorten(key);
        Invalid {
            problem: format!("{what} has no field {shown:?}"),
            ..Invalid::unknown(self.at(key), "field", key, known.iter().copied())
        }
    }

    /// A problem with the object for lack of a field.
    pub(crate) fn missing(&self, field: &str) -> Invalid {
        Invalid::at(&self.pointer, format!("the field {field:?} is missing"))
    }

    /// A text.
    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>, Invalid> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(
                &self.at(field),
                other,
                &format!("{field} must be a text"),
            )),
        }
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, Invalid> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(wrong(
                &self.at(field),
                other,
                &format!("{field} must be true or false"),
            )),
        }
    }

    /// A number within bounds.
    pub(crate) fn number(
        &self,
        field: &str,
        least: f64,
        most: f64,
    ) -> Result<Option<f64>, Invalid> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        match value
            .as_f64()
            .filter(|number| (least..=most).contains(number))
        {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(
                &self.at(field),
                value,
                &format!("{field} must be a number from {least} to {most}"),
            )),
        }
    }

    /// A whole number within bounds.
    pub(crate) fn whole(&self, field: &str, least: u64, most: u64) -> Result<Option<u64>, Invalid> {
        let value = self.get(field);
        value
            .map(|value| whole(value, &self.at(field), field, least, most))
            .transpose()
    }

    /// A size: a whole number of at least one.
    pub(crate) fn size(&self, field: &str) -> Result<Option<u64>, Invalid> {
        self.whole(field, 1, LARGEST)
    }

    /// Height and width, of which one number stands for both.
    pub(crate) fn pair(&self, field: &str, least: u64) -> Result<Option<[u64; 2]>, Invalid> {
        let at = self.at(field);
        let one = |value: &Value, at: &str| whole(value, at, field, least, LARGEST);
        match self.get(field) {
            None => Ok(None),
            Some(Value::Array(values)) => {
                let [height, width] = values.as_slice() else {
                    let problem = format!("{field} must be a number or [height, width]");
                    let found = values.len();
                    return Err(Invalid::at(at, format!("{problem}, not {found} numbers")));
                };
                Ok(Some([
                    one(height, &format!("{at}/0"))?,
                    one(width, &format!("{at}/1"))?,
                ]))
            }
            Some(both) => one(both, &at).map(|both| Some([both, both])),
        }
    }

    /// A list of sizes.
    pub(crate) fn sizes(&self, field: &str) -> Result<Option<Vec<u64>>, Invalid> {
        let at = self.at(field);
        match self.get(field) {
            None => Ok(None),
            Some(Value::Array(values)) => values
                .iter()
                .enumerate()
                .map(|(index, value)| whole(value, &format!("{at}/{index}"), field, 1, LARGEST))
                .collect::<Result<_, _>>()
                .map(Some),
            Some(other) => Err(wrong(
                &at,
                other,
                &format!("{field} must be a list of sizes"),
            )),
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&self, field: &str) -> Result<Option<Vec<&'a str>>, Invalid> {
        let at = self.at(field);
        match self.get(field) {
            None => Ok(None),
            Some(Value::Array(values)) => values
                .iter()
                .enumerate()
                .map(|(index, value)| match value {
                    Value::String(text) => Ok(text.as_str()),
                    other => Err(wrong(
                        &format!("{at}/{index}"),
                        other,
                        &format!("{field} must be a list of texts"),
                    )),
                })
                .collect::<Result<_, _>>()
                .map(Some),
            Some(other) => Err(wrong(
                &at,
                other,
                &format!("{field} must be a list of texts"),
            )),
        }
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(
        &self,
        field: &str,
        what: &str,
        known: &[(&str, T)],
    ) -> Result<Option<T>, Invalid> {
        let value = self.get(field);
        value
            .map(|value| choice(value, &self.at(field), what, known))
            .transpose()
    }
}

/// One of a few words.
pub(crate) fn choice<T: Copy>(
    value: &Value,
    pointer: &str,
    what: &str,
    known: &[(&str, T)],
) -> Result<T, Invalid> {
    let Value::String(word) = value else {
        return Err(wrong(pointer, value, &format!("the {what} must be a text")));
    };
    let found = known.iter().find(|(name, _)| name == word);
    found
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| Invalid::unknown(pointer, what, word, known.iter().map(|(name, _)| *name)))
}

/// A whole number within bounds; `1024.0` is one too, because many JSON writers print it so.
pub(crate) fn whole(
    value: &Value,
    pointer: &str,
    field: &str,
    least: u64,
    most: u64,
) -> Result<u64, Invalid> {
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
pub(crate) fn wrong(pointer: &str, value: &Value, must: &str) -> Invalid {
    let found = match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => shorten(&other.to_string()),
    };
    Invalid::at(pointer, format!("{must}, not {found}")).with_value(value)
}
