//! A request as others read it: another process, the table, a client that asks how far it is.

use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::source::{self, ModelSource, Recordings};
use super::{Request, RequestDocument, SearchMode};
use crate::model::uploaded::{Digest, UploadKind};

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
        if let ModelSource::File(text, _, seq_len) = &self.model {
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
            ModelSource::Inline(..) => ModelSource::Inline(Arc::from(""), 0..0, None),
            ModelSource::File(_, at, _) => ModelSource::File(Arc::from([]), at, None),
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
            (ModelSource::Inline(text, range, _), _) => (
                "exported",
                UploadKind::Exported,
                &text.as_bytes()[range.clone()],
            ),
            (
                ModelSource::Preset(_)
                | ModelSource::Layers(_)
                | ModelSource::HuggingFace(_)
                | ModelSource::Recorded(_),
                Some(text),
            ) if text.len() > LARGEST_SHOWN => {
                let way = source::ways(text).first().copied().unwrap_or("layers");
                (way, UploadKind::Model, text.as_bytes())
            }
            (
                ModelSource::Preset(_)
                | ModelSource::Layers(_)
                | ModelSource::HuggingFace(_)
                | ModelSource::Recorded(_)
                | ModelSource::File(..),
                _,
            ) => return (shown, None),
        };
        let digest = Digest::of(text);
        // Where lengths are named, they are not the model's.
        let seq_len = match &self.model {
            ModelSource::Inline(_, _, seq_len) if self.lengths.is_none() => *seq_len,
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
