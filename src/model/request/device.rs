//! Which device a request asks for.

use std::fmt;

use serde::Serialize;

use crate::model::invalid::{Invalid, nearest, shorten};

/// Where to run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
pub enum DeviceChoice {
    /// The first GPU.
    #[default]
    Auto,
    /// The GPU with this index.
    Cuda(u32),
    /// A simulated card, by its name in the catalogue.
    Sim(String),
}

impl DeviceChoice {
    /// Reads `auto`, `cuda:N` or `sim:NAME`; `known_sims` are the names there are.
    pub fn parse(text: &str, pointer: &str, known_sims: &[&str]) -> Result<DeviceChoice, Invalid> {
        if text == "auto" {
            return Ok(DeviceChoice::Auto);
        }
        if let Some(name) = text.strip_prefix("sim:") {
            if known_sims.contains(&name) {
                return Ok(DeviceChoice::Sim(name.to_owned()));
            }
            let unknown = Invalid::unknown(
                pointer,
                "simulated device",
                name,
                known_sims.iter().copied(),
            );
            return Err(Invalid {
                value: Some(format!("{:?}", shorten(text))),
                nearest: unknown.nearest.as_ref().map(|name| format!("sim:{name}")),
                ..unknown
            });
        }
        let index = text.strip_prefix("cuda:").filter(|index| {
            index.chars().all(|c| c.is_ascii_digit()) && (1..=4).contains(&index.len())
        });
        match index.and_then(|index| index.parse().ok()) {
            Some(index) => Ok(DeviceChoice::Cuda(index)),
            None => Err(Invalid {
                pointer: pointer.to_owned(),
                value: Some(format!("{:?}", shorten(text))),
                problem: format!(
                    "unknown device {:?}; devices are \"auto\", \"cuda:N\" and \"sim:NAME\"",
                    shorten(text)
                ),
                nearest: meant(text, known_sims),
            }),
        }
    }
}

fn meant(text: &str, known_sims: &[&str]) -> Option<String> {
    if ["cuda", "gpu", "gpu:0"].contains(&text.to_lowercase().as_str()) {
        return Some("cuda:0".to_owned());
    }
    let sims: Vec<String> = known_sims
        .iter()
        .map(|name| format!("sim:{name}"))
        .collect();
    let known = ["auto", "cuda:0"]
        .into_iter()
        .chain(sims.iter().map(String::as_str));
    nearest(text, known)
        .or_else(|| {
            let bare = nearest(text, known_sims.iter().copied())?;
            sims.iter()
                .map(String::as_str)
                .find(|sim| sim.ends_with(bare))
        })
        .map(str::to_owned)
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cuda(index) => write!(f, "cuda:{index}"),
            DeviceChoice::Sim(name) => write!(f, "sim:{name}"),
        }
    }
}
