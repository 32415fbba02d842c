//! Where a user's programs keep their files, by the XDG base directory specification.

use std::env;
use std::path::PathBuf;

/// A folder that the environment names; relative ones are ignored, as the specification says.
pub(super) fn named(variable: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os(variable)?);
    folder.is_absolute().then_some(folder)
}

/// What can be made again.
pub(super) fn cache() -> Option<PathBuf> {
    named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))
}

/// Where calibrations of cards are kept, unless a folder is named.
pub(super) fn calibrations() -> Option<PathBuf> {
    let named = env::var_os("BATCHFIT_CALIBRATIONS").map(PathBuf::from);
    named.or_else(|| Some(data()?.join("batchfit/calibrations")))
}

/// What is to last.
pub(super) fn data() -> Option<PathBuf> {
    named("XDG_DATA_HOME").or_else(|| Some(named("HOME")?.join(".local/share")))
}
