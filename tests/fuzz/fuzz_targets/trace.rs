//! Traces: lines of text below a header.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod replays;

fuzz_target!(|bytes: &[u8]| replays::play(bytes));
