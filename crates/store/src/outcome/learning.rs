//! What is learnt of an outcome, in the table.

use super::{Learning, LearntOn};
use crate::engine::{Transaction, query};
use crate::text::by_name;
use crate::units::Share;
use crate::{JsonText, StoreError, Time, integer};
use batchfit_fit::search::headroom::{Agreement, Halved, HeadroomModel, Reporter, Sample};
use sqlx::types::Json;

/// Most models and cards of which something is known. Those of the key that tells make room, where it has more than a part of them,
/// or else of the key that told most alone, or of several; those first that no miss taught, and those without outcomes for longest.
pub(super) const MOST_LEARNT: i64 = 10_000;

/// A key with more than one in so many of them makes room itself.
const PART_OF_A_KEY: i64 = 10;

/// What is known of one way to train a model on one card.
struct Row {
    id: i64,
    model: ModelRow,
}

by_name!(Row: id and model);

/// What was learnt of a model.
pub(super) struct ModelRow {
    share: i64,
    /// The most that a miss asks for.
    pub raised: i64,
    has_sunk: bool,
    halved: Json<Halved>,
    agreed: i64,
    outcomes: i64,
    misses: i64,
}

by_name!(ModelRow: share, raised, has_sunk, halved, agreed, outcomes, misses);

/// What a key has told of it.
struct ReporterRow {
    owner: String,
    missed: i64,
    asks: i64,
    agreements: Json<Vec<Agreement>>,
}

by_name!(ReporterRow: owner, missed, asks, agreements);

/// What other ways to train the model teach a key.
struct InheritedRow {
    owner: String,
    share: i64,
    missed: i64,
}

by_name!(InheritedRow: owner, share, missed);

/// What had to make room.
pub(super) struct DroppedRow {
    pub on: LearntOn,
    pub model_digest: String,
}

by_name!(DroppedRow: model_digest and on);

/// The digest of the model that a way trains.
pub(super) fn model_of(way: &str) -> &str {
    way.split('/').next().unwrap_or(way)
}

/// What the names of all ways to train a model are: its digest where how was not looked at, and those from one text up to another.
pub(super) fn ways_of(way: &str) -> [String; 3] {
    let model = model_of(way);
    // What comes after a slash.
    [String::new(), "/".to_owned(), "0".to_owned()].map(|end| format!("{model}{end}"))
}

/// A share as the table has it. The table takes no other.
pub(crate) fn share(millionths: i64) -> Share {
    Share(count(millionths))
}

impl ModelRow {
    pub fn learnt(self) -> HeadroomModel {
        HeadroomModel {
            share: share(self.share),
            inherited: Share(0),
            has_sunk: self.has_sunk,
            halved: self.halved.0,
            agreed: count(self.agreed),
            outcomes: self.outcomes.unsigned_abs(),
            misses: self.misses.unsigned_abs(),
        }
    }
}

/// A small count as the table has it.
fn count(stored: i64) -> u32 {
    u32::try_from(stored).unwrap_or(u32::MAX)
}

