//! Lines of other programs: those that lead a search, and the output of a command that one watches.
#![no_main]

use std::sync::LazyLock;

use batchfit::cli::fuzzed;
use libfuzzer_sys::fuzz_target;
use regex_lite::Regex;

static PATTERN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("(?i-u)out of memory").expect("it is a pattern"));

fuzz_target!(|bytes: &[u8]| {
    fuzzed::ask_tell(bytes);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    fuzzed::scan(&PATTERN, first, second);
    // Looked at in parts of 64 KiB.
    let filler = vec![b' '; (64 << 10) - first.len().min(1 << 10)];
    fuzzed::scan(&PATTERN, &[&filler, first].concat(), second);
});
