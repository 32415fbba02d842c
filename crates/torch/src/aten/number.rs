//! Whole numbers of exported graphs, also where a tool has rounded them.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// A whole number, also as tools for JSON write it that have no numbers but doubles: 2^63 - 1, which PyTorch writes for
/// no bound and for the end of a slice, then becomes 9.223372036854776e+18 or 9223372036854776000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole(pub i64);

/// 2^63, which is the double next to 2^63 - 1.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// How far from 2^63 a decimal may be that is read as the same double: half of the distance to the next one.
const ROUNDING: u64 = 1 << 10;

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor;
        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of 64 bits")
            }
            fn visit_i64<E>(self, value: i64) -> Result<Whole, E> {
                Ok(Whole(value))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Whole, E> {
                match i64::try_from(value) {
                    Ok(value) => Ok(Whole(value)),
                    Err(_) if value <= (1 << 63) + ROUNDING => Ok(Whole(i64::MAX)),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Unsigned(value), &self)),
                }
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "whole and within 64 bits, or 2^63, which saturates"
            )]
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Whole, E> {
                if value.fract() == 0.0 && value.abs() <= TWO_TO_63 {
                    Ok(Whole(value as i64))
                } else {
                    Err(E::invalid_value(de::Unexpected::Float(value), &self))
                }
            }
        }
        deserializer.deserialize_any(WholeVisitor)
    }
}

/// The same, as it is.
pub fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    Whole::deserialize(deserializer).map(|whole| whole.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_as_tools_without_integers_write_them() {
        let read = |text: &str| {
            serde_json::from_str::<Whole>(text)
                .ok()
                .map(|whole| whole.0)
        };

        for (text, number) in [
            ("9223372036854775807", i64::MAX),
            ("9223372036854775808", i64::MAX),
            ("9223372036854776000", i64::MAX),
            ("9.223372036854776e+18", i64::MAX),
            ("9.223372036854775807E18", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("-9.223372036854776e18", i64::MIN),
            ("-9223372036854776000", i64::MIN),
            ("1048576.0", 1 << 20),
            ("-1", -1),
            ("-0.0", 0),
        ] {
            assert_eq!(read(text), Some(number), "{text}");
        }
        for text in [
            "0.5",
            "1e19",
            "-1e19",
            "18446744073709551615",
            "1e999",
            "\"1\"",
            "null",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
