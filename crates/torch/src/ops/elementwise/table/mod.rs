//! The tables: one row for each elementwise operator, in files, and how their texts read.
//!
//! What an operator takes and gives back is words: `like`, `mask`, `number`, `of1`, `mask_of1`, `float1` and `bytes8` take memory
//! ([`Temporary`] says which), `g0` makes the gradient of the first operand (going forward, the result), `-2` gives back what was
//! taken third, results among it.
//!
//! A gradient is `none`, `pass`, `converted`, `zeros` with what is saved for it, or what is read (operands by their positions, `r` for the result), a colon and such words. Where none of these begins with `-`, the
//! gradient comes after them, or at `g` between them, and they all go once it is made, the last first; `, read` or `, contiguous`
//! before the colon says how it is laid out then.
//!
//! In the place of a gradient or a formula stands a list of several where that depends on the call: each after words that must all
//! hold, the first of which they do. `eps`: this argument is given; `other#`: it is a number; `rounding_mode=floor`, `alpha=1`: it is
//! this; `decimals>0`, `decimals<0`; `:real`, `:half`, `:int64`: operands promote to such a type; `!` before a word: it does not hold.

mod formulas;

use std::sync::LazyLock;

use serde::Deserialize;

use super::row::{
    Cases, Condition, Formula, Forward, Gradient, Order, Read, Row, SharedFormula, Step, Temporary,
    Test,
};

pub(super) use formulas::Together;

/// All of them.
pub(super) static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let files = [
        include_str!("activation.json"),
        include_str!("arithmetic.json"),
        include_str!("comparison.json"),
        include_str!("fill.json"),
        include_str!("unary.json"),
        #[cfg(test)]
        super::tests::ROWS,
    ];
    let rows = |file| serde_json::from_str::<Vec<Row>>(file).expect("a test reads the tables");
    files.into_iter().flat_map(rows).collect()
});

/// What has a name.
fn named<T: Copy>(name: &str, known: &[(&str, T)]) -> Result<T, String> {
    let found = known.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, it)| *it)
        .ok_or_else(|| format!("nothing is called {name:?}"))
}

/// The words of a text. Tables are there as long as the process.
fn words<T>(text: &str, read: fn(&str) -> Result<T, String>) -> Result<&'static [T], String> {
    let words = text.split_whitespace().map(read);
    Ok(words.collect::<Result<Vec<T>, String>>()?.leak())
}

/// The number that a word ends in.
fn numbered<T: std::str::FromStr>(word: &str, head: &str) -> Option<T> {
    word.strip_prefix(head)?.parse().ok()
}

fn temporary(word: &str) -> Result<Temporary, String> {
    let operand = |head| numbered(word, head);
    let bytes = numbered(word, "bytes");
    Ok(match word {
        "like" => Temporary::Like,
        "mask" => Temporary::Mask,
        "number" => Temporary::Number,
        _ => {
            let found = (operand("of").map(Temporary::Of))
                .or_else(|| operand("mask_of").map(Temporary::MaskOf))
                .or_else(|| operand("float").map(Temporary::Float))
                .or_else(|| bytes.map(Temporary::Bytes));
            found.ok_or_else(|| format!("{word:?} takes nothing"))?
        }
    })
}

fn step(word: &str) -> Result<Step, String> {
    let given = numbered(word, "g").map(Step::Give);
    let given = given.or_else(|| numbered(word, "-").map(Step::Free));
    given.map_or_else(|| temporary(word).map(Step::Make), Ok)
}

fn read(word: &str) -> Result<Read, String> {
    match word.parse() {
        Ok(position) => Ok(Read::Operand(position)),
        Err(_) if word == "r" => Ok(Read::Result),
        Err(_) => Err(format!("{word:?} is nothing that is read")),
    }
}

