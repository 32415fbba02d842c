//! Reads the text of a `PYTORCH_CUDA_ALLOC_CONF`, and refuses what PyTorch refuses.

use std::borrow::Cow;
use std::str::FromStr;

use super::config::Settings;
use super::divisions::Divisions;
use crate::limits::shorten;
use crate::units::Bytes;

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

/// Longest text read, in bytes: every setting there is takes a few hundred.
const LONGEST_SETTINGS: usize = 4096;

/// Why a text does not say how the allocator should behave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Far more than there are settings.
    #[error(
        "allocator settings of {bytes} bytes are longer than the {LONGEST_SETTINGS} that are read"
    )]
    TooLong {
        /// How long they are.
        bytes: usize,
    },
    /// PyTorch would refuse the key.
    #[error("unknown allocator setting `{key}`{}", hint(.nearest.as_deref()))]
    UnknownKey {
        /// As written.
        key: String,
        /// The known key that it resembles.
        nearest: Option<String>,
    },
    /// PyTorch knows the setting and batchfit does not simulate it.
    #[error(
        "allocator setting `{setting}` is not supported: only the native allocator is simulated"
    )]
    NotSupported {
        /// Key and value.
        setting: String,
    },
    /// A part that is not `key:value`.
    #[error("allocator setting `{part}` is not of the form `key:value`")]
    NoValue {
        /// As written.
        part: String,
    },
    /// A value that PyTorch would refuse, or that contradicts another.
    #[error("allocator setting `{key}` must be {expected}, not `{value}`")]
    WrongValue {
        /// The key.
        key: String,
        /// As written.
        value: String,
        /// What would be right.
        expected: Cow<'static, str>,
    },
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!(", did you mean `{key}`?"))
}

impl FromStr for Settings {
    type Err = SettingsError;

    /// Reads `key:value,key:value` as PyTorch does when CUDA starts. White space does not count.
    fn from_str(text: &str) -> Result<Settings, SettingsError> {
        Settings::default().read(text)
    }
}

impl Settings {
    /// What a further text makes of these settings at run time, as
    /// `torch._C._accelerator_setAllocatorSettings` does.
    ///
    /// `max_split_size_mb`, `max_non_split_rounding_mb`, `garbage_collection_threshold` and
    /// `roundup_power2_divisions` go back to their defaults unless given again, the others stay;
    /// `per_process_memory_fraction` is too late and has no effect.
    pub fn updated(&self, text: &str) -> Result<Settings, SettingsError> {
        let kept = Settings {
            expandable: self.expandable,
            large_segment: self.large_segment,
            ..Settings::default()
        };
        let updated = kept.read(text)?;
        Ok(Settings {
            fraction: self.fraction,
            ..updated
        })
    }

    fn read(mut self, text: &str) -> Result<Settings, SettingsError> {
        if text.len() > LONGEST_SETTINGS {
            return Err(SettingsError::TooLong { bytes: text.len() });
        }
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let mut given: Vec<Setting> = Vec::new();
        for part in parts(&text) {
            let setting = Setting::read(part)?;
            match given.iter().find(|other| other.key == setting.key) {
                None => given.push(setting),
                Some(earlier) if earlier.value == setting.value => {}
                Some(earlier) => {
                    let expected = format!("given once: it is also `{}`", shorten(earlier.value));
                    return Err(setting.wrong(expected));
                }
            }
        }
        // First, wherever it stands: others have to be at least as much.
        for setting in given
            .iter()
            .filter(|given| given.key == "large_segment_size_mb")
        {
            self.large_segment = setting.mib(11, "an integer of MiB above 10")?;
        }
        self.non_split_slack = self.large_segment;
        for setting in &given {
            self.apply(setting)?;
        }
        self.text = text;
        Ok(self)
    }

