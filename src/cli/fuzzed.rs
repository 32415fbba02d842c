//! Ways in for the targets in `tests/fuzz`, which is compiled with `--cfg fuzzing`, to what reads bytes from outside and is
//! not to be called otherwise.

use std::path::Path;

use regex_lite::Regex;

use super::arguments::Arguments;
use super::search;
use crate::cli::service::config;

/// Reads a settings file, as `batchfit config check` does.
pub fn settings(text: &str) {
    let path = Path::new("fuzzed.toml");
    if let Ok(file) = config::File::of(path, text) {
        let _ = Arguments::checked(file);
    }
}

/// Listens to what a command says, in two parts.
pub fn scan(pattern: &Regex, first: &[u8], second: &[u8]) {
    search::fuzzed::scan(pattern, [first, second]);
}

/// Reads the lines of a search that another program leads.
pub fn ask_tell(lines: &[u8]) {
    search::fuzzed::ask_tell(lines);
}
