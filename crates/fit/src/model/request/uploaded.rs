//! Files that were uploaded before and that requests name by their digests; and a request as others read it: another process, the table, a
//! client that asks how far it is.

use std::fmt::{self, Write as _};
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

use super::source::{self, GraphText, ModelSource, Recordings};
use super::{Request, RequestDocument, SearchMode};
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
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Longest model, in bytes of JSON, that is shown with a fit. A client that asks how far a fit is does not want to read
/// megabytes of graph each time.
const LARGEST_SHOWN: usize = 64 << 10;

/// A model that is not shown with a fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachedModel {
    /// What names it in the request.
    pub digest: Digest,
    /// What it is: an exported graph, or the whole of the request's `model`.
    pub kind: UploadKind,
    /// How long it is, in bytes.
    pub bytes: usize,
    /// Its JSON text, compressed with gzip.
    pub gzip: Vec<u8>,
}

impl Request {
    /// The request with a model file's graph in the place of its digest: for another process to read.
    #[must_use]
    pub fn self_contained(&self) -> RequestDocument {
        let mut document = self.document.clone();
        if let ModelSource::Exported(GraphText::File(text, _), seq_len) = &self.model {
            let graph = String::from_utf8_lossy(text);
            document.set_model(source::exported_text(&graph, *seq_len));
        }
        if let ModelSource::Recorded(recordings) = &self.model {
            document.set_model(Arc::from(recordings.written_out().to_string()));
        }
        document
    }

    /// The request without the text of its model, once the graph was read: tens of megabytes that a simulation does
    /// not look at. Another process could not read the model from it.
    #[must_use]
    pub fn without_text(self) -> Request {
        let Some(lowered) = self.lowered.0.get() else {
            return self;
        };
        if self.search == SearchMode::Recorded || lowered.not_understood.is_some() {
            // A recorder reads it.
            return self;
        }
        if self.lengths.is_some() && self.model.exported().is_some() {
            // It is read for each length.
            return self;
        }
        let model = match self.model {
            ModelSource::Exported(text, _) => ModelSource::Exported(text.without_bytes(), None),
            ModelSource::Recorded(_) => {
                ModelSource::Recorded(Recordings::of_files(Vec::new(), &[]))
            }
            short @ (ModelSource::Preset(_)
            | ModelSource::Layers(_)
            | ModelSource::HuggingFace(_)) => short,
        };
        let mut document = self.document;
        if !matches!(model, ModelSource::Preset(_) | ModelSource::HuggingFace(_)) {
            document.set_model(Arc::from("{}"));
        }
        Request {
            model,
            document,
            ..self
        }
    }

    /// The request as it is stored and shown. An exported graph, and any other model that is too large to be shown, is
    /// named by its digest there, and is the other half.
    pub fn shown(&self) -> (RequestDocument, Option<DetachedModel>) {
        let mut shown = self.document.clone();
        let (way, kind, text) = match (&self.model, self.document.model()) {
            (ModelSource::Exported(text @ GraphText::Inline(..), _), _) => {
                ("exported", UploadKind::Exported, text.bytes())
            }
            (ModelSource::Exported(GraphText::File(..), _), _) => return (shown, None),
            (_, Some(text)) if text.len() > LARGEST_SHOWN => {
                let way = source::ways(text).first().copied().unwrap_or("layers");
                (way, UploadKind::Model, text.as_bytes())
            }
            _ => return (shown, None),
        };
        let digest = Digest::of(text);
        // Where lengths are named, they are not the model's.
        let seq_len = match &self.model {
            ModelSource::Exported(_, seq_len) if self.lengths.is_none() => *seq_len,
            _ => None,
        };
        shown.set_model(match seq_len {
            Some(_) => source::exported_text(&format!("\"{digest}\""), seq_len),
            None => Arc::from(format!("{{\"{way}\":\"{digest}\"}}")),
        });
        let aside = DetachedModel {
            digest,
            kind,
            bytes: text.len(),
            gzip: pack(text),
        };
        (shown, Some(aside))
    }
}

/// These bytes, compressed with gzip.
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let written = gzip.write_all(bytes);
    let gzip = written.and_then(|()| gzip.finish());
    gzip.expect("writing to memory does not fail")
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