    fn apply(&mut self, given: &Setting<'_>) -> Result<(), SettingsError> {
        let least = self.large_segment.0 / Bytes::MIB.0;
        let at_least =
            || format!("an integer of MiB that is at least `large_segment_size_mb`, {least}");
        match given.key {
            "backend" => given.backend()?,
            "expandable_segments" => self.expandable = given.boolean()?,
            "garbage_collection_threshold" => {
                let open = |x: &f64| *x > 0.0 && *x < 1.0;
                self.collection_threshold = given.number(open, "a number above 0 and below 1")?;
            }
            "max_split_size_mb" => self.max_split = given.mib(least, at_least())?,
            "max_non_split_rounding_mb" => self.non_split_slack = given.mib(least, at_least())?,
            "per_process_memory_fraction" => {
                let closed = |x: &f64| (0.0..=1.0).contains(x);
                self.fraction = given.number(closed, "a number from 0 to 1")?;
            }
            "roundup_power2_divisions" => {
                let read =
                    Divisions::read(given.value).map_err(|expected| given.wrong(expected))?;
                self.divisions = (!read.are_off()).then(|| Box::new(read));
            }
            // Those of pinned host memory and of locks change nothing here, but are checked.
            "pinned_num_register_threads" => {
                let right = |n: &u64| n.is_power_of_two() && *n <= 128;
                given.number(right, "a power of two up to 128")?;
            }
            "pinned_reserve_segment_size_mb" => {
                given.number(|n: &u64| *n > 0, "an integer of MiB above 0")?;
            }
            "graph_capture_record_stream_reuse"
            | "pinned_use_background_threads"
            | "pinned_use_cuda_host_register"
            | "release_lock_on_cudamalloc" => {
                given.boolean()?;
            }
            read_before => debug_assert_eq!(read_before, "large_segment_size_mb"),
        }
        Ok(())
    }
}

/// A known key with its value.
#[derive(Debug, Clone, Copy)]
struct Setting<'a> {
    key: &'a str,
    value: &'a str,
}

impl<'a> Setting<'a> {
    fn read(part: &'a str) -> Result<Setting<'a>, SettingsError> {
        let (key, value) = part.split_once(':').unwrap_or((part, ""));
        if !key.is_empty() && !KEYS.contains(&key) {
            return Err(SettingsError::UnknownKey {
                key: shorten(key),
                nearest: nearest(key).map(str::to_owned),
            });
        }
        if key.is_empty() || value.is_empty() {
            return Err(SettingsError::NoValue {
                part: shorten(part),
            });
        }
        Ok(Setting { key, value })
    }

    fn wrong(&self, expected: impl Into<Cow<'static, str>>) -> SettingsError {
        SettingsError::WrongValue {
            key: self.key.to_owned(),
            value: shorten(self.value),
            expected: expected.into(),
        }
    }

    fn boolean(&self) -> Result<bool, SettingsError> {
        match self.value {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.wrong("`True` or `False`")),
        }
    }

    fn number<N: FromStr>(
        &self,
        is_right: impl Fn(&N) -> bool,
        expected: impl Into<Cow<'static, str>>,
    ) -> Result<N, SettingsError> {
        let number = self.value.parse().ok();
        number.filter(is_right).ok_or_else(|| self.wrong(expected))
    }

    /// A number of MiB. Like PyTorch's, it saturates.
    fn mib(
        &self,
        least: u64,
        expected: impl Into<Cow<'static, str>>,
    ) -> Result<Bytes, SettingsError> {
        let mib = self.number(|mib: &u64| *mib >= least, expected)?;
        Ok(Bytes::mib(mib.min(u64::MAX / Bytes::MIB.0)))
    }

    fn backend(&self) -> Result<(), SettingsError> {
        match self.value {
            "native" => Ok(()),
            "cudaMallocAsync" => Err(SettingsError::NotSupported {
                setting: format!("{}:{}", self.key, self.value),
            }),
            _ => Err(self.wrong("`native`")),
        }
    }
}

