//! Uploaded files: what they are, what they may take, and how long they are kept.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;
use utoipa::ToSchema;

use super::clock::milliseconds;
use super::document::json;
use super::queue::Shared;
use super::{EngineError, JobError, Jobs};
use crate::model::{
    Digest, Packed, RECORDING_BOUNDS, Reference, Request, RequestDocument, RequestError,
    UploadKind, Uploads, exported, pack,
};
use crate::store::{
    Dropped, JsonText, NewUpload, Pruned, StoreError, StoredUpload, Time, UploadSpace, UploadStatus,
};
use crate::{recorded, replay};

/// What uploads may take, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadLimits {
    /// All of them together, in bytes.
    pub bytes: u64,
    /// How long one is kept to which nothing refers, from when it was last uploaded or named in a request.
    pub expiry: Duration,
}

impl UploadLimits {
    /// A day, and thousands of graphs or recordings: one takes a few hundred KiB compressed.
    pub const USUAL: UploadLimits = UploadLimits {
        bytes: 4 << 30,
        expiry: Duration::from_hours(24),
    };
}

impl Default for UploadLimits {
    fn default() -> UploadLimits {
        UploadLimits::USUAL
    }
}

/// Shortest and longest time between two looks for what has expired.
const LOOKS: [Duration; 2] = [Duration::from_millis(100), Duration::from_mins(10)];

/// How long agents are shown that are lost.
const AGENTS_ARE_KEPT: Duration = Duration::from_hours(24);

/// How long the names are kept that clients give to their requests.
const KEYS_ARE_KEPT: Duration = Duration::from_hours(24);

/// How many names (`Idempotency-Key`) an API key may have given to its requests; the oldest of its own make room.
const MOST_NAMES: i64 = 100_000;

/// How many fits that ended long ago are dropped at a time, and how long others have to write in between.
const PRUNED_AT_A_TIME: i64 = 200;
const PRUNE_PAUSE: Duration = Duration::from_millis(5);

/// How many expired uploads are dropped by one statement: others wait for it to write.
const AT_A_TIME: i64 = 16;

/// The first byte of every pickle of protocol 2 or later.
const PICKLE: u8 = 0x80;

/// What is known about the contents of an upload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct About {
    /// Of an exported graph: how many nodes it has.
    pub nodes: Option<u64>,
    /// Of a recording: what was recorded, where that was noted.
    pub case: Option<String>,
    /// Of a recording: the batch, where it was noted.
    pub batch: Option<u64>,
    /// Of a recording: micro-steps in each step, where that is more than one.
    pub accumulation: Option<u32>,
    /// Of a recording: how many events it has.
    pub events: Option<u64>,
}

/// An uploaded file: the body of `GET /v1/graphs/{digest}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct UploadDocument {
    /// How it was named here; requests name it so.
    #[schema(example = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub digest: String,
    /// The digest of its contents: of a compressed file when it is decompressed, of a `.pt2` archive the JSON of its
    /// model. Files of the same contents are one upload.
    pub contents: String,
    /// `exported` for a graph, `recorded` for a recording; `model` for the model of a request that was not shown with
    /// its fit.
    #[schema(example = "exported")]
    pub kind: String,
    /// How long its contents are.
    pub bytes: u64,
    /// What is known about its contents.
    #[serde(flatten)]
    pub about: About,
    /// When it came.
    pub created_at: Time,
    /// When it is dropped, unless it is used until then; null while something refers to it.
    pub expires_at: Option<Time>,
    /// Whether a stored fit or probe refers to it.
    pub referred: bool,
    /// Whether a fit that waits or runs does: then it cannot be deleted.
    pub in_use: bool,
}

/// Uploads that a request names, found but not read.
#[derive(Debug)]
pub struct Found(Vec<(Digest, StoredUpload)>);

