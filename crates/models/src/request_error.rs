//! What is wrong with a request, for the person who wrote it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::synonyms::{self, ValueSynonym};
use crate::limits::shorten;

/// Up to this many known words are listed where none is near the one found.
pub const MOST_LISTED: usize = 20;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct RequestError {
    /// Where in the request, as a JSON pointer; empty for the whole of it.
    pub pointer: String,
    /// The value found there, as JSON, when it is short enough to repeat.
    pub value: Option<String>,
    /// A clause that says what is wrong, with the value in it.
    pub problem: String,
    /// The known word most like the one found.
    pub nearest: Option<String>,
    /// Whether the whole is no JSON.
    #[serde(default)]
    pub is_malformed: bool,
    /// What is wrong besides, each at a place of its own.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub also: Box<[RequestError]>,
}

impl RequestError {
    /// A problem at a place.
    pub fn at(pointer: impl Into<String>, problem: impl Into<String>) -> RequestError {
        RequestError {
            pointer: pointer.into(),
            value: None,
            problem: problem.into(),
            nearest: None,
            is_malformed: false,
            also: Box::default(),
        }
    }

    /// A word that is not one of those known: `what` names its kind, such as "precision".
    pub fn unknown<'k>(
        pointer: impl Into<String>,
        what: &str,
        word: &str,
        known: impl IntoIterator<Item = &'k str>,
    ) -> RequestError {
        let known: Vec<&str> = known.into_iter().collect();
        let (nearest, instead) = match synonyms::word(what, word) {
            Some(ValueSynonym::Is(meant)) if known.contains(&meant) => (Some(meant), None),
            Some(ValueSynonym::Is(_)) => (None, None),
            Some(ValueSynonym::Other(instead)) => (None, Some(instead)),
            None => (nearest(word, known.iter().copied()), None),
        };
        let mut problem = format!("unknown {what} {:?}", shorten(word));
        if nearest.is_none() && known.len() <= MOST_LISTED {
            problem = format!("{problem}; known are {}", known.join(", "));
        }
        if let Some(instead) = instead {
            problem = format!("{problem}; {instead}");
        }
        RequestError {
            nearest: nearest.map(str::to_owned),
            ..RequestError::at(pointer, problem).with_text(word)
        }
    }

    /// The same problem with the word that a value which is no word stands for, such as `true`.
    #[must_use]
    pub fn or_word(self, what: &str, value: &serde_json::Value) -> RequestError {
        let meant = match value {
            serde_json::Value::Bool(_) | serde_json::Value::Number(_) => {
                synonyms::word(what, &value.to_string())
            }
            _ => None,
        };
        match meant {
            Some(ValueSynonym::Is(word)) => RequestError {
                nearest: Some(word.to_owned()),
                ..self
            },
            Some(ValueSynonym::Other(_)) | None => self,
        }
    }

    /// The same problem with the text that caused it.
    #[must_use]
    pub fn with_text(mut self, text: &str) -> RequestError {
        self.value = Some(format!("{:?}", shorten(text)));
        self
    }

    /// The same problem with the value that caused it.
    #[must_use]
    pub fn with_value(mut self, value: &serde_json::Value) -> RequestError {
        self.value = Some(shorten(&value.to_string()));
        self
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.pointer.is_empty() {
            write!(f, "at {}: ", self.pointer)?;
        }
        f.write_str(&self.problem)?;
        if let Some(nearest) = &self.nearest {
            write!(f, "; did you mean {nearest:?}?")?;
        }
        self.also
            .iter()
            .try_for_each(|other| write!(f, "; {other}"))
    }
}

/// The word of `known` most like `word`, when one is alike.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = shorten(word).to_lowercase();
    known
        .into_iter()
        .map(|known| {
            (
                strsim::normalized_damerau_levenshtein(&word, &known.to_lowercase()),
                known,
            )
        })
        .filter(|(score, _)| *score >= 0.5)
        // The first of equals, so that the order in which words are listed decides.
        .fold(None, |best: Option<(f64, &str)>, next| match best {
            Some(best) if best.0 >= next.0 => Some(best),
            _ => Some(next),
        })
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_answered_with_the_word_meant() {
        let invalid = RequestError::unknown(
            "/training/precision",
            "precision",
            "fp61",
            ["fp32", "amp_fp16", "bf16", "fp16"],
        );

        assert_eq!(
            invalid.to_string(),
            "at /training/precision: unknown precision \"fp61\"; did you mean \"fp16\"?"
        );
    }

    #[test]
    fn a_word_like_no_other_is_answered_without_a_guess() {
        assert_eq!(nearest("zzz", ["resnet18", "resnet50"]), None);
    }
}
