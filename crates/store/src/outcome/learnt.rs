//! What was learnt about headroom, in memory: each fit asks for it, and each recommendation that is shown.
//!
//! Other processes may learn too: each change of a row has a number, and who asks reads those that are newer.

use crate::text::by_name;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use tokio::task::yield_now;

use super::learning::{ModelRow, share};
use crate::engine::query;
use crate::model::{CalibrationSource, HeadroomCalibration};
use crate::units::Share;
use crate::{Db, StoreError};
use batchfit_fit::search::headroom::{Halved, HeadroomModel, of_others};

/// Rows that are read at once; others are served between.
const AT_A_TIME: i64 = 500;

/// Most models on cards that are held; the table has fewer, and is read again.
const MOST_KNOWN: usize = 11_000;

/// What answers have in common that are wrong by alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearntOn {
    /// The card's name.
    pub gpu: String,
    /// Where answers come from: `simulated`, `recorded` or `probed`.
    pub source: String,
    /// How ranks train together.
    pub strategy: String,
    /// The driver; empty for answers of a simulated card, and where a kind of card is asked about, whose machines may have any.
    pub driver: String,
    /// PyTorch's major and minor version.
    pub pytorch: String,
}

by_name!(LearntOn: gpu, source, strategy, driver, pytorch);

impl LearntOn {
    /// Whether it is about this text of [`LearntOn::text`]. A probed answer has a driver: without one it may be any.
    fn is_about(&self, text: &str) -> bool {
        let parts: Vec<&str> = text.split('\u{1f}').collect();
        let [gpu, source, strategy, _, pytorch] = parts[..] else {
            return false;
        };
        [&self.gpu, &self.source, &self.strategy, &self.pytorch] == [gpu, source, strategy, pytorch]
    }

    /// As one text, for a map.
    fn text(&self) -> String {
        let LearntOn {
            gpu,
            source,
            strategy,
            driver,
            pytorch,
        } = self;
        [gpu, source, strategy, driver, pytorch]
            .map(String::as_str)
            .join("\u{1f}")
    }
}

/// All of it. Cloning it shares it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lessons {
    known: Arc<RwLock<Known>>,
    /// How often an answer would have become another one.
    turns: Arc<AtomicU64>,
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Known {
    /// The last change that was read.
    changed: i64,
    cards: HashMap<String, OnCard>,
}

/// What is known of the models of a card.
#[derive(Debug, Default)]
struct OnCard {
    models: HashMap<String, OfModel>,
    /// What is left free of a model of which nothing is known.
    others: Option<Share>,
    outcomes: u64,
}

/// What is known of one of them.
#[derive(Debug, PartialEq)]
struct OfModel {
    learnt: HeadroomModel,
    /// The key that raised it most; empty for several, or where none is needed.
    owner: String,
    /// What the misses of each key ask for, by [`Reporter::owner`](batchfit_fit::search::headroom::Reporter::owner).
    missed: HashMap<String, Share>,
}

impl OfModel {
    /// What of it makes answers.
    fn says(&self) -> (Share, bool, &Halved, &HashMap<String, Share>) {
        let learnt = &self.learnt;
        (learnt.share, learnt.has_sunk, &learnt.halved, &self.missed)
    }
}

impl OnCard {
    fn learn_of_others(&mut self) {
        let models = self.models.values();
        self.others = of_others(models.map(|model| (model.learnt.raised, model.owner.as_str())));
    }

