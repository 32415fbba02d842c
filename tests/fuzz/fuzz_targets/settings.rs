//! Settings files of the service.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| batchfit::cli::fuzzed::settings(text));
