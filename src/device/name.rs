//! How requests name a device.

use std::fmt;
use std::str::FromStr;

use super::sim::{CARDS, Card};

/// A device as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// The first GPU there is.
    Auto,
    /// A GPU of this machine, by CUDA's number.
    Cuda(u32),
    /// A simulated card.
    Simulated(&'static Card),
}

/// A name that is no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a device; {hint}")]
pub struct UnknownDevice {
    /// What was asked for.
    pub given: String,
    /// What may have been meant, or what there is.
    pub hint: String,
}

impl FromStr for DeviceName {
    type Err = UnknownDevice;

    fn from_str(given: &str) -> Result<DeviceName, UnknownDevice> {
        let unknown = |hint: String| UnknownDevice {
            given: given.to_owned(),
            hint,
        };
        if given == "auto" {
            return Ok(DeviceName::Auto);
        }
        if let Some(number) = given.strip_prefix("cuda:") {
            return number.parse().map(DeviceName::Cuda).map_err(|_| {
                unknown("a GPU is `cuda:` and its number, such as `cuda:0`".to_owned())
            });
        }
        let name = given.strip_prefix("sim:").unwrap_or(given);
        match (given.starts_with("sim:"), Card::find(name)) {
            (true, Ok(card)) => Ok(DeviceName::Simulated(card)),
            (true, Err(None)) => Err(unknown(format!("simulated cards are {}", simulated_names()))),
            (_, Err(Some(name))) => Err(unknown(format!("did you mean `sim:{name}`?"))),
            (false, Ok(card)) => Err(unknown(format!("did you mean `sim:{}`?", card.name))),
            (false, Err(None)) => Err(unknown(format!(
                "use `auto`, `cuda:0` or one of {}",
                simulated_names()
            ))),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Auto => f.write_str("auto"),
            DeviceName::Cuda(number) => write!(f, "cuda:{number}"),
            DeviceName::Simulated(card) => write!(f, "sim:{}", card.name),
        }
    }
}

/// The simulated devices, for a sentence: `` `sim:h200`, `sim:h100-80g`, … ``.
pub fn simulated_names() -> String {
    let names: Vec<_> = CARDS
        .iter()
        .map(|card| format!("`sim:{}`", card.name))
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_are_written() {
        for name in ["auto", "cuda:0", "cuda:7", "sim:h200", "sim:rtx4090"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn a_wrong_name_says_what_may_have_been_meant() {
        let wrong = ["sim:h20", "h200", "cuda:x", "tpu"];

        let errors: Vec<_> = wrong
            .iter()
            .map(|name| name.parse::<DeviceName>().unwrap_err().to_string())
            .collect();

        assert_eq!(errors[0], "`sim:h20` is not a device; did you mean `sim:h200`?");
        assert_eq!(errors[1], "`h200` is not a device; did you mean `sim:h200`?");
        assert_eq!(
            errors[2],
            "`cuda:x` is not a device; a GPU is `cuda:` and its number, such as `cuda:0`"
        );
        assert!(errors[3].contains("use `auto`, `cuda:0` or one of `sim:h200`"));
    }
}
