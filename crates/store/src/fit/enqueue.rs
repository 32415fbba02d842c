//! How fits come into the queue.

use super::terms::{FitTerms, IdempotencyKey, keep_key};
use super::{FitState, question_of};
use crate::engine::{Pool, query};
use crate::model::Digest;
use crate::request::{keep_request, request_digest};
use crate::upload::{keep_aside, refer};
use crate::{Db, JsonText, NewUpload, StoreError, Time, UploadSpace};

/// A fit to be.
#[derive(Debug, Clone)]
pub struct NewFit {
    /// Its name.
    pub id: String,
    /// What makes two requests the same fit: the question, and the document that asks it.
    pub fingerprint: String,
    /// The version that answers it.
    pub batchfit_version: String,
    /// The model, as a person calls it.
    pub model: String,
    /// The model itself: the beginning of a digest.
    pub model_digest: String,
    /// What outcomes have taught about the headroom of its answer, as JSON.
    pub taught: JsonText,
    /// As in the request.
    pub device: String,
    /// What it must not run beside: see [`SIMULATED_LANE`](crate::SIMULATED_LANE).
    pub lane: String,
    /// The request document.
    pub request: JsonText,
    /// The uploads that the request names, by the digests of their contents.
    pub uploads: Vec<Digest>,
    /// Its model, where the request has a digest in its place.
    pub aside: Option<NewUpload>,
    /// Who is served first, and for how long.
    pub terms: FitTerms,
    /// The name that its client gave it.
    pub key: Option<IdempotencyKey>,
    /// The API key under which it is asked; empty where none is needed.
    pub owner: String,
    /// Now.
    pub created_at: Time,
}

/// Each key may fill one part of the queue in so many.
const PART_OF_A_KEY: i64 = 4;

impl NewFit {
    /// How much of a queue its owner may fill.
    fn share(&self, capacity: i64) -> i64 {
        if self.owner.is_empty() {
            capacity
        } else {
            (capacity / PART_OF_A_KEY).max(1)
        }
    }
}

/// Whether an answer found earlier will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// Yes: nothing that it depends on can have changed.
    Finished,
    /// No, but equal requests of one key at the same time share the work.
    InFlight,
}

/// What became of a new fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// It waits in the queue, under its own id.
    Added,
    /// The same question is in the table already, under this id.
    Same(String),
    /// Something was asked under the name that its client gave it, meanwhile.
    KeyTaken,
    /// So many are waiting, which is as many as may: of all, or of the key under which it is asked.
    QueueFull {
        /// How many.
        waiting: i64,
        /// Whether they are those of one key.
        of_key: bool,
    },
    /// The request names an upload that was dropped meanwhile.
    UploadGone(Digest),
}

