//! Files that were uploaded before, and that a request names by their digests.

use std::fmt::{self, Write as _};
use std::io::Read as _;
use std::sync::Arc;

use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};

use batchfit_models::RequestError;

/// What digests begin with.
const PREFIX: &str = "sha256:";

/// How a digest is written, for errors.
pub const DIGEST_FORM: &str =
    "a digest is `sha256:` and the 64 hexadecimal digits that `sha256sum FILE` prints";

/// The SHA-256 of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// Reads `sha256:` and 64 hexadecimal digits of either case.
    pub fn parse(text: &str) -> Option<Digest> {
        let digits = text.strip_prefix(PREFIX)?;
        let is_digest = digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| Digest(digits.to_ascii_lowercase()))
    }

    /// That of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(hexadecimal(&Sha256::digest(bytes)))
    }

    /// From the digits alone, as they are stored.
    pub fn from_digits(digits: &str) -> Option<Digest> {
        Digest::parse(&format!("{PREFIX}{digits}"))
    }

    /// The 64 hexadecimal digits, in lower case.
    pub fn digits(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

batchfit_step::listed! {
    /// What an uploaded file is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum UploadKind {
        /// An exported graph: the JSON text that `torch.export` serializes.
        Exported = "exported",
        /// A recording of PyTorch's allocator: a trace or a memory snapshot.
        Recorded = "recorded",
        /// The `model` of a request that was too large to be shown with its fit.
        Model = "model",
    }
}

impl UploadKind {
    /// What a person would call it.
    pub const fn noun(self) -> &'static str {
        match self {
            UploadKind::Exported => "an exported graph",
            UploadKind::Recorded => "a recording",
            UploadKind::Model => "the model of a request",
        }
    }
}

/// A place in a request that names an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Where, as a JSON pointer.
    pub pointer: String,
    /// What is named there.
    pub digest: Digest,
    /// What it has to be.
    pub kind: UploadKind,
}

/// An upload that a request names, as it was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// How the request names it.
    pub named: Digest,
    /// The digest of its contents, by which it is stored.
    pub contents: Digest,
    /// How long its contents are, in bytes.
    pub bytes: usize,
    /// The contents, compressed with gzip.
    pub gzip: Vec<u8>,
}

impl Packed {
    /// The contents. Not on the threads that serve connections: they may be tens of megabytes.
    pub fn unpack(&self) -> Result<Vec<u8>, RequestError> {
        let damaged = |problem: &str| {
            let named = &self.named;
            RequestError::at(
                "/model",
                format!("the stored {named} is damaged: {problem}"),
            )
        };
        let mut contents = Vec::with_capacity(self.bytes + 1);
        // One byte more, so that what is too large shows.
        let most = u64::try_from(self.bytes).unwrap_or(u64::MAX);
        GzDecoder::new(&self.gzip[..])
            .take(most.saturating_add(1))
            .read_to_end(&mut contents)
            .map_err(|error| damaged(&error.to_string()))?;
        if contents.len() > self.bytes {
            return Err(damaged("it is longer than it was"));
        }
        Ok(contents)
    }
}

/// An upload that a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// How the request names it.
    pub named: Digest,
    /// The digest of its contents.
    pub digest: Digest,
    /// The contents, decompressed: the JSON text of a graph, a trace or a pickle.
    pub contents: Arc<[u8]>,
}

/// All uploads that a request names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uploads(Vec<Upload>);

impl Uploads {
    /// Decompresses uploads. Not on the threads that serve connections.
    pub fn unpack(packed: Vec<Packed>) -> Result<Uploads, RequestError> {
        let unpacked = packed.into_iter().map(|packed| {
            Ok(Upload {
                contents: packed.unpack()?.into(),
                named: packed.named,
                digest: packed.contents,
            })
        });
        unpacked.collect::<Result<_, _>>().map(Uploads)
    }

    /// The one that a request names so.
    pub fn get(&self, named: &Digest) -> Option<&Upload> {
        self.0.iter().find(|upload| upload.named == *named)
    }

    /// The digests of their contents.
    pub fn digests(&self) -> impl Iterator<Item = &Digest> {
        self.0.iter().map(|upload| &upload.digest)
    }
}

/// These bytes in hexadecimal.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_in_either_case_and_in_no_other_form() {
        let digits = "0123456789abcdef".repeat(4);
        let digest = Digest::parse(&format!("sha256:{}", digits.to_uppercase())).unwrap();

        assert_eq!(digest.digits(), digits);
        assert_eq!(digest.to_string(), format!("sha256:{digits}"));
        assert_eq!(Digest::from_digits(&digits), Some(digest));
        for wrong in [
            "",
            "sha256:",
            &digits,
            &format!("SHA256:{digits}"),
            &format!("sha256:{digits}0"),
            &format!("sha256:{}g", &digits[1..]),
            &format!("sha256:../{}", &digits[3..]),
            &format!("sha256:{}é", &digits[2..]),
        ] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
