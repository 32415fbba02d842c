//! How much memory the allocator may reserve.

use serde::Serialize;
use serde_json::Value;

use crate::model::fields::{whole, wrong};
use crate::model::invalid::Invalid;
use crate::units::Bytes;

/// Largest limit read; more than any machine has.
const LARGEST: u64 = 1 << 60;

/// Binary and decimal units. Letters alone (`G`) are refused: tools disagree on what they mean.
const UNITS: &[(&str, u64)] = &[
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TiB", 1 << 40),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// How much the allocator may reserve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum MemoryLimit {
    /// So many bytes.
    Bytes(Bytes),
    /// A share of the device's memory, above 0 and at most 1, as in
    /// `torch.cuda.set_per_process_memory_fraction`.
    Fraction(f64),
}

impl MemoryLimit {
    /// Reads a number of bytes, a size such as `"12GiB"`, or a fraction such as `"0.8"`.
    pub fn parse(value: &Value, pointer: &str) -> Result<MemoryLimit, Invalid> {
        match value {
            Value::String(text) => read(text.trim()).map_err(|near| Invalid {
                nearest: near,
                ..wrong(
                    pointer,
                    value,
                    "memory_limit must be bytes, a size such as \"12GiB\" or a fraction such as \"0.8\"",
                )
            }),
            Value::Number(number) => {
                match number.as_f64().filter(|number| 0.0 < *number && *number < 1.0) {
                    Some(fraction) => Ok(MemoryLimit::Fraction(fraction)),
                    None => whole(value, pointer, "memory_limit", 1, LARGEST)
                        .map(|bytes| MemoryLimit::Bytes(Bytes(bytes))),
                }
            }
            other => Err(wrong(
                pointer,
                other,
                "memory_limit must be bytes, a size such as \"12GiB\" or a fraction such as \"0.8\"",
            )),
        }
    }
}

/// The limit, or what may have been meant.
fn read(text: &str) -> Result<MemoryLimit, Option<String>> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim();
    let amount: f64 = number.parse().map_err(|_| None)?;
    if unit.is_empty() {
        if number.contains('.') {
            let fraction = (amount > 0.0 && amount <= 1.0).then_some(MemoryLimit::Fraction(amount));
            return fraction.ok_or_else(|| Some(format!("{number}GiB")));
        }
        let bytes: u64 = number.parse().map_err(|_| None)?;
        return bounded(bytes).ok_or(None);
    }
    let Some((_, scale)) = UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
    else {
        // Binary units come first: what tools print as "G" is nearly always that.
        let initial = |text: &str| text.chars().next().map(|c| c.to_ascii_uppercase());
        let known = UNITS
            .iter()
            .find(|(name, _)| initial(name) == initial(unit));
        return Err(known.map(|(known, _)| format!("{number}{known}")));
    };
    // Whole numbers are multiplied as such; only "1.5GiB" goes through floating point.
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(*scale),
        Err(_) => fractional(amount, *scale),
    };
    bytes.and_then(bounded).ok_or(None)
}

fn fractional(amount: f64, scale: u64) -> Option<u64> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "units are powers that a float holds exactly"
    )]
    let bytes = amount * scale as f64;
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let largest = LARGEST as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to lie between 0 and 2^60"
    )]
    (0.0..=largest).contains(&bytes).then_some(bytes as u64)
}

fn bounded(bytes: u64) -> Option<MemoryLimit> {
    (1..=LARGEST)
        .contains(&bytes)
        .then_some(MemoryLimit::Bytes(Bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: impl Into<Value>) -> Result<MemoryLimit, Invalid> {
        MemoryLimit::parse(&value.into(), "/memory_limit")
    }

    #[test]
    fn bytes_units_and_fractions_are_told_apart() {
        let bytes = |n| Ok(MemoryLimit::Bytes(Bytes(n)));

        assert_eq!(parse("12GiB"), bytes(12 << 30));
        assert_eq!(parse("12 GB"), bytes(12_000_000_000));
        assert_eq!(parse("1.5gib"), bytes(3 << 29));
        assert_eq!(parse("4096"), bytes(4096));
        assert_eq!(parse(1024.0), bytes(1024));
        assert_eq!(parse("0.8"), Ok(MemoryLimit::Fraction(0.8)));
        assert_eq!(parse("1.0"), Ok(MemoryLimit::Fraction(1.0)));
        assert_eq!(parse(0.5), Ok(MemoryLimit::Fraction(0.5)));
    }

    #[test]
    fn what_is_none_of_them_is_refused() {
        for text in [
            "",
            "GiB",
            "-1GiB",
            "0",
            "0.0",
            "1.2",
            "12G",
            "12 gigs",
            "1e3",
            "99999999TiB",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse(-5).is_err());
        assert!(parse(true).is_err());
        assert_eq!(parse("12G").unwrap_err().nearest.as_deref(), Some("12GiB"));
    }
}