    fn calibration(
        &self,
        strategy: &str,
        model_digest: &str,
        owner: &str,
        is_for_agents: bool,
    ) -> Option<HeadroomCalibration> {
        // Where keys are needed, what two of them tell of other models confirms nothing about this one.
        let of_others = self.others.unwrap_or_default();
        let model = self.models.get(model_digest);
        // One that has sunk is known itself.
        let of_others = match model {
            Some(model) if model.learnt.has_sunk => Share(0),
            Some(_) | None => of_others,
        };
        let (confirmed, doubted) = if owner.is_empty() {
            (of_others, Share(0))
        } else {
            (Share(0), of_others)
        };
        let Some(OfModel { learnt, missed, .. }) = model else {
            return self.others.map(|_| HeadroomCalibration {
                strategy: strategy.to_owned(),
                share: confirmed,
                unconfirmed: doubted,
                halved: Halved::default(),
                of: CalibrationSource::Others,
                outcomes: self.outcomes,
            });
        };
        let [mut own, mut alone] = [Share(0); 2];
        for (teller, share) in missed {
            let (key, agent) = teller.split_once('/').unwrap_or((teller, ""));
            if key != owner {
                alone = alone.max(*share);
            } else if is_for_agents || agent.is_empty() {
                own = own.max(*share);
            }
        }
        Some(HeadroomCalibration {
            strategy: strategy.to_owned(),
            share: learnt.of(own).max(confirmed),
            unconfirmed: alone.max(doubted),
            halved: learnt.halved.clone(),
            of: CalibrationSource::Itself,
            outcomes: learnt.outcomes,
        })
    }
}

/// A row that has changed, as the table has it.
struct ChangedRow {
    on: LearntOn,
    model_digest: String,
    model: ModelRow,
    owner: String,
    changed: i64,
}

by_name!(ChangedRow: model_digest, owner, changed and on, model);

/// A row that has changed.
struct Row {
    on: LearntOn,
    model_digest: String,
    model: OfModel,
    changed: i64,
}

