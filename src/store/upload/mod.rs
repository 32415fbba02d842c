//! The tables of uploaded files, and of models that came with a request and are not shown with its fit.

use sqlx::{Connection as _, SqliteConnection};

use super::{Db, JsonText, StoreError, Time, asking, integer};
use crate::model::{Digest, UploadKind};

/// What an upload takes besides its contents, in bytes: a page, its names, what is known about it.
const OVERHEAD: u64 = 4096;

/// Most further names of one upload. Each way to compress a file makes another; the oldest gives way.
const MOST_NAMES: i64 = 8;

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
pub enum Kept {
    /// It was not there, and is.
    Added,
    /// It was there.
    There,
    /// There is no room for it.
    Full {
        /// What all uploads take, in bytes.
        taken: u64,
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
    /// Whether somebody uploaded it; else it came with a request.
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
    ) -> Result<Kept, StoreError> {
        let mut connection = self
            .pool
            .acquire()
            .await
            .map_err(asking("begin to keep an upload"))?;
        let kept = keep_on(&mut connection, new, space).await;
        if kept.is_err() {
            // A transaction that a full disk interrupted may stay open, and the database locked with it.
            let _ = connection.close().await;
        }
        kept
    }

    /// What is known about an upload, by any of its digests.
    pub async fn upload(&self, name: &Digest) -> Result<Option<StoredUpload>, StoreError> {
        let name = name.digits();
        let row = sqlx::query!(
            r#"SELECT digest, kind, uploaded AS "uploaded: bool", bytes, about AS "about: JsonText",
                      created_at AS "created_at: Time", used_at AS "used_at: Time",
                      EXISTS (SELECT 1 FROM upload_reference
                               WHERE upload_reference.digest = upload.digest) AS "referred!: bool",
                      digest IN (SELECT digest FROM upload_in_use) AS "in_use!: bool"
                 FROM upload
                WHERE digest = coalesce((SELECT digest FROM upload_name WHERE name = ?1), ?1)"#,
            name
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(asking("look for an upload"))?;
        Ok(row.and_then(|row| {
            Some(StoredUpload {
                digest: Digest::from_digits(&row.digest)?,
                kind: kind(&row.kind)?,
                is_uploaded: row.uploaded,
                bytes: u64::try_from(row.bytes).ok()?,
                about: row.about,
                created_at: row.created_at,
                used_at: row.used_at,
                is_referred: row.referred,
                is_in_use: row.in_use,
            })
        }))
    }

    /// The contents of an upload, compressed with gzip, by the digest of its contents.
    pub async fn upload_contents(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let digest = digest.digits();
        sqlx::query_scalar!("SELECT gzip FROM upload WHERE digest = ?1", digest)
            .fetch_optional(&self.pool)
            .await
            .map_err(asking("read an upload"))
    }

    /// Notes that an upload was named in a request, so that it does not expire soon.
    pub async fn use_upload(&self, digest: &Digest, now: Time) -> Result<(), StoreError> {
        let digest = digest.digits();
        sqlx::query!(
            "UPDATE upload SET used_at = max(used_at, ?2) WHERE digest = ?1",
            digest,
            now
        )
        .execute(&self.pool)
        .await
        .map(|_| ())
        .map_err(asking("note the use of an upload"))
    }

    /// Drops an upload, by any of its digests, unless work that has not ended needs it.
    pub async fn drop_upload(&self, name: &Digest) -> Result<Dropped, StoreError> {
        let digits = name.digits();
        let dropped = sqlx::query!(
            "DELETE FROM upload
              WHERE digest = coalesce((SELECT digest FROM upload_name WHERE name = ?1), ?1)
                AND digest NOT IN (SELECT digest FROM upload_in_use)",
            digits
        )
        .execute(&self.pool)
        .await
        .map_err(asking("drop an upload"))?;
        if dropped.rows_affected() > 0 {
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
        sqlx::query!(
            "DELETE FROM upload WHERE digest IN (
                SELECT digest FROM upload
                 WHERE used_at < ?1
                   AND digest NOT IN (SELECT digest FROM upload_in_use)
                   AND (uploaded = 0
                        OR NOT EXISTS (SELECT 1 FROM upload_reference
                                        WHERE upload_reference.digest = upload.digest))
                 ORDER BY used_at LIMIT ?2)",
            oldest,
            most
        )
        .execute(&self.pool)
        .await
        .map(|dropped| dropped.rows_affected())
        .map_err(asking("drop uploads that expired"))
    }
}

async fn keep_on(
    connection: &mut SqliteConnection,
    new: &NewUpload,
    space: UploadSpace,
) -> Result<Kept, StoreError> {
    let mut transaction = connection
        .begin()
        .await
        .map_err(asking("begin to keep an upload"))?;
    let (digest, kind, about) = (new.digest.digits(), new.kind.name(), &new.about);
    let there = sqlx::query!(
        "UPDATE upload SET uploaded = 1, used_at = max(used_at, ?3), about = ?4 WHERE digest = ?1 AND kind = ?2",
        digest,
        kind,
        new.created_at,
        about,
    )
    .execute(&mut *transaction)
    .await
    .map_err(asking("look for the same upload"))?;
    let mut kept = Kept::There;
    if there.rows_affected() == 0 {
        let charged = charged(new)?;
        let limit = i64::try_from(space.bytes).unwrap_or(i64::MAX);
        make_room(&mut transaction, charged, limit, space.oldest).await?;
        let taken = taken(&mut transaction).await?;
        if taken.saturating_add(charged) > limit {
            // Whatever made room goes all the same: it had expired.
            let committed = transaction.commit().await;
            committed.map_err(asking("commit the end of uploads"))?;
            return Ok(Kept::Full {
                taken: u64::try_from(taken).unwrap_or(0),
            });
        }
        insert(&mut transaction, new, true).await?;
        kept = Kept::Added;
    }
    for name in new.names.iter().filter(|name| **name != new.digest) {
        add_name(&mut transaction, name.digits(), digest).await?;
    }
    transaction
        .commit()
        .await
        .map_err(asking("commit an upload"))?;
    Ok(kept)
}

/// Keeps a model that came with a fit which is queued in the same transaction: so it is needed from the start, and
/// bounded by how many may be queued. It makes room like any other, and is kept where there is none.
pub(super) async fn keep_aside(
    transaction: &mut SqliteConnection,
    new: &NewUpload,
    space: UploadSpace,
) -> Result<(), StoreError> {
    let (digest, kind) = (new.digest.digits(), new.kind.name());
    let there = sqlx::query!(
        "UPDATE upload SET used_at = max(used_at, ?3) WHERE digest = ?1 AND kind = ?2",
        digest,
        kind,
        new.created_at,
    )
    .execute(&mut *transaction)
    .await
    .map_err(asking("look for the same model"))?;
    if there.rows_affected() == 0 {
        let limit = i64::try_from(space.bytes).unwrap_or(i64::MAX);
        make_room(transaction, charged(new)?, limit, space.oldest).await?;
        insert(transaction, new, false).await?;
    }
    Ok(())
}

/// Notes that `id` refers to an upload. False when there is none.
pub(super) async fn refer(
    connection: &mut SqliteConnection,
    digest: &Digest,
    what: &str,
    id: &str,
) -> Result<bool, StoreError> {
    let digest = digest.digits();
    sqlx::query!(
        "INSERT INTO upload_reference (digest, what, id)
         SELECT digest, ?2, ?3 FROM upload WHERE digest = ?1
         ON CONFLICT DO UPDATE SET id = excluded.id",
        digest,
        what,
        id
    )
    .execute(connection)
    .await
    .map(|referred| referred.rows_affected() > 0)
    .map_err(asking("refer to an upload"))
}

/// Drops uploads that no work needs until there is room for `charged` more bytes, or until none is left that may go:
/// those that only came with a request, and then those that have expired, the longest unused first.
async fn make_room(
    connection: &mut SqliteConnection,
    charged: i64,
    limit: i64,
    oldest: Time,
) -> Result<(), StoreError> {
    let excess = taken(connection).await?.saturating_add(charged) - limit;
    if excess <= 0 {
        return Ok(());
    }
    sqlx::query!(
        "DELETE FROM upload WHERE digest IN (
            SELECT digest FROM (
                SELECT digest, charged, sum(charged) OVER (ORDER BY uploaded, used_at, digest) AS freed
                  FROM upload
                 WHERE (uploaded = 0 OR used_at < ?2)
                   AND digest NOT IN (SELECT digest FROM upload_in_use))
             WHERE freed - charged < ?1)",
        excess,
        oldest
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(asking("make room for an upload"))
}

async fn taken(connection: &mut SqliteConnection) -> Result<i64, StoreError> {
    sqlx::query_scalar!(r#"SELECT coalesce(sum(charged), 0) AS "taken!: i64" FROM upload"#)
        .fetch_one(connection)
        .await
        .map_err(asking("add up what uploads take"))
}

fn charged(new: &NewUpload) -> Result<i64, StoreError> {
    let gzip = u64::try_from(new.gzip.len()).unwrap_or(u64::MAX);
    integer("charged", gzip.saturating_add(OVERHEAD))
}

/// A row of another kind may have this digest: a model that an older version put aside was named by its graph.
async fn insert(
    connection: &mut SqliteConnection,
    new: &NewUpload,
    is_uploaded: bool,
) -> Result<(), StoreError> {
    let (digest, kind, charged) = (new.digest.digits(), new.kind.name(), charged(new)?);
    let bytes = integer("bytes", u64::try_from(new.bytes).unwrap_or(u64::MAX))?;
    let (about, gzip) = (&new.about, &new.gzip);
    sqlx::query!(
        "INSERT INTO upload (digest, kind, uploaded, bytes, charged, created_at, used_at, about, gzip)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8)
         ON CONFLICT (digest) DO UPDATE SET kind = excluded.kind, uploaded = max(uploaded, excluded.uploaded),
                                            bytes = excluded.bytes, charged = excluded.charged,
                                            used_at = excluded.used_at, about = excluded.about, gzip = excluded.gzip",
        digest,
        kind,
        is_uploaded,
        bytes,
        charged,
        new.created_at,
        about,
        gzip,
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(asking("keep an upload"))
}

async fn add_name(
    connection: &mut SqliteConnection,
    name: &str,
    digest: &str,
) -> Result<(), StoreError> {
    sqlx::query!(
        "DELETE FROM upload_name WHERE digest = ?1 AND name <> ?2 AND rowid NOT IN (
            SELECT rowid FROM upload_name WHERE digest = ?1 AND name <> ?2 ORDER BY rowid DESC LIMIT ?3)",
        digest,
        name,
        MOST_NAMES - 1,
    )
    .execute(&mut *connection)
    .await
    .map_err(asking("drop names of an upload"))?;
    sqlx::query!(
        "INSERT INTO upload_name (name, digest) VALUES (?1, ?2)
         ON CONFLICT (name) DO UPDATE SET digest = excluded.digest",
        name,
        digest
    )
    .execute(connection)
    .await
    .map(|_| ())
    .map_err(asking("name an upload"))
}

fn kind(name: &str) -> Option<UploadKind> {
    UploadKind::ALL.into_iter().find(|kind| kind.name() == name)
}

#[cfg(test)]
mod tests;