impl Db {
    /// Puts a fit into the queue, unless the same question was asked before or the queue holds `capacity`, or a quarter of that under the
    /// same key.
    ///
    /// Fits that failed or were cancelled do not count as asked, nor do answers of agents where none is to answer, or whose key is revoked.
    /// A question whose process died runs apart from the start when it is asked again.
    pub async fn enqueue(
        &self,
        new: &NewFit,
        reuse: Reuse,
        capacity: i64,
        space: UploadSpace,
    ) -> Result<Enqueued, StoreError> {
        self.in_place()?;
        let finished = reuse == Reuse::Finished;
        loop {
            let added = enqueue_on(&self.pool, new, finished, capacity, space).await?;
            if let Some(enqueued) = added {
                return Ok(enqueued);
            }
            let same: Option<String> = query!("find the same fit": fetch_optional scalar, self.pool.on(),
                "SELECT id FROM fit WHERE fingerprint = $1
                AND (state IN ('queued', 'running') AND owner = $5
                     OR state = 'done' AND batchfit_version = $2 AND $3
                        AND (answered_by = '' OR $4 LIKE 'agent %' AND answered_by NOT IN (SELECT id FROM api_key WHERE revoked_at IS NOT NULL)))
              ORDER BY id DESC LIMIT 1", new.fingerprint, new.batchfit_version, finished, new.lane, new.owner)?;
            if let Some(same) = same {
                self.ask_again(&same, &new.owner, new.terms).await?;
                // It may have been taken back meanwhile.
                match self.fit_state(&same).await? {
                    None | Some(FitState::Cancelled) => continue,
                    Some(_) => return Ok(Enqueued::Same(same)),
                }
            }
            // One that asks the same may have failed between these statements, and then nothing stands in the way.
            let waiting: i64 = query!("count the fits that wait": fetch_one scalar, self.pool.on(),
                "SELECT count(*) FROM fit WHERE state = 'queued'")?;
            let own: i64 = query!("count the fits of a key that wait": fetch_one scalar, self.pool.on(),
                "SELECT count(*) FROM fit WHERE state = 'queued' AND owner = $1", new.owner)?;
            for (waiting, most, of_key) in
                [(waiting, capacity, false), (own, new.share(capacity), true)]
            {
                if waiting >= most {
                    return Ok(Enqueued::QueueFull { waiting, of_key });
                }
            }
        }
    }
}

/// Puts a fit into the queue with what it refers to, all or nothing; `None` where the same question or a full queue
/// stands in the way.
async fn enqueue_on(
    pool: &Pool,
    new: &NewFit,
    finished: bool,
    capacity: i64,
    space: UploadSpace,
) -> Result<Option<Enqueued>, StoreError> {
    let request = request_digest(&new.request);
    let question = question_of(&new.fingerprint);
    let beyond = format!("{question}~");
    let priority = new.terms.priority.name();
    let timeout_seconds = new.terms.timeout_seconds.map(i64::from);
    let share = new.share(capacity);
    let mut transaction = pool.begin_alone("begin to queue a fit").await?;
    let added = query!("queue a fit": execute, transaction.on(),
        "INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request_digest, created_at, apart,
                          priority, timeout_seconds, model_digest, taught, owner)
         SELECT $1, $2, $3, 'queued', $4, $5, $6, $7, $8,
                EXISTS (SELECT 1 FROM fit WHERE fingerprint >= $15 AND fingerprint < $16 AND state = 'failed' AND apart),
                $11, $12, $13, $14, $17
          WHERE NOT EXISTS (SELECT 1 FROM fit WHERE fingerprint = $2
                            AND (state IN ('queued', 'running') AND owner = $17
                                 OR state = 'done' AND batchfit_version = $3 AND $9
                                    AND (answered_by = '' OR $6 LIKE 'agent %'
                                         AND answered_by NOT IN (SELECT id FROM api_key WHERE revoked_at IS NOT NULL))))
            AND (SELECT count(*) FROM fit WHERE state = 'queued') < $10
            AND (SELECT count(*) FROM fit WHERE state = 'queued' AND owner = $17) < $18
             ON CONFLICT (fingerprint, owner) WHERE state IN ('queued', 'running') DO NOTHING",
        new.id, new.fingerprint, new.batchfit_version, new.model, new.device, new.lane, request, new.created_at,
        finished, capacity, priority, timeout_seconds, new.model_digest, new.taught, question, beyond, new.owner,
        share)?;
    if added == 0 {
        return Ok(None);
    }
    keep_request(&mut transaction, &request, &new.request).await?;
    if let Some(key) = &new.key
        && !keep_key(&mut transaction, key, &new.id, new.created_at).await?
    {
        return Ok(Some(Enqueued::KeyTaken));
    }
    if let Some(aside) = &new.aside {
        keep_aside(&mut transaction, aside, space).await?;
    }
    let aside = new.aside.iter().map(|aside| &aside.digest);
    for digest in new.uploads.iter().chain(aside) {
        if !refer(&mut transaction, digest, "fit", &new.id).await? {
            return Ok(Some(Enqueued::UploadGone(digest.clone())));
        }
    }
    transaction.commit("commit a queued fit").await?;
    Ok(Some(Enqueued::Added))
}
