//! What trainings came to that followed a recommendation, and what is learnt from it.
//!
//! An outcome is always kept; whether something is learnt of it is decided once, here, and kept beside it. What follows for the
//! headroom of later answers is `search::headroom`'s. See docs/operate/outcomes.md.

mod again;
mod calibration;
mod reported;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

pub use again::{NearDocument, nearest, question_of};
pub use calibration::learn_before;
pub(super) use calibration::{calibration, question_about};
pub use reported::{ReportedEnvironment, ReportedOutcome};

use crate::store::{
    Db, Learning, NewOutcome, OutcomeKept, StoreError, StoredLearnt, StoredOutcome,
    StoredRecommendation, Time,
};
use crate::units::{Bytes, Share};
use batchfit_fit::search::ask_tell::Outcome;
use batchfit_fit::search::headroom::{AGREEING, Answered, RejectReason, sample};

/// An outcome: what was predicted, what came of it, and what was learnt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct OutcomeDocument {
    /// Its number; later ones are larger.
    #[schema(minimum = 1)]
    pub id: i64,
    /// The recommendation that was followed.
    pub recommendation_id: String,
    /// Samples per micro-step on one GPU.
    #[schema(minimum = 1)]
    pub batch: i64,
    /// How it ended.
    #[schema(value_type = Outcome)]
    pub outcome: String,
    /// Most bytes that its allocator had reserved; null where it was not measured.
    pub peak_reserved_bytes: Option<i64>,
    /// What was predicted for the recommended batch.
    pub predicted_peak_reserved_bytes: i64,
    /// How far the peak was above the predicted one, as a part of that: 0.03 is 3 % more, -0.01 is 1 % less. Null where they cannot be
    /// compared.
    pub error: Option<f64>,
    /// How often the allocator freed its cache and retried; null where it was not measured.
    pub retries: Option<i64>,
    /// Optimizer steps that ran; null where they were not counted.
    pub steps: Option<i64>,
    /// Where it ran.
    #[schema(value_type = ReportedEnvironment)]
    pub environment: Value,
    /// The headroom of later answers for this model and card to the key that told, as a share of the limit: before this outcome, and after it.
    /// Null where nothing was learnt.
    pub headroom: Option<HeadroomChange>,
    /// Why nothing was learnt; null where something was.
    pub doubt: Option<RejectReasonDocument>,
    /// When it was told.
    pub created_at: Time,
}

/// What an outcome changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct HeadroomChange {
    /// As a part of the limit.
    pub before: f64,
    /// As a part of the limit.
    pub after: f64,
}

/// Why nothing was learnt of an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RejectReasonDocument {
    /// For programs: `crashed`, `larger_batch`, `smaller_batch`, `no_peak`, `few_steps`, `other_cause`, `environment_unknown`,
    /// `environment_other`, `other_limit` or `answer_too_old`.
    pub code: String,
    /// For people.
    pub detail: String,
}

/// What is known about one model on one card.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct AccuracyDocument {
    /// Its number.
    pub id: i64,
    /// The model, as a person calls it.
    pub model: String,
    /// The card's name.
    pub gpu: String,
    /// Where the answers came from: `simulated`, `recorded` or `probed`.
    pub source: String,
    /// How ranks train together.
    pub strategy: String,
    /// The driver; null for answers of a simulated card.
    pub driver: Option<String>,
    /// PyTorch's major and minor version.
    pub pytorch: String,
    /// Outcomes that were learnt from.
    pub outcomes: i64,
    /// How many of them needed more than was known then.
    pub misses: i64,
    /// How many ran out of memory or had to retry.
    pub refused: i64,
    /// Peaks that could be compared with predictions.
    pub peaks: i64,
    /// How far they were above them in the mean, as a part of the prediction; null without any.
    pub mean_error: Option<f64>,
    /// The largest of these.
    pub largest_error: Option<f64>,
    /// The least headroom of answers now, as a share of the limit. What misses of a single key ask for counts for that key alone.
    pub headroom: f64,
    /// Whether it has sunk, and with it what answers like those that were followed keep by themselves.
    pub replaces_default: bool,
    /// How many outcomes in a row, about answers with the same doubts, agree with it; at 20 it sinks.
    pub agreed: i64,
    /// When something was last told.
    pub updated_at: Time,
}

/// What became of an outcome.
pub type OutcomeStatus = OutcomeKept<Box<OutcomeDocument>>;

/// Who tells an outcome.
#[derive(Debug, Clone, Default)]
pub struct Reporter {
    /// The API key; empty where none is needed.
    pub owner: String,
    /// The name that the client gave the outcome, and the digest of what it sent.
    pub named: Option<(String, String)>,
}

/// The recommendation of this id, or the first of the fit of this id.
pub async fn followed(db: &Db, id: &str) -> Result<Option<StoredRecommendation>, StoreError> {
    if let Some(found) = db.recommendation(id).await? {
        return Ok(Some(found));
    }
    match db.recommendation_named(id).await? {
        Some(id) => db.recommendation(&id).await,
        None => Ok(None),
    }
}

/// Keeps an outcome of the recommendation of this id, or of the first one of the fit of this id.
pub async fn add_outcome(
    db: &Db,
    id: &str,
    told: &ReportedOutcome,
    reporter: Reporter,
    now: Time,
) -> Result<OutcomeStatus, StoreError> {
    let Some(answer) = followed(db, id).await? else {
        return Ok(OutcomeStatus::Unknown);
    };
    let new = NewOutcome {
        recommendation_id: answer.id.clone(),
        seen: told.seen,
        environment: told.environment.text(),
        learning: learning(&answer, told),
        owner: reporter.owner,
        named: reporter.named,
        created_at: now,
    };
    let document = |stored| Box::new(OutcomeDocument::of(&answer, stored));
    Ok(match db.add_outcome(&new).await? {
        OutcomeKept::New(stored) => OutcomeStatus::New(document(stored)),
        OutcomeKept::Again(stored) => OutcomeStatus::Again(document(stored)),
        OutcomeKept::NameTaken => OutcomeStatus::NameTaken,
        OutcomeKept::Unknown => OutcomeStatus::Unknown,
    })
}

