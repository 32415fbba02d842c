//! Graphs as torch.export writes them: JSON, compressed or in an archive.
#![no_main]

use std::io::Cursor;

use batchfit::model::exported::{is_archive, model_of_archive, parse};
use libfuzzer_sys::fuzz_target;

mod requests;

fuzz_target!(|bytes: &[u8]| {
    if is_archive(bytes) {
        let _ = model_of_archive(Cursor::new(bytes));
    }
    let _ = parse(bytes);
    requests::ask_about("exported", bytes, "");
});