impl Lessons {
    /// Takes in rows that have changed; false where there are too many now, and all have to be read again.
    fn take(&self, rows: Vec<Row>) -> bool {
        if rows.is_empty() {
            return true;
        }
        let mut known = self.known.write().expect("nothing panics while it is held");
        let mut has_turned = false;
        // Cards whose models teach others something else now.
        let mut raised = HashSet::new();
        for row in rows {
            known.changed = known.changed.max(row.changed);
            let on = row.on.text();
            let card = known.cards.entry(on.clone()).or_default();
            let (learnt, before) = (&row.model.learnt, card.models.remove(&row.model_digest));
            has_turned |= before.as_ref().map(OfModel::says) != Some(row.model.says());
            let before = before.map(|before| before.learnt);
            card.outcomes += learnt.outcomes;
            card.outcomes -= before.as_ref().map_or(0, |before| before.outcomes);
            if before.map(|before| before.raised) != Some(learnt.raised) {
                raised.insert(on);
            }
            card.models.insert(row.model_digest, row.model);
        }
        for on in raised {
            if let Some(card) = known.cards.get_mut(&on) {
                card.learn_of_others();
            }
        }
        let models: usize = known.cards.values().map(|card| card.models.len()).sum();
        // Other processes have dropped rows.
        let is_whole = models <= MOST_KNOWN;
        if !is_whole {
            *known = Known::default();
        }
        drop(known);
        if has_turned {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
        is_whole
    }

    /// Forgets a model on a card: its row was dropped.
    pub(super) fn forget(&self, on: &LearntOn, model_digest: &str) {
        let mut known = self.known.write().expect("nothing panics while it is held");
        let Some(card) = known.cards.get_mut(&on.text()) else {
            return;
        };
        if let Some(model) = card.models.remove(model_digest) {
            card.outcomes -= model.learnt.outcomes;
            card.learn_of_others();
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether it teaches nothing about any model.
    pub(crate) fn is_empty(&self) -> bool {
        let known = self.known.read().expect("nothing panics while it is held");
        known.cards.is_empty()
    }

    /// What it teaches this key about one model. One of which nothing is known learns from others. What followed answers of agents counts
    /// for its own requests where agents answer them.
    pub(crate) fn calibration(
        &self,
        on: &LearntOn,
        model_digest: &str,
        owner: &str,
        is_for_agents: bool,
    ) -> Option<HeadroomCalibration> {
        let known = self.known.read().expect("nothing panics while it is held");
        let of = |card: &OnCard| card.calibration(&on.strategy, model_digest, owner, is_for_agents);
        if on.source != "probed" || !on.driver.is_empty() {
            return known.cards.get(&on.text()).and_then(of);
        }
        let cards = known.cards.iter().filter(|(text, _)| on.is_about(text));
        let taught = cards.filter_map(|(_, card)| of(card));
        // What one key says of a driver does not undo what is known of another one.
        taught.reduce(|one, other| {
            let unconfirmed = one.unconfirmed.max(other.unconfirmed);
            let both = [one, other].into_iter();
            let most = both.max_by_key(|it| (it.share, it.halved.kinds(), it.outcomes));
            HeadroomCalibration {
                unconfirmed,
                ..most.expect("two are there")
            }
        })
    }

    fn last_change(&self) -> i64 {
        let known = self.known.read().expect("nothing panics while it is held");
        known.changed
    }
}

impl Db {
    /// Reads what was learnt since the last read.
    pub async fn read_learnt(&self) -> Result<(), StoreError> {
        let newest = query!("look for what was learnt": fetch_one scalar, self.pool.on(),
            "SELECT coalesce(max(changed), 0) AS newest FROM learnt")?;
        self.read_learnt_up_to(newest).await
    }

    /// The same, where the last change is known.
    pub(crate) async fn read_learnt_up_to(&self, newest: i64) -> Result<(), StoreError> {
        if newest <= self.lessons.last_change() {
            return Ok(());
        }
        let _reading = self.lessons.reading.lock().await;
        loop {
            let rows = self.learnt_after(self.lessons.last_change()).await?;
            let is_last = rows.is_empty();
            if self.lessons.take(rows) && is_last {
                return Ok(());
            }
            yield_now().await;
        }
    }

    /// What was learnt after a change, in the order of changes.
    async fn learnt_after(&self, changed: i64) -> Result<Vec<Row>, StoreError> {
        let rows = query!("read what was learnt": fetch_all ChangedRow, self.pool.on(),
            "SELECT model_digest, owner, gpu, source, strategy, driver, pytorch, share, raised,
                      has_sunk, halved, agreed, outcomes, misses, changed
                 FROM learnt WHERE changed > $1 ORDER BY changed LIMIT $2", changed, AT_A_TIME)?;
        let last = rows.last().map_or(changed, |row| row.changed);
        // What changed meanwhile is read after this.
        let keys = query!("read what keys told": fetch_all (i64, String, i64), self.pool.on(),
            "SELECT changed, teller.owner, missed FROM teller JOIN learnt ON learnt.id = teller.learnt
              WHERE changed > $1 AND changed <= $2 AND missed > 0", changed, last)?;
        let mut missed: HashMap<i64, HashMap<String, Share>> = HashMap::new();
        for (changed, owner, asked) in keys {
            let of_row = missed.entry(changed).or_default();
            of_row.insert(owner, share(asked));
        }
        let rows = rows.into_iter().map(|row| Row {
            on: row.on,
            model_digest: row.model_digest,
            model: OfModel {
                learnt: row.model.learnt(),
                owner: row.owner,
                missed: missed.remove(&row.changed).unwrap_or_default(),
            },
            changed: row.changed,
        });
        Ok(rows.collect())
    }

    /// What outcomes teach this key about answers for this model, as it was last read.
    pub fn calibration(
        &self,
        on: &LearntOn,
        model_digest: &str,
        owner: &str,
        is_for_agents: bool,
    ) -> Option<HeadroomCalibration> {
        self.lessons
            .calibration(on, model_digest, owner, is_for_agents)
    }

    /// How often what was read would have made an answer another one: who keeps answers compares it.
    pub fn learnt_turns(&self) -> u64 {
        self.lessons.turns.load(Ordering::Relaxed)
    }
}
