//! Documents of `POST /v1/fits`: whatever they say is read within bounds or refused; what is read is read again from its own
//! text as the same question.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod requests;

fuzz_target!(|bytes: &[u8]| requests::ask(bytes.to_vec()));
