//! Models as lists of layers.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod requests;

fuzz_target!(|bytes: &[u8]| {
    for beside in [
        "",
        ",\"input\":{\"shape\":[3,32,32]},\"loss\":\"cross_entropy\"",
    ] {
        requests::ask_about("layers", bytes, beside);
    }
});
