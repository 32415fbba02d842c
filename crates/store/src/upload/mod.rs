//! The tables of uploaded files, and of models that came with a request and are not shown with its fit.

use super::engine::{Transaction, query};
use super::{Db, JsonText, StoreError, Time, integer};
use crate::model::{Digest, UploadKind};
use crate::text::by_name;

/// What an upload takes besides its contents, in bytes: a page, its names, what is known about it.
const OVERHEAD: u64 = 4096;

/// Most further names of one upload that are kept for a key. Each way to compress a file makes another; the one that the key has not sent
/// for longest gives way, and is gone where no other key has sent it.
const MOST_NAMES: i64 = 8;

/// Those of each key may take one part in so many of what all may.
const PART_OF_A_KEY: i64 = 4;

/// What uploads may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadSpace {
    /// All of them together, in bytes.
    pub bytes: u64,
    /// Last used before this, an upload to which no work refers makes room for others.
    pub oldest: Time,
}

/// A file to be kept.
#[derive(Debug, Clone)]
pub struct NewUpload {
    /// The digest of its contents.
    pub digest: Digest,
    /// Further digests by which it may be named.
    pub names: Vec<Digest>,
    /// The API key under which it came; empty where none is needed.
    pub owner: String,
    /// What it is.
    pub kind: UploadKind,
    /// How long its contents are.
    pub bytes: usize,
    /// What is known about it, a JSON object.
    pub about: JsonText,
    /// The contents, compressed with gzip.
    pub gzip: Vec<u8>,
    /// Now.
    pub created_at: Time,
}

/// What became of a file to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadStatus {
    /// It was not there, and is.
    Added,
    /// It was there.
    There,
    /// There is no room for it.
    Full {
        /// What the others take, in bytes: all of them, or those of its key.
        taken: u64,
        /// What these may.
        limit: u64,
    },
}

/// What became of the wish to drop an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It is gone.
    Yes,
    /// A fit that waits or runs needs it.
    InUse,
    /// There is none.
    Unknown,
}

/// A row, without its contents.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredUpload {
    /// The digest of its contents.
    pub digest: Digest,
    /// What it is.
    pub kind: UploadKind,
    /// Whether it was uploaded; else it came with a request.
    pub is_uploaded: bool,
    /// How long its contents are.
    pub bytes: u64,
    /// What is known about it, a JSON object.
    pub about: JsonText,
    /// When it came.
    pub created_at: Time,
    /// When it was last uploaded or named in a request.
    pub used_at: Time,
    /// Whether any fit or probe refers to it.
    pub is_referred: bool,
    /// Whether one that has not ended does.
    pub is_in_use: bool,
}

impl Db {
    /// Keeps an uploaded file, unless there is no room for it.
    pub async fn keep_upload(
        &self,
        new: &NewUpload,
        space: UploadSpace,
    ) -> Result<UploadStatus, StoreError> {
        let mut transaction = self.pool.begin_alone("begin to keep an upload").await?;
        let (digest, kind, about) = (new.digest.digits(), new.kind.name(), &new.about);
        let there = query!("look for the same upload": execute, transaction.on(),
            "UPDATE upload SET used_at = CASE WHEN used_at < $3 AND owner = $5 THEN $3 ELSE used_at END, about = $4
              WHERE digest = $1 AND kind = $2 AND uploaded AND (owner = $5 OR used_at >= $6)",
            digest, kind, new.created_at, about, new.owner, space.oldest)?;
        let mut kept = UploadStatus::There;
        if there == 0 {
            let charged = charged(new)?;
            let limit = i64::try_from(space.bytes).unwrap_or(i64::MAX);
            let own = Some(new.owner.as_str()).filter(|owner| !owner.is_empty());
            let own = own.map(|owner| (Some(owner), limit / PART_OF_A_KEY));
            make_room(&mut transaction, charged, limit, space.oldest).await?;
            for (owner, limit) in [(None, limit)].into_iter().chain(own) {
                let taken = taken(&mut transaction, owner, space.oldest).await?;
                if taken.saturating_add(charged) > limit {
                    // Whatever made room goes all the same: it had expired.
                    transaction.commit("commit the end of uploads").await?;
                    return Ok(UploadStatus::Full {
                        taken: u64::try_from(taken).unwrap_or(0),
                        limit: u64::try_from(limit).unwrap_or(0),
                    });
                }
            }
            insert(&mut transaction, new, true).await?;
            kept = UploadStatus::Added;
        }
        for name in new.names.iter().filter(|name| **name != new.digest) {
            add_name(&mut transaction, name.digits(), new).await?;
        }
        transaction.commit("commit an upload").await?;
        Ok(kept)
    }