/// Takes a lesson in: the headroom of its key's answers before and now, and what had to make room for it.
pub(super) async fn learn(
    transaction: &mut Transaction,
    learning: &Learning,
    owner: &str,
    now: Time,
) -> Result<([Share; 2], Vec<DroppedRow>), StoreError> {
    let on = &learning.on;
    let row = row(transaction, learning).await?;
    let is_new = row.is_none();
    let id = row.as_ref().map(|row| row.id);
    // Whose room it takes, whoever answered.
    let teller = owner.split_once('/').map_or(owner, |(teller, _)| teller);
    let mut reporters = match id {
        Some(id) => reporters(transaction, id).await?,
        None => Vec::new(),
    };
    let known = reporters
        .iter()
        .position(|reporter| reporter.owner == owner);
    let reporter = known.unwrap_or_else(|| {
        reporters.push(Reporter::of(owner));
        reporters.len() - 1
    });
    let begin = Some(learning.of_others).filter(|_| owner.is_empty());
    let mut learnt = row.map_or_else(
        || HeadroomModel::begin(begin.unwrap_or_default()),
        |row| row.model.learnt(),
    );
    if !learnt.has_sunk || known.is_none() {
        let rows = inherited(transaction, learning).await?;
        let most = rows.iter().map(|row| row.share).max();
        let missed = rows.into_iter();
        let missed = missed.map(|row| (row.owner, share(row.missed))).collect();
        let new = known.is_none().then_some(reporter);
        learnt.inherit(share(most.unwrap_or(0)), &missed, &mut reporters, new);
    }
    let doubts = &learning.doubts;
    let before = learnt.of_answers(reporters[reporter].own(), doubts);
    learnt.take(learning.lesson, doubts, &mut reporters, reporter);
    let after = learnt.of_answers(reporters[reporter].own(), doubts);
    let is_its_own = reporters.iter().all(|one| one.teller() == teller);
    let told_by = if is_its_own { teller } else { "" };
    let changed: i64 = query!("count what was learnt": fetch_one scalar, transaction.on(),
        "SELECT coalesce(max(changed), 0) + 1 AS changed FROM learnt")?;
    let (outcomes, misses) = (
        integer("outcomes", learnt.outcomes)?,
        integer("misses", learnt.misses)?,
    );
    let refused = i64::from(matches!(learning.lesson, Sample::NeedsMoreThan(_)));
    let (peaks, error) = (
        i64::from(learning.error.is_some()),
        learning.error.unwrap_or(0),
    );
    // Servers of earlier versions may share the database: one number for all keys.
    let needed = reporters.iter().map(|one| one.agreed().1.0).max();
    let raised = reporters.iter().map(|one| one.asks.0).max();
    let shares = [learnt.share.0, raised.unwrap_or(0), needed.unwrap_or(0)];
    let ([share, raised, needed], agreed) = (shares.map(i64::from), i64::from(learnt.agreed));
    let halved = JsonText::written(&learnt.halved);
    query!("keep what was learnt": execute, transaction.on(),
        "INSERT INTO learnt (model_digest, model, gpu, source, strategy, driver, pytorch, share, raised, needed, has_sunk,
                             agreed, outcomes, misses, refused, peaks, error_sum, error_most, updated_at, changed, owner, halved)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $17, $18, $19, $20, $21)
             ON CONFLICT (model_digest, gpu, source, strategy, driver, pytorch) DO UPDATE
            SET share = excluded.share, raised = excluded.raised, needed = excluded.needed, has_sunk = excluded.has_sunk,
                agreed = excluded.agreed, outcomes = excluded.outcomes, misses = excluded.misses,
                refused = learnt.refused + excluded.refused, error_sum = learnt.error_sum + excluded.error_sum,
                error_most = CASE WHEN excluded.peaks = 0 THEN learnt.error_most WHEN learnt.peaks = 0 THEN excluded.error_most
                                  WHEN excluded.error_most > learnt.error_most THEN excluded.error_most ELSE learnt.error_most END,
                peaks = learnt.peaks + excluded.peaks, updated_at = excluded.updated_at, changed = excluded.changed,
                owner = excluded.owner, halved = excluded.halved",
        learning.way, learning.model, on.gpu, on.source, on.strategy, on.driver, on.pytorch, share, raised,
        needed, learnt.has_sunk, agreed, outcomes, misses, refused, peaks, error, now, changed, told_by, halved)?;
    let id: i64 = match id {
        Some(id) => id,
        None => query!("look for what was learnt": fetch_one scalar, transaction.on(),
            "SELECT id FROM learnt WHERE changed = $1", changed)?,
    };
    keep_reporters(transaction, id, &reporters).await?;
    let dropped = if is_new {
        drop_oldest(transaction, teller).await?
    } else {
        Vec::new()
    };
    Ok(([before, after], dropped))
}

