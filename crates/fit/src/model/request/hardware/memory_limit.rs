//! How much memory a request gives the allocator.

use serde_json::Value;

use crate::alloc::MemoryLimit;
use crate::units::Bytes;
use batchfit_models::{RequestError, whole, wrong};

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

/// Smallest fraction read; of any card it is less than PyTorch takes at once.
const LEAST_FRACTION: f64 = 0.0001;

/// Numbers with a point below this and above 1 are no bytes and no fractions: 12.5 means GiB.
const GIB_WITHOUT_UNIT: f64 = 1024.0;

/// Least number without a unit that is a limit, in bytes: PyTorch takes 20 MiB at once, and no training has less than a few of these.
const LEAST_BARE: u64 = 64 << 20;

/// What a limit must be, as the beginning of an error.
const MUST_BE: &str = "memory_limit must be a number of bytes from 1 to 2^60, a size such as \"12GiB\" or a fraction \
     such as \"0.8\"";

/// Reads what an allocator may reserve: a size as [`parse_size`] does, but no number of bytes so small that
/// it is one of GiB, MiB or KiB.
pub fn parse_memory_limit(value: &Value, pointer: &str) -> Result<MemoryLimit, RequestError> {
    let read = parse_size(value, pointer)?;
    let bare = match value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    let (Some(_), MemoryLimit::Bytes(Bytes(bytes @ ..LEAST_BARE))) = (bare, read) else {
        return Ok(read);
    };
    let unit = match bytes {
        ..0x400 => "GiB",
        0x400..0x10_0000 => "MiB",
        _ => "KiB",
    };
    let problem = format!("{bytes} without a unit is {bytes} bytes, less than any training takes");
    Err(RequestError {
        nearest: Some(format!("{bytes}{unit}")),
        ..RequestError::at(pointer, problem).with_value(value)
    })
}

/// Reads a number of bytes, a size such as `"12GiB"`, or a fraction such as `"0.8"` or `1.0`.
pub fn parse_size(value: &Value, pointer: &str) -> Result<MemoryLimit, RequestError> {
    let read = match value {
        Value::String(text) => read(text.trim()),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(bytes), _) => within_limits(bytes).ok_or(None),
            (None, Some(number)) => with_point(number).or_else(|near| {
                // Many JSON writers print all numbers with a point.
                let whole = whole(value, pointer, "memory_limit", 1, LARGEST).ok();
                let bytes = whole.filter(|_| near.is_none()).and_then(within_limits);
                bytes.ok_or(near)
            }),
            (None, None) => Err(None),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(None),
    };
    read.map_err(|near| RequestError {
        nearest: near,
        ..wrong(pointer, value, MUST_BE)
    })
}

/// Reads a number of bytes, or a size such as `"256GiB"`.
pub(crate) fn bytes(value: &Value, pointer: &str, name: &str) -> Result<Bytes, RequestError> {
    let must_be =
        format!("{name} must be a number of bytes from 1 to 2^60, or a size such as \"256GiB\"");
    match parse_size(value, pointer) {
        Ok(MemoryLimit::Bytes(bytes)) => Ok(bytes),
        Ok(MemoryLimit::Fraction(_)) => Err(wrong(pointer, value, &must_be)),
        Err(invalid) => Err(RequestError {
            nearest: invalid.nearest,
            ..wrong(pointer, value, &must_be)
        }),
    }
}

/// The fraction that a number with a point and without a unit is, or what may have been meant.
fn with_point(number: f64) -> Result<MemoryLimit, Option<String>> {
    if number <= 0.0 {
        Err(None)
    } else if number < LEAST_FRACTION {
        Err(Some(LEAST_FRACTION.to_string()))
    } else if number <= 1.0 {
        Ok(MemoryLimit::Fraction(number))
    } else {
        Err((number < GIB_WITHOUT_UNIT).then(|| format!("{number}GiB")))
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
            return with_point(amount);
        }
        let bytes: u64 = number.parse().map_err(|_| None)?;
        return within_limits(bytes).ok_or(None);
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
        let known = known.filter(|_| amount.is_finite() && amount > 0.0);
        return Err(known.map(|(known, _)| format!("{amount}{known}")));
    };
    // Whole numbers are multiplied as such; only "1.5GiB" goes through floating point.
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(*scale),
        Err(_) => fractional(amount, *scale),
    };
    bytes.and_then(within_limits).ok_or(None)
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

fn within_limits(bytes: u64) -> Option<MemoryLimit> {
    (1..=LARGEST)
        .contains(&bytes)
        .then_some(MemoryLimit::Bytes(Bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: impl Into<Value>) -> Result<MemoryLimit, RequestError> {
        parse_memory_limit(&value.into(), "/memory_limit")
    }

    #[test]
    fn bytes_units_and_fractions_are_told_apart() {
        let bytes = |n| Ok(MemoryLimit::Bytes(Bytes(n)));

        assert_eq!(parse("12GiB"), bytes(12 << 30));
        assert_eq!(parse("12 GB"), bytes(12_000_000_000));
        assert_eq!(parse("1.5gib"), bytes(3 << 29));
        assert_eq!(parse("67108864"), bytes(64 << 20));
        assert_eq!(parse(67_108_864.0), bytes(64 << 20));
        assert_eq!(parse("20MiB"), bytes(20 << 20));
        assert_eq!(parse_size(&Value::from("4096"), ""), bytes(4096));
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
    }

    #[test]
    fn a_number_with_a_point_is_a_fraction_however_it_is_written() {
        assert_eq!(parse(1.0), Ok(MemoryLimit::Fraction(1.0)));
        assert_eq!(parse(0.0001), Ok(MemoryLimit::Fraction(0.0001)));
        assert_eq!(parse(1.5e9), parse(1_500_000_000));
        for (wrong, nearest) in [
            (Value::from(12.5), Some("12.5GiB")),
            (Value::from(8), Some("8GiB")),
            (Value::from("24576"), Some("24576MiB")),
            (Value::from(8_388_608), Some("8388608KiB")),
            (Value::from("12.5"), Some("12.5GiB")),
            (Value::from(2.0), Some("2GiB")),
            (Value::from("12G"), Some("12GiB")),
            (Value::from("12GiB\0"), Some("12GiB")),
            (Value::from(1e-9), Some("0.0001")),
            (Value::from("0.00000000000000000001"), Some("0.0001")),
            (Value::from(format!("0.{}1", "0".repeat(1000))), None),
            (Value::from("0.0"), None),
            (Value::from("0.0G"), None),
            (Value::from(0.0), None),
            (Value::from(-0.5), None),
            (Value::from(1e30), None),
            (Value::from(12_884_901_888.5), None),
            (Value::from("9".repeat(1000) + "G"), None),
        ] {
            let refused = parse(wrong.clone()).unwrap_err();
            assert_eq!(refused.nearest.as_deref(), nearest, "{wrong}");
            let is_small = refused.problem.contains("without a unit is");
            assert!(
                is_small || refused.problem.starts_with(MUST_BE),
                "{}",
                refused.problem
            );
        }
    }
}