impl Found {
    /// How long the contents of all of them are.
    pub fn bytes(&self) -> u64 {
        let bytes = self.0.iter().map(|(_, stored)| stored.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// What is known about the contents of each.
    pub(super) fn about(&self) -> impl Iterator<Item = About> + '_ {
        self.0.iter().map(|(_, stored)| about(stored))
    }
}

/// What is known about the contents of an upload.
pub(super) fn about(stored: &StoredUpload) -> About {
    serde_json::from_str(stored.about.as_str()).unwrap_or_default()
}

/// Reads the contents of an uploaded file, within limits: an exported graph, whose operators are looked at
/// when a request names it, or a recording. Not on the threads that serve connections.
pub fn examine(contents: &[u8]) -> Result<(UploadKind, About), RequestError> {
    match contents.first() {
        // A snapshot's batch is known from the request that names it.
        Some(&PICKLE) => {
            let recording = replay::read_bare(contents, RECORDING_BOUNDS)
                .map_err(|error| RequestError::at("", error.to_string()))?;
            let about = About {
                events: u64::try_from(recording.entries.len()).ok(),
                ..About::default()
            };
            Ok((UploadKind::Recorded, about))
        }
        _ if recorded::is_recording(contents) => {
            let read = recorded::read(contents, None, RECORDING_BOUNDS);
            let sequence = read.map_err(|error| RequestError::at("", error.to_string()))?;
            let about = About {
                events: u64::try_from(sequence.len()).ok(),
                batch: Some(sequence.batch),
                accumulation: Some(sequence.accumulation).filter(|steps| *steps > 1),
                case: sequence.case,
                ..About::default()
            };
            Ok((UploadKind::Recorded, about))
        }
        _ if contents.trim_ascii_start().starts_with(b"{") => {
            let nodes = exported::count_nodes(contents)
                .map_err(|error| RequestError::at(error.pointer(), error.to_string()))?;
            let about = About {
                nodes: u64::try_from(nodes).ok(),
                ..About::default()
            };
            Ok((UploadKind::Exported, about))
        }
        _ => Err(RequestError::at("", neither(contents))),
    }
}

fn neither(contents: &[u8]) -> String {
    let found = match contents {
        [] => "the file is empty".to_owned(),
        some => format!(
            "the file starts with `{}`",
            some[..some.len().min(8)].escape_ascii()
        ),
    };
    format!(
        "{found}; what is kept is a graph that torch.export saved (.json, .json.gz or .pt2), or a recording of PyTorch's \
         allocator (a trace, which starts with `# {{`, or a memory snapshot, which is a pickle)"
    )
}

/// A file that was examined, to be kept; `names` are the digests of the forms in which it came.
pub fn new_upload(
    contents: &[u8],
    names: Vec<Digest>,
    (kind, about): (UploadKind, &About),
    now: Time,
) -> NewUpload {
    NewUpload {
        digest: Digest::of(contents),
        names,
        owner: String::new(),
        kind,
        bytes: contents.len(),
        about: JsonText::from(&*json(about).to_string()),
        gzip: pack(contents),
        created_at: now,
    }
}

impl Jobs {
    /// Keeps a file, and describes it under this name. Says whether it was not there before.
    pub async fn keep_upload(
        &self,
        new: &NewUpload,
        named: &Digest,
    ) -> Result<(bool, UploadDocument), JobError> {
        let shared = &self.shared;
        let kept = shared.db.keep_upload(new, shared.upload_space()).await?;
        let is_new = match kept {
            UploadStatus::Added => true,
            UploadStatus::There => false,
            UploadStatus::Full { taken, limit } => {
                return Err(JobError::UploadsFull {
                    needed: new.gzip.len(),
                    taken,
                    limit,
                });
            }
        };
        let document = self.upload(named).await?.unwrap_or_else(|| {
            // It was kept, and somebody has dropped it since.
            let stored = StoredUpload {
                digest: new.digest.clone(),
                kind: new.kind,
                is_uploaded: true,
                bytes: new.bytes as u64,
                about: new.about.clone(),
                created_at: new.created_at,
                used_at: new.created_at,
                is_referred: false,
                is_in_use: false,
            };
            document(named, &stored, shared.limits.uploads.expiry)
        });
        if is_new {
            tracing::info!(digest = %new.digest, bytes = new.bytes, "keeps {}, {}", new.kind.noun(), new.digest);
        }
        Ok((is_new, document))
    }

    /// Describes an upload, by any of its digests.
    pub async fn upload(&self, named: &Digest) -> Result<Option<UploadDocument>, JobError> {
        let stored = self.shared.db.upload(named).await?;
        let expiry = self.shared.limits.uploads.expiry;
        Ok(stored.map(|stored| document(named, &stored, expiry)))
    }

    /// Describes uploads, newest first, by the digests of their contents: up to `limit` of those before this one.
    pub async fn uploads(
        &self,
        before: Option<&Digest>,
        limit: i64,
    ) -> Result<Vec<UploadDocument>, JobError> {
        let all = self.shared.db.uploads(before, limit).await?;
        let expiry = self.shared.limits.uploads.expiry;
        Ok(all
            .iter()
            .map(|stored| document(&stored.digest, stored, expiry))
            .collect())
    }

    /// Drops an upload, by any of its digests, unless work that has not ended needs it.
    pub async fn drop_upload(&self, named: &Digest) -> Result<Dropped, JobError> {
        Ok(self.shared.db.drop_upload(named).await?)
    }

    /// Looks for what a request of this key names, and keeps what the key sent itself from expiring meanwhile.
    pub async fn find_uploads(
        &self,
        references: Vec<Reference>,
        owner: &str,
        now: Time,
    ) -> Result<Found, JobError> {
        let db = &self.shared.db;
        let mut all = Vec::with_capacity(references.len());
        for Reference {
            pointer,
            digest,
            kind,
        } in references
        {
            let stored = db.upload(&digest).await?;
            let stored = stored.filter(|stored| stored.kind != UploadKind::Model);
            let stored = stored.ok_or_else(|| unknown(&pointer, &digest))?;
            if stored.kind != kind {
                let problem = format!(
                    "{digest} is {}; what is named here is {}",
                    stored.kind.noun(),
                    kind.noun()
                );
                return Err(EngineError::Invalid(RequestError::at(pointer, problem)).into());
            }
            db.use_upload(&stored.digest, owner, now).await?;
            all.push((digest, stored));
        }
        Ok(Found(all))
    }