/// Splits at the commas that are not inside a list: `a:1,b:[256:1,>:2]` has two parts. One may follow the
/// last part.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split_terminator(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
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

    fn settings(text: &str) -> Settings {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_far_too_long_is_not_looked_at() {
        assert_eq!(
            error(&"x".repeat(60 << 20)),
            "allocator settings of 62914560 bytes are longer than the 4096 that are read"
        );
    }

    #[test]
    fn nothing_and_the_native_backend_are_the_default() {
        assert_eq!("".parse(), Ok(Settings::default()));
        assert_eq!(
            settings(" backend : native ,"),
            Settings {
                text: "backend:native,".to_owned(),
                ..Settings::default()
            }
        );
    }

    #[test]
    fn every_key_is_read() {
        let read = settings(
            "max_split_size_mb:128, max_non_split_rounding_mb:40, large_segment_size_mb:32,\
             garbage_collection_threshold:0.8, roundup_power2_divisions:[256:1,>:4],\
             expandable_segments:True, per_process_memory_fraction:0.5, pinned_num_register_threads:8,\
             pinned_reserve_segment_size_mb:1, pinned_use_background_threads:True,\
             pinned_use_cuda_host_register:False, release_lock_on_cudamalloc:True,\
             graph_capture_record_stream_reuse:False",
        );

        assert_eq!(read.max_split(), Some(Bytes::mib(128)));
        assert_eq!(read.non_split_slack, Bytes::mib(40));
        assert_eq!(read.segment_size(Bytes::mib(2)), Bytes::mib(32));
        assert_eq!(read.collection_threshold(Bytes(101)), Some(Bytes(80)));
        assert_eq!(read.round_size(Bytes::mib(1100)), Bytes::mib(1280));
        assert!(read.expandable());
        assert_eq!(read.limit(Bytes(101)), Some(Bytes(50)));
    }

    #[test]
    fn a_large_segment_bounds_the_other_sizes_wherever_it_stands() {
        assert_eq!(
            settings("large_segment_size_mb:40").non_split_slack,
            Bytes::mib(40)
        );
    }

    #[test]
    fn what_pytorch_refuses_is_refused_with_what_would_be_right() {
        let errors = [
            "large_segment_size_mb:10",
            "garbage_collection_threshold:1",
            "per_process_memory_fraction:1.1",
            "expandable_segments:true",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[256:3]",
            "roundup_power2_divisions:[100:2]",
            "roundup_power2_divisions:[256:2",
            "pinned_num_register_threads:256",
            "pinned_reserve_segment_size_mb:0",
            "max_split_size_mb:1GiB",
            "max_split_size_mb:64,max_split_size_mb:128",
            "max_split_size_mb:32,large_segment_size_mb:40",
            "max_non_split_rounding_mb:19",
            "expandable_segment:True",
            "zzz:1",
            "backend",
            "backend:cudaMallocAsync",
            "backend:other",
        ]
        .map(error);

        insta::assert_snapshot!(errors.join("\n"), @r"
        allocator setting `large_segment_size_mb` must be an integer of MiB above 10, not `10`
        allocator setting `garbage_collection_threshold` must be a number above 0 and below 1, not `1`
        allocator setting `per_process_memory_fraction` must be a number from 0 to 1, not `1.1`
        allocator setting `expandable_segments` must be `True` or `False`, not `true`
        allocator setting `roundup_power2_divisions` must be a power of two, or a list such as `[256:1,512:2,>:8]` of sizes in MiB and divisions, not `3`
        allocator setting `roundup_power2_divisions` must be a list whose divisions are powers of two or 0, also that of `256`, not `[256:3]`
        allocator setting `roundup_power2_divisions` must be a list whose sizes are powers of two in MiB or `>`, also that in `100:2`, not `[100:2]`
        allocator setting `roundup_power2_divisions` must be a list that ends in `]`, not `[256:2`
        allocator setting `pinned_num_register_threads` must be a power of two up to 128, not `256`
        allocator setting `pinned_reserve_segment_size_mb` must be an integer of MiB above 0, not `0`
        allocator setting `max_split_size_mb` must be an integer of MiB that is at least `large_segment_size_mb`, 20, not `1GiB`
        allocator setting `max_split_size_mb` must be given once: it is also `64`, not `128`
        allocator setting `max_split_size_mb` must be an integer of MiB that is at least `large_segment_size_mb`, 40, not `32`
        allocator setting `max_non_split_rounding_mb` must be an integer of MiB that is at least `large_segment_size_mb`, 20, not `19`
        unknown allocator setting `expandable_segment`, did you mean `expandable_segments`?
        unknown allocator setting `zzz`
        allocator setting `backend` is not of the form `key:value`
        allocator setting `backend:cudaMallocAsync` is not supported: only the native allocator is simulated
        allocator setting `backend` must be `native`, not `other`
        ");
    }

    #[test]
    fn a_later_text_resets_some_and_keeps_others() {
        let first = settings(
            "large_segment_size_mb:32,max_split_size_mb:64,expandable_segments:True,\
             garbage_collection_threshold:0.5,per_process_memory_fraction:0.5",
        );

        let later = first
            .updated("roundup_power2_divisions:4,per_process_memory_fraction:0.9")
            .unwrap();

        let expected = settings(
            "large_segment_size_mb:32,expandable_segments:True,roundup_power2_divisions:4,\
             per_process_memory_fraction:0.5",
        );
        assert_eq!(
            Settings {
                text: expected.text.clone(),
                ..later
            },
            expected
        );
    }
}