/// What is known of its model on its card.
async fn row(
    transaction: &mut Transaction,
    learning: &Learning,
) -> Result<Option<Row>, StoreError> {
    let on = &learning.on;
    query!("read what was learnt of a model": fetch_optional Row, transaction.on(),
        "SELECT id, share, raised, has_sunk, halved, agreed, outcomes, misses
             FROM learnt
            WHERE model_digest = $1 AND gpu = $2 AND source = $3 AND strategy = $4 AND driver = $5 AND pytorch = $6",
        learning.way, on.gpu, on.source, on.strategy, on.driver, on.pytorch)
}

/// What other ways to train its model on its card teach.
async fn inherited(
    transaction: &mut Transaction,
    learning: &Learning,
) -> Result<Vec<InheritedRow>, StoreError> {
    let (on, way) = (&learning.on, &learning.way);
    let [model, first, end] = ways_of(way);
    query!("read what was learnt of other ways to train": fetch_all InheritedRow, transaction.on(),
        "SELECT coalesce(teller.owner, '') AS owner, max(share) AS share, coalesce(max(missed), 0) AS missed
             FROM learnt LEFT JOIN teller ON teller.learnt = learnt.id
            WHERE (model_digest = $1 OR (model_digest >= $2 AND model_digest < $3)) AND model_digest <> $4
              AND gpu = $5 AND source = $6 AND strategy = $7 AND driver = $8 AND pytorch = $9
            GROUP BY coalesce(teller.owner, '')",
        model, first, end, way, on.gpu, on.source, on.strategy, on.driver, on.pytorch)
}

/// What each key has told.
async fn reporters(transaction: &mut Transaction, id: i64) -> Result<Vec<Reporter>, StoreError> {
    let rows = query!("read what keys told": fetch_all ReporterRow, transaction.on(),
        "SELECT owner, missed, asks, agreements FROM teller WHERE learnt = $1 ORDER BY owner", id)?;
    let reporters = rows.into_iter().map(|row| Reporter {
        owner: row.owner,
        missed: share(row.missed),
        inherited: Share(0),
        asks: share(row.asks),
        agreements: row.agreements.0,
    });
    Ok(reporters.collect())
}

async fn keep_reporters(
    transaction: &mut Transaction,
    id: i64,
    reporters: &[Reporter],
) -> Result<(), StoreError> {
    for reporter in reporters {
        let (agreed, needed) = reporter.agreed();
        let shares = [reporter.missed, reporter.asks, needed];
        let [missed, asks, needed] = shares.map(|share| i64::from(share.0));
        let agreements = JsonText::written(&reporter.agreements);
        query!("keep what a key told": execute, transaction.on(),
            "INSERT INTO teller (learnt, owner, missed, agreed, needed, agreements, asks) VALUES ($1, $2, $3, $4, $5, $6, $7)
                 ON CONFLICT (learnt, owner) DO UPDATE
                SET missed = excluded.missed, agreed = excluded.agreed, needed = excluded.needed, agreements = excluded.agreements,
                    asks = excluded.asks",
            id, reporter.owner, missed, i64::from(agreed), needed, agreements, asks)?;
    }
    Ok(())
}

/// Drops what is worth least, where there is too much.
async fn drop_oldest(
    transaction: &mut Transaction,
    owner: &str,
) -> Result<Vec<DroppedRow>, StoreError> {
    query!("drop what was learnt longest ago": fetch_all DroppedRow, transaction.on(),
        "DELETE FROM learnt WHERE id IN
            (SELECT learnt.id FROM learnt JOIN (SELECT owner, count(*) AS many FROM learnt GROUP BY owner) AS room ON room.owner = learnt.owner
              ORDER BY CASE WHEN room.owner = $2 AND room.many > $3 THEN 0 ELSE 1 END, room.many DESC, CASE WHEN misses > 0 THEN 1 ELSE 0 END, updated_at, learnt.id
              LIMIT (SELECT CASE WHEN count(*) > $1 THEN count(*) - $1 ELSE 0 END FROM learnt))
         RETURNING model_digest, gpu, source, strategy, driver, pytorch", MOST_LEARNT, owner, MOST_LEARNT / PART_OF_A_KEY)
}