fn condition(word: &str) -> Result<Condition, String> {
    let (word, is_so) = word
        .strip_prefix('!')
        .map_or((word, true), |word| (word, false));
    let (name, test) =
        match word.split_at(word.find([':', '#', '=', '>', '<']).unwrap_or(word.len())) {
            ("", ":real") => ("", Test::Real),
            ("", ":half") => ("", Test::Half),
            ("", dtype) if dtype.len() > 1 => ("", Test::Type(dtype[1..].to_owned().leak())),
            (name, "") => (name, Test::Given),
            (name, "#") => (name, Test::Number),
            (name, ">0") => (name, Test::Above),
            (name, "<0") => (name, Test::Below),
            (name, value) => {
                let value = value
                    .strip_prefix('=')
                    .ok_or_else(|| format!("{word:?} asks nothing"))?;
                let number = value.parse().map(Test::Equals);
                (
                    name,
                    number.unwrap_or_else(|_| Test::Text(value.to_owned().leak())),
                )
            }
        };
    let name = name.to_owned().leak();
    Ok(Condition { name, test, is_so })
}

/// A text, or several of which the call takes one.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Written {
    One(String),
    Several(Vec<(String, String)>),
}

/// Several, each with what has to hold.
fn several<T>(
    written: Vec<(String, String)>,
    read: fn(String) -> Result<T, String>,
) -> Result<Cases<T>, String> {
    let case =
        |(conditions, text): (String, String)| Ok((words(&conditions, condition)?, read(text)?));
    let cases = written.into_iter().map(case);
    Ok(cases.collect::<Result<Vec<_>, String>>()?.leak())
}

impl TryFrom<Written> for Gradient {
    type Error = String;

    fn try_from(written: Written) -> Result<Gradient, String> {
        match written {
            Written::One(text) => gradient(text),
            Written::Several(cases) => several(cases, gradient).map(Gradient::By),
        }
    }
}

impl TryFrom<Written> for Formula {
    type Error = String;

    fn try_from(written: Written) -> Result<Formula, String> {
        Ok(match written {
            Written::One(text) => Formula::Text(text.leak()),
            Written::Several(cases) => Formula::By(several(cases, |text| Ok(&*text.leak()))?),
        })
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "a text is read as it is kept"
)]
fn gradient(text: String) -> Result<Gradient, String> {
    let Some((reads, made)) = text.split_once(':') else {
        return match text.split_once(' ').unwrap_or((&text, "")) {
            ("none", "") => Ok(Gradient::None),
            ("pass", "") => Ok(Gradient::Pass),
            ("converted", "") => Ok(Gradient::Converted),
            ("zeros", saved) => Ok(Gradient::Zeros(words(saved, read)?)),
            _ => Err(format!("{text:?} is no gradient")),
        };
    };
    let (reads, order) = reads.split_once(", ").unwrap_or((reads, "gradient"));
    let reads = words(reads, read)?;
    if made.contains('-') {
        let steps = words(made, step)?;
        return Ok(Gradient::Steps { reads, steps });
    }
    let (before, after) = made.split_once(" g ").unwrap_or((made, ""));
    let orders = [
        ("gradient", Order::Gradient),
        ("read", Order::Read),
        ("contiguous", Order::Contiguous),
    ];
    Ok(Gradient::Made {
        reads,
        before: words(before, temporary)?,
        after: words(after, temporary)?,
        order: named(order, &orders)?,
    })
}

impl TryFrom<String> for Forward {
    type Error = String;

    fn try_from(text: String) -> Result<Forward, String> {
        Ok(match text.split_once(": ") {
            Some(("fractions", steps)) => Forward::OfFractions(words(steps, step)?),
            _ if text == "where" => Forward::Where,
            _ if text == "prelu" => Forward::Prelu,
            _ => Forward::Steps(words(&text, step)?),
        })
    }
}

impl TryFrom<String> for SharedFormula {
    type Error = String;

    fn try_from(text: String) -> Result<SharedFormula, String> {
        let (name, reads) = text.split_once(": ").ok_or("it reads nothing")?;
        Ok(SharedFormula {
            reads: words(reads, read)?,
            steps: named(name, formulas::TOGETHER)?,
        })
    }
}
