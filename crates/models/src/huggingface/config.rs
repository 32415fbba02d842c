//! Values of a config, with the defaults of their class.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::tasks::stem;
use crate::fields::{Fields, whole, wrong};
use crate::request_error::RequestError;

/// Most layers read. The deepest models in use have a few hundred.
pub(super) const MOST_LAYERS: u64 = 1024;

/// Names of values, and the other names that count where they are there.
type Spellings = BTreeMap<String, Vec<String>>;

/// Those of the families whose class in transformers knows a value by several names; `tests/record/spellings.py` asks it.
static SPELLINGS: LazyLock<BTreeMap<String, Spellings>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("spellings.json")).expect("a test reads the table")
});

/// A config, or a part of one.
pub(super) struct Config<'a> {
    fields: Fields<'a>,
    /// What the name of the class begins with that it is of, if it is of one.
    pub(super) stem: &'a str,
    spellings: Option<&'static Spellings>,
}

impl<'a> Config<'a> {
    pub(super) fn of(value: &'a Value, pointer: &str) -> Result<Config<'a>, RequestError> {
        Ok(Config {
            fields: Fields::any(value, pointer, "a Hugging Face config")?,
            stem: "",
            spellings: None,
        })
    }

    /// The config of a model of this class.
    pub(super) fn of_class(
        value: &'a Value,
        pointer: &str,
        class: &'a str,
    ) -> Result<Config<'a>, RequestError> {
        Ok(Config {
            stem: stem(class),
            spellings: SPELLINGS.get(stem(class)),
            ..Config::of(value, pointer)?
        })
    }