    /// What is known about an upload, by any of its digests.
    pub async fn upload(&self, name: &Digest) -> Result<Option<StoredUpload>, StoreError> {
        let name = name.digits();
        let row = query!("look for an upload": fetch_optional Row, self.pool.on(),
                "SELECT digest, kind, uploaded, bytes, about,
                      created_at, used_at,
                      EXISTS (SELECT 1 FROM upload_reference
                               WHERE upload_reference.digest = upload.digest) AS referred,
                      digest IN (SELECT digest FROM upload_in_use) AS in_use
                 FROM upload
                WHERE digest = coalesce((SELECT digest FROM upload_name WHERE name = $1), $1)", name)?;
        Ok(row.and_then(Row::read))
    }

    /// Uploads, newest first: up to `limit` of those that came before the one with these contents.
    pub async fn uploads(
        &self,
        before: Option<&Digest>,
        limit: i64,
    ) -> Result<Vec<StoredUpload>, StoreError> {
        let before = before.map(Digest::digits);
        let rows = query!("list uploads": fetch_all Row, self.pool.on(),
            "SELECT digest, kind, uploaded, bytes, about,
                      created_at, used_at,
                      EXISTS (SELECT 1 FROM upload_reference
                               WHERE upload_reference.digest = upload.digest) AS referred,
                      digest IN (SELECT digest FROM upload_in_use) AS in_use
                 FROM upload
                WHERE $1 IS NULL
                   OR (created_at, digest) < (SELECT created_at, digest FROM upload WHERE digest = $1)
                ORDER BY created_at DESC, digest DESC LIMIT $2", before, limit)?;
        Ok(rows.into_iter().filter_map(Row::read).collect())
    }

    /// The contents of an upload, compressed with gzip, by the digest of its contents.
    pub async fn upload_contents(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let digest = digest.digits();
        query!("read an upload": fetch_optional scalar, self.pool.on(),
            "SELECT gzip FROM upload WHERE digest = $1", digest)
    }

    /// Notes that the key to which an upload is charged named it in a request, so that it does not expire soon. What others name stays no longer.
    pub async fn use_upload(
        &self,
        digest: &Digest,
        owner: &str,
        now: Time,
    ) -> Result<(), StoreError> {
        let digest = digest.digits();
        query!("note the use of an upload": execute, self.pool.writing(),
            "UPDATE upload SET used_at = CASE WHEN used_at < $2 THEN $2 ELSE used_at END WHERE digest = $1 AND owner = $3",
            digest, now, owner).map(|_| ())
    }

    /// Drops an upload, by any of its digests, unless work that has not ended needs it.
    pub async fn drop_upload(&self, name: &Digest) -> Result<Dropped, StoreError> {
        let digits = name.digits();
        let dropping = "drop an upload";
        let mut transaction = self.pool.begin_alone(dropping).await?;
        let dropped = query!(dropping: execute, transaction.on(),
            "DELETE FROM upload
              WHERE digest = coalesce((SELECT digest FROM upload_name WHERE name = $1), $1)
                AND digest NOT IN (SELECT digest FROM upload_in_use)", digits)?;
        transaction.commit(dropping).await?;
        if dropped > 0 {
            return Ok(Dropped::Yes);
        }
        Ok(match self.upload(name).await? {
            Some(_) => Dropped::InUse,
            None => Dropped::Unknown,
        })
    }

    /// Drops up to `most` of those last used before `oldest` that nothing refers to; of those that only came with a
    /// request, all that no work needs. Says how many were dropped.
    pub async fn sweep_uploads(&self, oldest: Time, most: i64) -> Result<u64, StoreError> {
        let sweep = "drop uploads that expired";
        let mut transaction = self.pool.begin_alone(sweep).await?;
        let dropped = query!(sweep: execute, transaction.on(),
            "DELETE FROM upload WHERE digest IN (
                SELECT digest FROM upload
                 WHERE used_at < $1
                   AND digest NOT IN (SELECT digest FROM upload_in_use)
                   AND (NOT uploaded
                        OR NOT EXISTS (SELECT 1 FROM upload_reference
                                        WHERE upload_reference.digest = upload.digest))
                 ORDER BY used_at LIMIT $2)", oldest, most)?;
        transaction.commit(sweep).await?;
        Ok(dropped)
    }
}

/// Keeps a model that came with a fit which is queued in the same transaction: so it is needed from the start, and
/// bounded by how many may be queued. It makes room like any other, and is kept where there is none.
pub(super) async fn keep_aside(
    transaction: &mut Transaction,
    new: &NewUpload,
    space: UploadSpace,
) -> Result<(), StoreError> {
    let (digest, kind) = (new.digest.digits(), new.kind.name());
    let there = query!("look for the same model": execute, transaction.on(),
        "UPDATE upload SET used_at = CASE WHEN used_at < $3 THEN $3 ELSE used_at END WHERE digest = $1 AND kind = $2",
        digest, kind, new.created_at)?;
    if there == 0 {
        let limit = i64::try_from(space.bytes).unwrap_or(i64::MAX);
        make_room(transaction, charged(new)?, limit, space.oldest).await?;
        insert(transaction, new, false).await?;
    }
    Ok(())
}

/// Notes that `id` refers to an upload. False when there is none.
pub(super) async fn refer(
    transaction: &mut Transaction,
    digest: &Digest,
    what: &str,
    id: &str,
) -> Result<bool, StoreError> {
    let digest = digest.digits();
    query!("refer to an upload": execute, transaction.on(),
        "INSERT INTO upload_reference (digest, what, id)
         SELECT digest, $2, $3 FROM upload WHERE digest = $1
         ON CONFLICT (digest, what, id) DO UPDATE SET id = excluded.id", digest, what, id)
    .map(|referred| referred > 0)
}

/// Drops uploads that no work needs until there is room for `charged` more bytes, or until none is left that may go: those that only came
/// with a request, and then those that have expired, the longest unused first.
async fn make_room(
    transaction: &mut Transaction,
    charged: i64,
    limit: i64,
    oldest: Time,
) -> Result<(), StoreError> {
    let taken = taken(transaction, None, oldest).await?;
    let excess = taken.saturating_add(charged) - limit;
    if excess <= 0 {
        return Ok(());
    }
    query!("make room for an upload": execute, transaction.on(),
        "DELETE FROM upload WHERE digest IN (
            SELECT digest FROM (
                SELECT digest, charged, sum(charged) OVER (ORDER BY uploaded, used_at, digest) AS freed
                  FROM upload
                 WHERE (NOT uploaded OR used_at < $2)
                   AND digest NOT IN (SELECT digest FROM upload_in_use)) AS candidate
             WHERE freed - charged < $1)", excess, oldest).map(|_| ())
}

/// What all uploads take, or those of one key: what it has not used since `oldest` stays for others, unless its own work needs it.
async fn taken(
    transaction: &mut Transaction,
    owner: Option<&str>,
    oldest: Time,
) -> Result<i64, StoreError> {
    query!("add up what uploads take": fetch_one scalar, transaction.on(),
        "SELECT CAST(coalesce(sum(charged), 0) AS BIGINT) AS taken FROM upload
          WHERE $1 IS NULL
             OR owner = $1 AND (used_at >= $2 OR digest IN (
                SELECT digest FROM fit JOIN upload_reference AS named ON named.what = 'fit' AND named.id = fit.id
                 WHERE fit.state IN ('queued', 'running') AND fit.owner = $1
                 UNION ALL
                SELECT digest FROM search JOIN upload_reference AS named ON named.what = 'search' AND named.id = search.id
                 WHERE search.state = 'active' AND search.owner = $1))", owner, oldest)
}

fn charged(new: &NewUpload) -> Result<i64, StoreError> {
    let gzip = u64::try_from(new.gzip.len()).unwrap_or(u64::MAX);
    integer("charged", gzip.saturating_add(OVERHEAD))
}

/// A row of another kind may have this digest: a model that an older version put aside was named by its graph.
async fn insert(
    transaction: &mut Transaction,
    new: &NewUpload,
    is_uploaded: bool,
) -> Result<(), StoreError> {
    let (digest, kind, charged) = (new.digest.digits(), new.kind.name(), charged(new)?);
    let bytes = integer("bytes", u64::try_from(new.bytes).unwrap_or(u64::MAX))?;
    let (about, gzip) = (&new.about, &new.gzip);
    query!("keep an upload": execute, transaction.on(),
        "INSERT INTO upload (digest, kind, uploaded, bytes, charged, created_at, used_at, about, gzip, owner)
         VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9)
         ON CONFLICT (digest) DO UPDATE SET kind = excluded.kind, uploaded = upload.uploaded OR excluded.uploaded,
                                            bytes = excluded.bytes, charged = excluded.charged,
                                            used_at = excluded.used_at, about = excluded.about, gzip = excluded.gzip,
                                            owner = CASE WHEN excluded.uploaded THEN excluded.owner ELSE upload.owner END",
        digest, kind, is_uploaded, bytes, charged, new.created_at, about, gzip, new.owner).map(|_| ())
}

async fn add_name(
    transaction: &mut Transaction,
    name: &str,
    new: &NewUpload,
) -> Result<(), StoreError> {
    let (digest, naming) = (new.digest.digits(), "name an upload");
    query!(naming: execute, transaction.on(),
        "INSERT INTO upload_name (name, digest) VALUES ($1, $2)
         ON CONFLICT (name) DO UPDATE SET digest = excluded.digest", name, digest)?;
    query!(naming: execute, transaction.on(),
        "INSERT INTO upload_namer (owner, name, named_at) VALUES ($1, $2, $3)
         ON CONFLICT (owner, name) DO UPDATE SET named_at = excluded.named_at", new.owner, name, new.created_at)?;
    query!(naming: execute, transaction.on(),
        "DELETE FROM upload_namer
          WHERE owner = $1 AND name <> $2 AND name IN (SELECT name FROM upload_name WHERE digest = $3)
            AND name NOT IN (SELECT own.name FROM upload_namer AS own JOIN upload_name ON upload_name.name = own.name
                              WHERE own.owner = $1 AND upload_name.digest = $3 AND own.name <> $2
                              ORDER BY own.named_at DESC, upload_name.rowid DESC LIMIT $4)",
        new.owner, name, digest, MOST_NAMES - 1)?;
    query!(naming: execute, transaction.on(),
        "DELETE FROM upload_name
          WHERE digest = $1 AND NOT EXISTS (SELECT 1 FROM upload_namer WHERE upload_namer.name = upload_name.name)", digest).map(|_| ())
}

/// A row as the table has it.
struct Row {
    digest: String,
    kind: String,
    uploaded: bool,
    bytes: i64,
    about: JsonText,
    created_at: Time,
    used_at: Time,
    referred: bool,
    in_use: bool,
}

by_name!(Row: digest, kind, uploaded, bytes, about, created_at, used_at, referred, in_use);

impl Row {
    /// `None` where it says what no version of this program writes.
    fn read(self) -> Option<StoredUpload> {
        Some(StoredUpload {
            digest: Digest::from_digits(&self.digest)?,
            kind: UploadKind::named(&self.kind)?,
            is_uploaded: self.uploaded,
            bytes: u64::try_from(self.bytes).ok()?,
            about: self.about,
            created_at: self.created_at,
            used_at: self.used_at,
            is_referred: self.referred,
            is_in_use: self.in_use,
        })
    }
}
