//! Configurations of models by transformers.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod requests;

fuzz_target!(|bytes: &[u8]| {
    for beside in ["", ",\"seq_len\":128"] {
        requests::ask_about("hf", bytes, beside);
    }
});
