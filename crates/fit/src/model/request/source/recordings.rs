//! `model.recorded`: recordings of the steps themselves, in the place of a model.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::{Lowered, Workload};
use crate::limits::{clause, shorten};
use crate::model::{DIGEST_FORM, Digest, Reference, UploadKind, Uploads};
use crate::recorded::{GZIP, LARGEST_BATCH, Sequence, Steps, read};
use crate::replay::{self, Bounds, pickle};
use batchfit_models::{RequestError, whole};

/// Where the list is in a request.
const RECORDED: &str = "/model/recorded";

/// Most recordings of one request; more than five say nothing new.
const MOST_RECORDINGS: usize = 32;

/// Most allocations and frees of all recordings of a request: ten of the largest models'. They take up to 320 bytes
/// each.
const MOST_EVENTS: usize = 1 << 19;

/// What each recording may make its reader use.
pub const RECORDING_BOUNDS: Bounds = Bounds {
    mib: 64,
    events: 1 << 20,
    pickle: pickle::Bounds {
        bytes: 64 << 20,
        depth: 32,
    },
};

/// Recordings that have not been read yet, each with its batch where the request says it.
#[derive(Clone, PartialEq)]
pub(crate) struct Recordings {
    files: Vec<(Arc<[u8]>, Option<u64>)>,
    bounds: Bounds,
}

impl fmt::Debug for Recordings {
    /// Leaves out what was recorded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.files.iter().map(|(file, batch)| (file.len(), batch));
        f.debug_list().entries(sizes).finish()
    }
}

impl Recordings {
    /// Reads a list of digests, or of recordings as text.
    pub(crate) fn parse(
        list: &str,
        batches: Option<&Value>,
        pointer: &str,
        uploads: &Uploads,
    ) -> Result<Recordings, RequestError> {
        let at = |index: usize| format!("{pointer}/recorded/{index}");
        let list = listed(list, &format!("{pointer}/recorded"))?;
        let batches = of_batches(batches, &format!("{pointer}/batches"), list.len())?;
        let mut files: Vec<(Arc<[u8]>, Option<u64>)> = Vec::new();
        for (index, text) in list.iter().enumerate() {
            let file = match named(text, &at(index))? {
                None => Arc::from(text.as_bytes()),
                Some(digest) => {
                    let upload = uploads.get(&digest).ok_or_else(|| {
                        let problem = format!(
                            "{digest} names a recording that was uploaded to a service, in a list of digests alone; here, give \
                             all recordings as text, or the files with --recorded FILE..."
                        );
                        RequestError::at(at(index), problem)
                    })?;
                    Arc::clone(&upload.contents)
                }
            };
            files.push((file, batches.get(index).copied()));
        }
        Ok(Recordings {
            files,
            bounds: RECORDING_BOUNDS,
        })
    }

    /// The contents of files of the person who runs the program.
    pub(crate) fn of_files(files: Vec<Vec<u8>>, batches: &[u64]) -> Recordings {
        let files = files.into_iter().enumerate();
        let bounds = Bounds::default();
        let files = files.map(|(index, file)| {
            // The reader says what is no gzip.
            let contents = if file.starts_with(&GZIP) {
                replay::decompress(&file, bounds.mib).unwrap_or(file)
            } else {
                file
            };
            (Arc::from(contents), batches.get(index).copied())
        });
        Recordings {
            files: files.collect(),
            bounds,
        }
    }

    /// Whether there are none: what is to be recorded has none yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The list as it stands in a request, by digests.
    pub(crate) fn named(&self) -> Value {
        let digests = self
            .files
            .iter()
            .map(|(file, _)| Digest::of(file).to_string());
        let digests: Vec<String> = digests.collect();
        let batches: Vec<u64> = self.files.iter().filter_map(|(_, batch)| *batch).collect();
        if batches.is_empty() {
            serde_json::json!({ "recorded": digests })
        } else {
            serde_json::json!({ "recorded": digests, "batches": batches })
        }
    }