/// Outcomes of this recommendation, newest first: at most `limit`, before the one of this number. `None` where there is no such
/// recommendation.
pub async fn outcomes(
    db: &Db,
    id: &str,
    before: Option<i64>,
    limit: i64,
) -> Result<Option<Vec<OutcomeDocument>>, StoreError> {
    let Some(answer) = followed(db, id).await? else {
        return Ok(None);
    };
    let stored = db.outcomes(&answer.id, before, limit).await?;
    let documents = stored.into_iter();
    Ok(Some(
        documents
            .map(|stored| OutcomeDocument::of(&answer, stored))
            .collect(),
    ))
}

/// What is known, one model on one card after the other: at most `limit`, after the one of this number.
pub async fn accuracy(
    db: &Db,
    gpu: Option<&str>,
    after: Option<i64>,
    limit: i64,
) -> Result<Vec<AccuracyDocument>, StoreError> {
    let rows = db.learnt_rows(gpu, after, limit).await?;
    Ok(rows.into_iter().map(AccuracyDocument::from).collect())
}

/// What is learnt of an outcome, or why nothing is.
fn learning(
    answer: &StoredRecommendation,
    told: &ReportedOutcome,
) -> Result<Learning, RejectReason> {
    let headroom = answer.headroom.as_ref().ok_or(RejectReason::AnswerTooOld)?;
    let of = Answered {
        micro_batch: answer.micro_batch.unsigned_abs(),
        peak_reserved: Bytes(answer.peak_reserved_bytes.unsigned_abs()),
        limit: Bytes(answer.limit_bytes.unsigned_abs()),
        headroom: headroom.share,
        retries: answer.micro_batch > answer.max_batch_without_retries,
    };
    if answer.model_digest.is_empty() {
        return Err(RejectReason::AnswerTooOld);
    }
    let lesson = sample(&of, &told.seen)?;
    told.environment.is_of(answer)?;
    Ok(Learning {
        lesson,
        on: answer.learnt_on(),
        way: answer.way(),
        model: answer.model.clone(),
        doubts: answer.doubts(),
        headroom: headroom.share,
        of_others: if headroom.from == "others" {
            headroom.share
        } else {
            Share(0)
        },
        error: compared(
            answer,
            told.seen.batch.cast_signed(),
            told.seen.outcome.name(),
            told.seen.peak_reserved.map(|peak| peak.0.cast_signed()),
        ),
    })
}

/// How far a peak was above the predicted one, in millionths of that, where it is the peak of the recommended batch.
fn compared(
    answer: &StoredRecommendation,
    batch: i64,
    outcome: &str,
    peak: Option<i64>,
) -> Option<i64> {
    let is_comparable = batch == answer.micro_batch && outcome == Outcome::Fits.name();
    let peak = peak.filter(|_| is_comparable)?;
    let predicted = i128::from(answer.peak_reserved_bytes.max(1));
    let above = (i128::from(peak) - predicted) * i128::from(Share::ALL.0) / predicted;
    i64::try_from(above)
        .ok()
        .map(|above| above.min(MOST_COUNTED))
}

/// An error of ten times the prediction says as much as a larger one, and sums of it stay numbers.
const MOST_COUNTED: i64 = 10_000_000;

fn part(millionths: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let millionths = millionths as f64;
    millionths / f64::from(Share::ALL.0)
}

impl OutcomeDocument {
    fn of(answer: &StoredRecommendation, stored: StoredOutcome) -> OutcomeDocument {
        let error = compared(
            answer,
            stored.batch,
            &stored.outcome,
            stored.peak_reserved_bytes,
        );
        let change = stored.headroom_before.zip(stored.headroom_after);
        OutcomeDocument {
            id: stored.number,
            recommendation_id: answer.id.clone(),
            batch: stored.batch,
            outcome: stored.outcome,
            peak_reserved_bytes: stored.peak_reserved_bytes,
            predicted_peak_reserved_bytes: answer.peak_reserved_bytes,
            error: error.map(part),
            retries: stored.retries,
            steps: stored.steps,
            environment: stored.environment.0,
            headroom: change.map(|(before, after)| HeadroomChange {
                before: part(before),
                after: part(after),
            }),
            doubt: stored.doubt.map(|code| RejectReasonDocument {
                detail: RejectReason::named(&code)
                    .map_or_else(String::new, |it| it.meaning().to_owned()),
                code,
            }),
            created_at: stored.created_at,
        }
    }
}

impl From<StoredLearnt> for AccuracyDocument {
    fn from(row: StoredLearnt) -> AccuracyDocument {
        debug_assert!(row.agreed < i64::from(AGREEING), "it sinks then");
        let any = row.peaks > 0;
        AccuracyDocument {
            id: row.id,
            model: row.model,
            gpu: row.on.gpu,
            source: row.on.source,
            strategy: row.on.strategy,
            driver: Some(row.on.driver).filter(|driver| !driver.is_empty()),
            pytorch: row.on.pytorch,
            outcomes: row.outcomes,
            misses: row.misses,
            refused: row.refused,
            peaks: row.peaks,
            mean_error: any.then(|| part(row.error_sum / row.peaks.max(1))),
            largest_error: any.then(|| part(row.error_most)),
            headroom: part(row.share),
            replaces_default: row.has_sunk,
            agreed: row.agreed,
            updated_at: row.updated_at,
        }
    }
}