    /// Reads what was found; to be decompressed by [`Uploads::unpack`], on another thread.
    pub async fn load_uploads(&self, found: Found) -> Result<Vec<Packed>, JobError> {
        let mut all = Vec::with_capacity(found.0.len());
        for (named, stored) in found.0 {
            let gzip = self.shared.db.upload_contents(&stored.digest).await?;
            let gzip = gzip.ok_or_else(|| unknown("/model", &named))?;
            all.push(packed(named, &stored, gzip));
        }
        Ok(all)
    }

    /// Reads a request that names these uploads.
    pub fn parse_with_uploads(
        &self,
        document: RequestDocument,
        uploads: &Uploads,
    ) -> Result<Request, RequestError> {
        self.shared.parse(document, uploads)
    }
}

impl Shared {
    /// What uploads may take, and which make room for others.
    pub(super) fn upload_space(&self) -> UploadSpace {
        let limits = self.limits.uploads;
        UploadSpace {
            bytes: limits.bytes,
            oldest: self.clock.older_than(limits.expiry, self.db.now()),
        }
    }
}

impl Jobs {
    /// Drops some of the uploads that have expired: for commands that keep files without a server.
    pub async fn drop_expired(&self) -> Result<(), JobError> {
        let space = self.shared.upload_space();
        self.shared
            .db
            .sweep_uploads(space.oldest, AT_A_TIME)
            .await?;
        Ok(())
    }
}

/// What was done: nothing where that failed, which the next look tries again.
fn or_warn<T: Default>(done: Result<T, StoreError>) -> T {
    done.unwrap_or_else(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "{error}");
        T::default()
    })
}

/// Drops what ended longer ago than it is to be kept.
async fn prune(shared: &Shared) {
    let Some(retention) = shared.limits.retention else {
        return;
    };
    let now = shared.db.now();
    let oldest = shared.clock.older_than(retention, now);
    let mut fits = 0;
    while !shared.shutdown.is_cancelled() {
        let pruned = or_warn(shared.db.prune(oldest, now, PRUNED_AT_A_TIME).await);
        if pruned == Pruned::default() {
            break;
        }
        fits += pruned.fits;
        tokio::time::sleep(PRUNE_PAUSE).await;
    }
    if fits > 0 {
        tracing::info!(fits, "dropped {fits} fits that had ended long ago");
    }
}

/// Drops uploads that have expired, until the server ends.
pub(super) async fn sweep(shared: Arc<Shared>) {
    let [shortest, longest] = LOOKS;
    let pause = (shared.limits.uploads.expiry / 4).clamp(shortest, longest);
    let mut looks = tokio::time::interval(pause);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = shared.shutdown.cancelled() => return,
        }
        let older_than = |age| shared.clock.older_than(age, shared.db.now());
        let oldest = older_than(KEYS_ARE_KEPT);
        or_warn(shared.db.sweep_keys(oldest, MOST_NAMES).await);
        let lost = older_than(AGENTS_ARE_KEPT);
        or_warn(shared.db.sweep_agents(lost).await);
        prune(&shared).await;
        // For the next server, which compares its clock with it.
        let noted = shared.clock.noted(shared.db.now());
        or_warn(shared.db.write_readiness(noted).await);
        let mut all = 0;
        loop {
            let space = shared.upload_space();
            let dropped = or_warn(shared.db.sweep_uploads(space.oldest, AT_A_TIME).await);
            if dropped == 0 {
                break;
            }
            all += dropped;
            if shared.shutdown.is_cancelled() {
                return;
            }
        }
        if all > 0 {
            tracing::info!(uploads = all, "dropped {all} uploads that had expired");
        }
    }
}

/// The stored row with its contents.
pub(super) fn packed(named: Digest, stored: &StoredUpload, gzip: Vec<u8>) -> Packed {
    Packed {
        named,
        contents: stored.digest.clone(),
        bytes: usize::try_from(stored.bytes).unwrap_or(usize::MAX),
        gzip,
    }
}

/// There is no such upload.
pub(super) fn unknown(pointer: &str, digest: &Digest) -> JobError {
    JobError::UploadUnknown {
        pointer: pointer.to_owned(),
        digest: digest.clone(),
    }
}

fn document(named: &Digest, stored: &StoredUpload, expiry: Duration) -> UploadDocument {
    let stays = stored.is_in_use || stored.is_uploaded && stored.is_referred;
    let expires_at = Time(stored.used_at.0.saturating_add(milliseconds(expiry)));
    UploadDocument {
        digest: named.to_string(),
        contents: stored.digest.to_string(),
        kind: stored.kind.name().to_owned(),
        bytes: stored.bytes,
        about: about(stored),
        created_at: stored.created_at,
        expires_at: (!stays).then_some(expires_at),
        referred: stored.is_referred,
        in_use: stored.is_in_use,
    }
}
