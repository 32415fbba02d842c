//! Digests of what is asked, so that the same question is answered once.

use std::fmt::Write as _;
use std::io::{BufWriter, Write};

use serde::Serialize;
use sha2::{Digest, Sha256};

/// How much of the canonical text is collected before it is hashed: values are a few bytes each.
const BLOCK: usize = 1 << 14;

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// A digest of values, one after the other.
///
/// Each is hashed as CBOR (RFC 8949), which says where it ends and writes every number in one way only, so
/// other values never make the same bytes. What a type holds is listed by its `derive(Serialize)`: a field or
/// a variant that is added later counts without being listed here.
pub(super) struct Fingerprint(BufWriter<Sha256>);

impl Fingerprint {
    pub(super) fn new() -> Fingerprint {
        Fingerprint(BufWriter::with_capacity(BLOCK, Sha256::new()))
    }

    /// Appends a value.
    pub(super) fn add(&mut self, value: &(impl Serialize + ?Sized)) {
        ciborium::into_writer(value, &mut self.0)
            .expect("derived implementations and hashing never fail");
    }

    /// Appends a list of values.
    pub(super) fn add_all<T: Serialize>(&mut self, values: impl ExactSizeIterator<Item = T>) {
        self.add(&values.len());
        for value in values {
            self.add(&value);
        }
    }

    /// SHA-256 of it all in hexadecimal.
    pub(super) fn finish(mut self) -> String {
        self.0.flush().expect("hashing never fails");
        hexadecimal(&self.0.get_ref().clone().finalize())
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