    /// The name by which the config gives a value: of several, the last in its file.
    pub(super) fn spelled<'n>(&self, name: &'n str) -> &'n str
    where
        'a: 'n,
    {
        let others = self.spellings.and_then(|known| known.get(name));
        let given = others.and_then(|others| self.fields.last_of(others));
        given.unwrap_or(name)
    }

    /// A part of it, such as `vision_config`; `None` where it is missing.
    pub(super) fn part(&self, name: &str) -> Result<Option<Config<'a>>, RequestError> {
        let value = self.fields.get(name);
        value
            .map(|value| Config::of(value, &self.fields.at(name)))
            .transpose()
    }

    /// The same of a class, without any value where it is missing.
    pub(super) fn part_or_empty(
        &self,
        name: &str,
        class: &'a str,
    ) -> Result<Config<'a>, RequestError> {
        static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
        let part = match self.part(name)? {
            Some(part) => part,
            None => Config::of(&EMPTY, &self.at(name))?,
        };
        Ok(Config {
            stem: class,
            ..part
        })
    }

    /// A width, or a number of heads, words or channels.
    pub(super) fn size(&self, name: &str, default: u64) -> Result<u64, RequestError> {
        Ok(self.size_if_given(name)?.unwrap_or(default))
    }

    /// A number that may be zero.
    pub(super) fn count(&self, name: &str, default: u64) -> Result<u64, RequestError> {
        let most = crate::fields::LARGEST;
        Ok(self.fields.whole(name, 0, most)?.unwrap_or(default))
    }

    /// Whether it is a word, where there may be a list of them.
    pub(super) fn is_text(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(Value::is_string)
    }

    /// The same, which may be missing.
    pub(super) fn size_if_given(&self, name: &str) -> Result<Option<u64>, RequestError> {
        self.fields.size(self.spelled(name))
    }

    /// A size that an explicit `null` says there is none of.
    pub(super) fn size_or_none(
        &self,
        name: &str,
        default: Option<u64>,
    ) -> Result<Option<u64>, RequestError> {
        let default = default.filter(|_| !self.fields.is_null(name));
        Ok(self.size_if_given(name)?.or(default))
    }

    /// A list of whole numbers, which may be zero.
    pub(super) fn counts(&self, name: &str) -> Result<Option<Vec<u64>>, RequestError> {
        let most = crate::fields::LARGEST;
        let read = |value: &Value, at: &str| whole(value, at, name, 0, most);
        self.fields.list(name, "whole numbers", read)
    }

    /// A number of layers.
    pub(super) fn layers(&self, name: &str, default: u64) -> Result<u64, RequestError> {
        self.layers_within(self.spelled(name), default, MOST_LAYERS)
    }

    /// A number of layers of which another number of the config leaves at most so many.
    pub(super) fn layers_within(
        &self,
        name: &str,
        default: u64,
        most: u64,
    ) -> Result<u64, RequestError> {
        Ok(self.fields.whole(name, 1, most)?.unwrap_or(default))
    }

    /// A list of sizes.
    pub(super) fn sizes(&self, name: &str, default: &[u64]) -> Result<Vec<u64>, RequestError> {
        let given = self.fields.sizes(name)?;
        Ok(given.unwrap_or_else(|| default.to_vec()))
    }

    /// Numbers of layers, one for each stage of a net.
    pub(super) fn depths(&self, name: &str, default: &[u64]) -> Result<Vec<u64>, RequestError> {
        let depths = self.sizes(name, default)?;
        let all = depths
            .iter()
            .fold(0_u64, |sum, depth| sum.saturating_add(*depth));
        if depths.is_empty() || all > MOST_LAYERS {
            return Err(self.wrong(
                name,
                format!("{name} must be from 1 to {MOST_LAYERS} layers in all, not {all}"),
            ));
        }
        Ok(depths)
    }

    /// An index of a token, which an explicit `null` says there is none of; PyTorch counts negative ones from the end of the
    /// vocabulary, and so does this.
    pub(super) fn token(
        &self,
        name: &str,
        default: Option<u64>,
    ) -> Result<Option<u64>, RequestError> {
        match self.fields.get(name) {
            None if self.fields.is_null(name) => Ok(None),
            Some(Value::Number(number)) if number.as_i64().is_some_and(|n| n < 0) => Ok(None),
            Some(_) => self.fields.whole(name, 0, crate::fields::LARGEST),
            None => Ok(default),
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, RequestError> {
        Ok(self.fields.flag(name)?.unwrap_or(default))
    }

    /// A small number, such as `rms_norm_eps` or `attention_dropout`.
    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64, RequestError> {
        Ok(self.fields.number(name, -1e12, 1e12)?.unwrap_or(default))
    }

    /// How much wider a block is inside: of this width it leaves something.
    pub(super) fn mlp_ratio(&self, width: u64) -> Result<f64, RequestError> {
        let ratio = self.number("mlp_ratio", 4.0)?;
        if width as f64 * ratio < 1.0 {
            let problem = "mlp_ratio makes layers without outputs";
            return Err(self.wrong("mlp_ratio", problem));
        }
        Ok(ratio)
    }

    /// A number that an explicit `null` says there is none of.
    pub(super) fn number_or_none(
        &self,
        name: &str,
        default: Option<f64>,
    ) -> Result<Option<f64>, RequestError> {
        let default = default.filter(|_| !self.fields.is_null(name));
        Ok(self.fields.number(name, -1e12, 1e12)?.or(default))
    }

    /// A word.
    pub(super) fn text(&self, name: &str, default: &'a str) -> Result<&'a str, RequestError> {
        Ok(self.fields.text(name)?.unwrap_or(default))
    }

    /// A list of words.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, RequestError> {
        self.fields.texts(name)
    }

    /// Height and width, of which one number stands for both.
    pub(super) fn pair(&self, name: &str, default: u64) -> Result<[u64; 2], RequestError> {
        Ok(self.fields.pair(name, 1)?.unwrap_or([default, default]))
    }

    /// Whether it is there and not `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some()
    }

    /// How many entries an object has; `None` where it is missing.
    pub(super) fn entries(&self, name: &str) -> Result<Option<u64>, RequestError> {
        match self.fields.get(name) {
            None => Ok(None),
            Some(Value::Object(entries)) => Ok(Some(entries.len() as u64)),
            Some(other) => Err(wrong(
                &self.at(name),
                other,
                &format!("{name} must be an object"),
            )),
        }
    }

    /// A problem with an option that is not built.
    pub(super) fn not_built(&self, name: &str) -> RequestError {
        self.wrong(name, format!(
                "batchfit does not build models with this value of {name}; `batchfit export --hf config.json -o \
                 model.json.gz`, of batchfit's Python client, writes their graphs, to be given with --model"
            ),
        )
    }

    /// Where a value is in the request.
    pub(super) fn at(&self, name: &str) -> String {
        self.fields.at(name)
    }

    /// A problem with a value.
    pub(super) fn wrong(&self, name: &str, problem: impl Into<String>) -> RequestError {
        self.fields.wrong(name, problem)
    }

    /// `total / parts`, which must be whole: `names` are what the config calls them.
    pub(super) fn quotient(
        &self,
        [(total_name, total), (parts_name, parts)]: [(&str, u64); 2],
    ) -> Result<u64, RequestError> {
        if total.is_multiple_of(parts) {
            return Ok(total / parts);
        }
        let [total_name, parts_name] = [total_name, parts_name].map(|name| self.spelled(name));
        Err(self.wrong(
            parts_name,
            format!("{parts_name} is {parts}, which does not divide {total_name}, {total}"),
        ))
    }
}
