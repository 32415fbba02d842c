//! `lengths`: which lengths or sizes the samples of a training have, and how often.
//!
//! A list, ranges, or a histogram; each as text or as JSON. What a graph is made for is one of them; a request with several is a
//! request for each, see [`Request::at`](super::Request::at).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::fields::{Fields, LARGEST, whole, wrong};
use crate::limits::shorten;
use crate::members::LENGTHS;
use crate::request_error::RequestError;

/// Most lengths of a request. A compilation and a search each take some 20 ms for GPT-2, so these take ten seconds.
const MOST_LENGTHS: usize = 512;

/// Most lengths of all ranges, before they are rounded up.
const MOST_IN_RANGES: u64 = 1 << 16;

/// Most samples of a length that are counted.
const MOST_COUNTED: u64 = 1 << 40;

batchfit_step::listed! {
    /// Which member of a model's description differs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum LengthOf {
        /// Tokens of a sample.
        SeqLen = "seq_len",
        /// Height and width of images.
        ImageSize = "image_size",
    }
}

impl LengthOf {
    /// What a model has that has none of these.
    pub const fn other(self) -> &'static str {
        match self {
            LengthOf::SeqLen => "image_size",
            LengthOf::ImageSize => "seq_len",
        }
    }

    /// What sizes are counted in.
    pub const fn units(self) -> &'static str {
        match self {
            LengthOf::SeqLen => "tokens",
            LengthOf::ImageSize => "pixels",
        }
    }
}

/// The length of a sample: a number, or height and width of an image.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(untagged)]
pub enum Length {
    /// Tokens; of an image, height and width alike.
    One(u64),
    /// Height and width.
    Sides([u64; 2]),
}

impl Length {
    /// Height and width.
    pub fn sides(self) -> [u64; 2] {
        match self {
            Length::One(side) => [side; 2],
            Length::Sides(sides) => sides,
        }
    }

    /// Tokens, or pixels.
    pub fn units(self, of: LengthOf) -> u64 {
        match of {
            LengthOf::SeqLen => self.sides()[0],
            LengthOf::ImageSize => {
                let [height, width] = self.sides();
                height.saturating_mul(width)
            }
        }
    }

    fn rounded_up(self, multiple: u64) -> Length {
        let up = |side: u64| side.next_multiple_of(multiple);
        match self {
            Length::One(side) => Length::One(up(side)),
            Length::Sides(sides) => Length::Sides(sides.map(up)),
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Length::One(side) => write!(f, "{side}"),
            Length::Sides([height, width]) => write!(f, "{height}x{width}"),
        }
    }
}

/// A length, and how many samples have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct LengthCount {
    /// The length.
    pub length: Length,
    /// Samples; 1 of each where only lengths are named.
    pub count: u64,
}

/// The lengths of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Lengths {
    /// What differs.
    pub of: LengthOf,
    /// Each length once, the smallest first; at least one.
    pub each: Vec<LengthCount>,
    /// Into how many buckets they are put, at most; what seems good where it is `None`.
    pub buckets: Option<u64>,
}

impl Lengths {
    /// Where they are in a request.
    pub fn pointer(&self) -> String {
        format!("/lengths/{}", self.of.name())
    }

    /// Refuses the JSON text of a model that says one length itself.
    pub fn stand_alone(&self, model: &str) -> Result<(), RequestError> {
        /// Longer texts are graphs and lists of layers.
        const LONGEST: usize = 1 << 20;
        let name = self.of.name();
        let model: Option<Value> = (model.len() <= LONGEST)
            .then(|| serde_json::from_str(model).ok())
            .flatten();
        match model.as_ref().and_then(|model| model.get(name)) {
            None | Some(Value::Null) => Ok(()),
            Some(one) => {
                let problem = format!(
                    "the request has `lengths.{name}`, too, which names all of them; leave one out"
                );
                Err(RequestError::at(format!("/model/{name}"), problem).with_value(one))
            }
        }
    }