    /// The list as another process can read it: recordings as text.
    pub(crate) fn written_out(&self) -> Value {
        let texts = self.files.iter().map(|(file, batch)| {
            let sequence = read(file, *batch, self.bounds);
            sequence.map_or_else(
                |_| String::from_utf8_lossy(file).into_owned(),
                |sequence| sequence.to_text(),
            )
        });
        serde_json::json!({ "recorded": texts.collect::<Vec<_>>() })
    }

    /// The steps that they make.
    pub(crate) fn lower(&self) -> Result<Lowered, RequestError> {
        let mut sequences: Vec<Sequence> = Vec::new();
        let mut events = 0;
        for (index, (file, batch)) in self.files.iter().enumerate() {
            let sequence = read(file, *batch, self.bounds).map_err(|error| {
                RequestError::at(format!("{RECORDED}/{index}"), error.to_string())
            })?;
            events += sequence.len();
            if self.bounds == RECORDING_BOUNDS && events > MOST_EVENTS {
                let problem = format!(
                    "the recordings up to this one have {events} allocations and frees, and at most {MOST_EVENTS} are \
                     read for one request; record fewer steps or batches"
                );
                return Err(RequestError::at(format!("{RECORDED}/{index}"), problem));
            }
            sequences.push(sequence);
        }
        let steps = Steps::learn(sequences)
            .map_err(|error| RequestError::at(RECORDED, error.to_string()))?;
        let batches: Vec<String> = steps.batches.iter().map(u64::to_string).collect();
        let notes = vec![format!(
            "learnt from recordings of batch {}; they decide precision, optimizer and checkpointing",
            batches.join(", ")
        )];
        Ok(Lowered {
            workload: Workload::Recorded(Arc::new(steps)),
            notes,
            assumptions: Vec::new(),
            not_understood: None,
            held: 0,
        })
    }
}

/// The uploads that a list names.
pub(crate) fn references(list: &str) -> Result<Vec<Reference>, RequestError> {
    let list = listed(list, RECORDED)?;
    let mut references = Vec::new();
    for (index, text) in list.iter().enumerate() {
        let pointer = format!("{RECORDED}/{index}");
        if let Some(digest) = named(text, &pointer)? {
            references.push(Reference {
                pointer,
                digest,
                kind: UploadKind::Recorded,
            });
        }
    }
    Ok(references)
}

/// A text that is not copied out of the request unless it has escapes.
#[derive(serde::Deserialize)]
struct Item<'a>(#[serde(borrow)] Cow<'a, str>);

fn listed<'a>(list: &'a str, pointer: &str) -> Result<Vec<Cow<'a, str>>, RequestError> {
    let wrong = |problem: String| {
        let expected = format!(
            "recorded must be a list of 1 to {MOST_RECORDINGS} recordings, each as the digest of an upload or as text"
        );
        RequestError::at(pointer, format!("{expected}: {problem}"))
    };
    let items: Vec<Item<'a>> = serde_json::from_str(list).map_err(|error| wrong(clause(&error)))?;
    match items.len() {
        1..=MOST_RECORDINGS => Ok(items.into_iter().map(|Item(text)| text).collect()),
        count => Err(wrong(format!("there are {count}"))),
    }
}

/// The digest that a text is, unless it is a recording.
fn named(text: &str, pointer: &str) -> Result<Option<Digest>, RequestError> {
    if text.contains('\n') {
        return Ok(None);
    }
    let digest = Digest::parse(text).ok_or_else(|| {
        let said = format!("is neither a recording nor a digest; {DIGEST_FORM}");
        RequestError::at(pointer, format!("{:?} {said}", shorten(text))).with_text(text)
    })?;
    Ok(Some(digest))
}

fn of_batches(
    value: Option<&Value>,
    pointer: &str,
    count: usize,
) -> Result<Vec<u64>, RequestError> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    let batches = value.as_array().filter(|batches| batches.len() == count);
    let batches = batches.ok_or_else(|| {
        let problem = format!("batches must be a list of {count} numbers, one for each recording");
        RequestError::at(pointer, problem)
    })?;
    let batches = batches.iter().enumerate();
    batches
        .map(|(index, batch)| {
            whole(
                batch,
                &format!("{pointer}/{index}"),
                "batch",
                1,
                LARGEST_BATCH,
            )
        })
        .collect()
}
