//! The text of a `PYTORCH_CUDA_ALLOC_CONF`.

use std::fmt;
use std::str::FromStr;

/// The keys that PyTorch 2.11 knows. Others make it fail when CUDA starts.
const KEYS: &[&str] = &[
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "roundup_power2_divisions",
];

/// A key this far from a known one, by Damerau-Levenshtein similarity, is taken for a slip.
const SIMILAR: f64 = 0.6;

/// How the allocator behaves. The default is PyTorch's, with the variable unset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The text as it was given, without white space.
    text: String,
}

/// Why a text does not say how the allocator should behave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// PyTorch would refuse the key.
    #[error("unknown allocator setting `{key}`{}", hint(.nearest.as_deref()))]
    UnknownKey {
        /// As written.
        key: String,
        /// The known key that it resembles.
        nearest: Option<String>,
    },
    /// PyTorch knows the key and batchfit does not simulate it.
    #[error("allocator setting `{key}` is not supported yet")]
    NotSupported {
        /// As written.
        key: String,
    },
    /// A part that is not `key:value`.
    #[error("allocator setting `{part}` is not of the form `key:value`")]
    NoValue {
        /// As written.
        part: String,
    },
    /// A value that batchfit does not simulate, or PyTorch would refuse.
    #[error("allocator setting `{key}` must be {expected}, not `{value}`")]
    WrongValue {
        /// The key.
        key: String,
        /// As written.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!(", did you mean `{key}`?"))
}

impl FromStr for Settings {
    type Err = SettingsError;

    /// Reads `key:value,key:value` as PyTorch does: white space does not count, nor do empty parts.
    fn from_str(text: &str) -> Result<Settings, SettingsError> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        for part in parts(&text) {
            let (key, value) = part.split_once(':').unwrap_or((part, ""));
            if !KEYS.contains(&key) {
                return Err(SettingsError::UnknownKey {
                    key: key.to_owned(),
                    nearest: nearest(key).map(str::to_owned),
                });
            }
            if value.is_empty() {
                return Err(SettingsError::NoValue {
                    part: part.to_owned(),
                });
            }
            match (key, value) {
                ("backend", "native") => {}
                ("backend", _) => {
                    return Err(SettingsError::WrongValue {
                        key: key.to_owned(),
                        value: value.to_owned(),
                        expected: "`native`, the only backend that is simulated",
                    });
                }
                _ => {
                    return Err(SettingsError::NotSupported {
                        key: key.to_owned(),
                    });
                }
            }
        }
        Ok(Settings { text })
    }
}

impl fmt::Display for Settings {
    /// Writes the text that the settings were read from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits at the commas that are not inside a list: `a:1,b:[256:1,>:2]` has two parts.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .filter(|part| !part.is_empty())
}

fn nearest(key: &str) -> Option<&'static str> {
    let similarity = |known: &str| strsim::normalized_damerau_levenshtein(known, key);
    let known = KEYS.iter().map(|known| (similarity(known), *known));
    known
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Settings>().unwrap_err().to_string()
    }

    #[test]
    fn nothing_and_the_native_backend_are_the_default() {
        assert_eq!("".parse(), Ok(Settings::default()));
        assert_eq!(
            " backend : native ,".parse::<Settings>().unwrap().text,
            "backend:native,"
        );
    }

    #[test]
    fn a_known_key_is_refused_by_name() {
        assert_eq!(
            error("backend:native,roundup_power2_divisions:[256:1,>:2]"),
            "allocator setting `roundup_power2_divisions` is not supported yet"
        );
    }

    #[test]
    fn an_unknown_key_names_its_nearest() {
        assert_eq!(
            error("expandable_segment:True"),
            "unknown allocator setting `expandable_segment`, did you mean `expandable_segments`?"
        );
        assert_eq!(error("zzz:1"), "unknown allocator setting `zzz`");
    }

    #[test]
    fn a_key_without_value_and_another_backend_are_refused() {
        assert_eq!(
            error("backend"),
            "allocator setting `backend` is not of the form `key:value`"
        );
        assert_eq!(
            error("backend:cudaMallocAsync"),
            "allocator setting `backend` must be `native`, the only backend that is simulated, not \
             `cudaMallocAsync`"
        );
    }
}