    /// The largest length.
    pub fn longest(&self) -> Length {
        self.each.last().expect("there is at least one").length
    }

    /// Samples of all lengths.
    pub fn samples(&self) -> u64 {
        self.each
            .iter()
            .fold(0, |sum, one| sum.saturating_add(one.count))
    }

    /// Reads the field `lengths` of a request.
    pub fn read(request: &Fields<'_>) -> Result<Option<Lengths>, RequestError> {
        let Some(fields) = request.object("lengths")? else {
            return Ok(None);
        };
        let ways = [LengthOf::SeqLen, LengthOf::ImageSize];
        let mut given = ways
            .into_iter()
            .filter_map(|of| Some((of, fields.get(of.name())?)));
        let (of, value) = match (given.next(), given.next()) {
            (Some(one), None) => one,
            (None, _) => {
                let beside = LENGTHS.names().find(|name| fields.get(name).is_some());
                return Err(RequestError::at(
                    beside.map_or_else(|| request.at("lengths"), |name| fields.at(name)),
                    "lengths needs one of seq_len and image_size, as in {\"seq_len\": \"128,256,512\"}",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(RequestError::at(
                    request.at("lengths"),
                    "lengths are of seq_len or of image_size, not of both",
                ));
            }
        };
        let mut reader = Reader {
            of,
            at: fields.at(of.name()),
            multiple: fields.read("multiple_of")?.unwrap_or(1),
            in_ranges: 0,
            found: BTreeMap::new(),
        };
        reader.value(value)?;
        let each = reader.each()?;
        Ok(Some(Lengths {
            of,
            each,
            buckets: fields.read("buckets")?,
        }))
    }
}

/// Collects lengths.
struct Reader {
    of: LengthOf,
    at: String,
    multiple: u64,
    in_ranges: u64,
    found: BTreeMap<Length, u64>,
}

impl Reader {
    fn value(&mut self, value: &Value) -> Result<(), RequestError> {
        match value {
            Value::Object(histogram) => {
                for (length, count) in histogram {
                    let at = format!("{}/{}", self.at, shorten(length).replace('/', "~1"));
                    let count = whole(count, &at, "the number of samples", 1, MOST_COUNTED)?;
                    let length = self.one(length).ok_or_else(|| self.wrong(length))?;
                    self.add(length, count)?;
                }
                Ok(())
            }
            Value::Array(list) => list.iter().try_for_each(|item| self.item(item)),
            Value::String(text) => text.split(',').try_for_each(|item| self.parse_spec(item)),
            Value::Number(_) => self.item(value),
            Value::Null | Value::Bool(_) => {
                let must = "lengths are a list, a text such as \"64,128\" or \"32-512:8\", or an object of lengths and \
                            how many samples have each";
                Err(wrong(&self.at, value, must))
            }
        }
    }

    /// An item of a list.
    fn item(&mut self, item: &Value) -> Result<(), RequestError> {
        let name = self.of.name();
        match (item, self.of) {
            (Value::String(text), _) => self.parse_spec(text),
            (Value::Array(sides), LengthOf::ImageSize) if sides.len() == 2 => {
                let side = |side| whole(side, &self.at, name, 1, LARGEST);
                let length = square([side(&sides[0])?, side(&sides[1])?]);
                self.add(length, 1)
            }
            (other, _) => {
                let length = Length::One(whole(other, &self.at, name, 1, LARGEST)?);
                self.add(length, 1)
            }
        }
    }

    /// `512`, `224x320`, `512:100` (of which there are 100), `32-512:8` (every eighth) or `32-512`.
    fn parse_spec(&mut self, text: &str) -> Result<(), RequestError> {
        let text = text.trim();
        let refused = || self.wrong(text);
        if let Some((range, step)) = range(text) {
            let (first, last) = range.ok_or_else(refused)?;
            // Each is looked at, whatever it is rounded up to.
            self.in_ranges += (last - first) / step as u64;
            if self.in_ranges > MOST_IN_RANGES {
                return Err(self.too_many());
            }
            for side in (first..=last).step_by(step) {
                self.add(Length::One(side), 1)?;
            }
            return Ok(());
        }
        let (length, count) = match text.split_once(':') {
            None => (text, 1),
            Some((length, count)) => {
                let count = count.trim().parse().ok();
                let count = count.filter(|count| (1..=MOST_COUNTED).contains(count));
                (length, count.ok_or_else(refused)?)
            }
        };
        let length = self.one(length).ok_or_else(refused)?;
        self.add(length, count)
    }

    /// A length by itself.
    fn one(&self, text: &str) -> Option<Length> {
        let side = |text: &str| {
            let side: Option<u64> = text.trim().parse().ok();
            side.filter(|side| (1..=LARGEST).contains(side))
        };
        match (text.split_once(['x', 'X', '×']), self.of) {
            (None, _) => side(text).map(Length::One),
            (Some((height, width)), LengthOf::ImageSize) => {
                Some(square([side(height)?, side(width)?]))
            }
            (Some(_), LengthOf::SeqLen) => None,
        }
    }

    fn add(&mut self, length: Length, count: u64) -> Result<(), RequestError> {
        let counted = self
            .found
            .entry(length.rounded_up(self.multiple))
            .or_default();
        *counted = counted.saturating_add(count).min(MOST_COUNTED);
        if self.found.len() > MOST_LENGTHS {
            return Err(self.too_many());
        }
        Ok(())
    }

    fn too_many(&self) -> RequestError {
        let problem = format!(
            "these are more than the {MOST_LENGTHS} lengths that are answered at a time; `--multiple-of 8` \
             (`lengths.multiple_of`) rounds them up, as collators pad them, or give a range a larger step, as in 32-4096:8"
        );
        RequestError::at(&self.at, problem)
    }

    fn each(self) -> Result<Vec<LengthCount>, RequestError> {
        if self.found.is_empty() {
            return Err(RequestError::at(&self.at, "there is no length in it"));
        }
        let each = self.found.into_iter();
        let mut each: Vec<LengthCount> = each
            .map(|(length, count)| LengthCount { length, count })
            .collect();
        each.sort_by_key(|one| (one.length.units(self.of), one.length));
        Ok(each)
    }

    fn wrong(&self, text: &str) -> RequestError {
        let shown = shorten(text);
        let problem = match (text.trim(), self.of) {
            ("", _) => "a value is missing: the list has an empty place; write it without a comma at its ends".to_owned(),
            (_, LengthOf::SeqLen) => format!(
                "{shown:?} is no length; write 512, 512:100 (100 samples have it), 32-512 or 32-512:8 (every eighth), with \
                 commas between them"
            ),
            (_, LengthOf::ImageSize) => format!(
                "{shown:?} is no size; write 224, 224x320, 224:100 (100 samples have it) or 160-320:32 (every \
                 thirty-second), with commas between them"
            ),
        };
        RequestError {
            value: Some(format!("{shown:?}")),
            ..RequestError::at(&self.at, problem)
        }
    }
}

/// One number where both sides are alike.
fn square([height, width]: [u64; 2]) -> Length {
    if height == width {
        Length::One(height)
    } else {
        Length::Sides([height, width])
    }
}

/// The ends and the step of a text that is meant as a range; no ends where they are wrong.
fn range(text: &str) -> Option<(Option<(u64, u64)>, usize)> {
    let (ends, step) = text.split_once(':').unwrap_or((text, "1"));
    let (first, last) = ends.split_once("..").or_else(|| ends.split_once('-'))?;
    let read = || {
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let step: usize = step.trim().parse().ok()?;
        let is_range = 1 <= first && first <= last && last <= LARGEST && step > 0;
        is_range.then_some(((first, last), step))
    };
    Some(match read() {
        Some((ends, step)) => (Some(ends), step),
        None => (None, 1),
    })
}
