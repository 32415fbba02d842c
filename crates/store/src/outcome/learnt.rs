//! What was learnt about headroom, in memory: each fit asks for it, and each recommendation that is shown.
//!
//! Other processes may learn too: each change of a row has a number, and who asks reads those that are newer.

use crate::text::by_name;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use tokio::task::yield_now;

use super::learning::{ModelRow, model_of, share, ways_of};
use crate::engine::query;
use crate::model::{CalibrationSource, HeadroomCalibration};
use crate::units::Share;
use crate::{Db, StoreError};
use batchfit_fit::search::headroom::{Halved, Told, of_others, taught};

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

impl Known {
    /// What is known of such cards.
    fn on(&self, on: &LearntOn) -> impl Iterator<Item = &OnCard> {
        let is_any = on.source == "probed" && on.driver.is_empty();
        let one = if is_any {
            None
        } else {
            self.cards.get(&on.text())
        };
        let all = self
            .cards
            .iter()
            .filter(move |(text, _)| is_any && on.is_about(text));
        one.into_iter().chain(all.map(|(_, card)| card))
    }
}

/// What is known of the models of a card.
#[derive(Debug, Default)]
struct OnCard {
    /// By the names of ways to train them.
    ways: BTreeMap<String, Told>,
    /// What is known of all ways to train a model, by its digest: there may be thousands.
    models: BTreeMap<String, Told>,
    /// What is left free of a model of which nothing is known.
    others: Option<Share>,
    outcomes: u64,
}

/// What of it makes answers.
fn says(told: &Told) -> (Share, bool, &Halved, &BTreeMap<String, (Share, Share)>) {
    let learnt = &told.learnt;
    (learnt.share, learnt.has_sunk, &learnt.halved, &told.by)
}

impl OnCard {
    /// Looks again at all ways to train these models.
    fn sum_up(&mut self, models: &BTreeSet<String>) {
        for model in models {
            let [_, first, end] = ways_of(model);
            let alone = self.ways.get(model).into_iter();
            let mut ways = alone.chain(self.ways.range(first..end).map(|(_, of)| of));
            let all = ways.next().map(|first| {
                let mut all = first.clone();
                ways.for_each(|told| all.also(told));
                all
            });
            match all {
                Some(all) => drop(self.models.insert(model.clone(), all)),
                None => drop(self.models.remove(model)),
            }
        }
    }

    fn learn_of_others(&mut self) {
        // Ways to train one model are one that teaches.
        let models = self.models.iter();
        self.others = of_others(models.map(|(model, told)| (model.as_str(), told)));
    }

    fn calibration(
        &self,
        strategy: &str,
        way: &str,
        owner: &str,
        is_for_agents: bool,
    ) -> Option<HeadroomCalibration> {
        let known = self.models.get(model_of(way));
        // Where keys are needed, what two of them tell of other models confirms nothing about this one. One that has sunk is known itself.
        let of_others = if known.is_some_and(|all| all.learnt.has_sunk) {
            Share(0)
        } else {
            self.others.unwrap_or_default()
        };
        let (confirmed, doubted) = if owner.is_empty() {
            (of_others, Share(0))
        } else {
            (Share(0), of_others)
        };
        let itself = self.ways.get(way);
        let (of, outcomes, (share, alone)) = if let Some(all) = known {
            let taught = taught(itself, all, owner, is_for_agents);
            (CalibrationSource::Itself, all.learnt.outcomes, taught)
        } else {
            self.others?;
            (CalibrationSource::Others, self.outcomes, Default::default())
        };
        Some(HeadroomCalibration {
            strategy: strategy.to_owned(),
            training: String::new(),
            limit: None,
            share: share.max(confirmed),
            unconfirmed: alone.max(doubted),
            halved: itself.map_or_else(Halved::default, |it| it.learnt.halved.clone()),
            of,
            outcomes,
        })
    }
}

/// A row that has changed, as the table has it.
struct ChangedRow {
    on: LearntOn,
    model_digest: String,
    model: ModelRow,
    changed: i64,
}

by_name!(ChangedRow: model_digest, changed and on, model);

/// A row that has changed.
struct Row {
    on: LearntOn,
    way: String,
    told: Told,
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
        // What has changed of the models of a card, and whether they teach others something else now.
        let mut changed: HashMap<String, (BTreeSet<String>, bool)> = HashMap::new();
        for row in rows {
            known.changed = known.changed.max(row.changed);
            let on = row.on.text();
            let card = known.cards.entry(on.clone()).or_default();
            let before = card.ways.remove(&row.way);
            has_turned |= before.as_ref().map(says) != Some(says(&row.told));
            card.outcomes += row.told.learnt.outcomes;
            card.outcomes -= before.as_ref().map_or(0, |before| before.learnt.outcomes);
            let (models, teaches) = changed.entry(on).or_default();
            models.insert(model_of(&row.way).to_owned());
            *teaches |= before.is_none_or(|before| before.by != row.told.by);
            card.ways.insert(row.way, row.told);
        }
        for (on, (models, teaches)) in changed {
            let card = known.cards.entry(on).or_default();
            card.sum_up(&models);
            if teaches {
                card.learn_of_others();
            }
        }
        let ways: usize = known.cards.values().map(|card| card.ways.len()).sum();
        // Other processes have dropped rows.
        let is_whole = ways <= MOST_KNOWN;
        if !is_whole {
            *known = Known::default();
        }
        drop(known);
        if has_turned {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
        is_whole
    }

    /// Forgets a way to train on a card: its row was dropped.
    pub(super) fn forget(&self, on: &LearntOn, way: &str) {
        let mut known = self.known.write().expect("nothing panics while it is held");
        let Some(card) = known.cards.get_mut(&on.text()) else {
            return;
        };
        if let Some(told) = card.ways.remove(way) {
            card.outcomes -= told.learnt.outcomes;
            card.sum_up(&[model_of(way).to_owned()].into());
            card.learn_of_others();
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether it teaches nothing about any model.
    pub(crate) fn is_empty(&self) -> bool {
        let known = self.known.read().expect("nothing panics while it is held");
        known.cards.is_empty()
    }

    /// What it teaches this key about one way to train. A model of which nothing is known learns from others. What followed answers of
    /// agents counts for its own requests where agents answer them.
    pub(crate) fn calibration(
        &self,
        on: &LearntOn,
        way: &str,
        owner: &str,
        is_for_agents: bool,
    ) -> Option<HeadroomCalibration> {
        let known = self.known.read().expect("nothing panics while it is held");
        let cards = known.on(on);
        let taught =
            cards.filter_map(|card| card.calibration(&on.strategy, way, owner, is_for_agents));
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

    /// Below which limits something is known of this way to train a model: their binary logarithms.
    fn limits(&self, on: &LearntOn, way: &str) -> BTreeSet<u32> {
        let known = self.known.read().expect("nothing panics while it is held");
        let [first, end] = ["/", "0"].map(|end| format!("{way}{end}"));
        let mut limits = BTreeSet::new();
        for card in known.on(on) {
            let ways = card.ways.range(first.clone()..end.clone());
            limits.extend(ways.filter_map(|(name, _)| name[first.len()..].parse::<u32>().ok()));
        }
        limits
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
            "SELECT model_digest, gpu, source, strategy, driver, pytorch, share, raised,
                      has_sunk, halved, agreed, outcomes, misses, changed
                 FROM learnt WHERE changed > $1 ORDER BY changed LIMIT $2", changed, AT_A_TIME)?;
        let last = rows.last().map_or(changed, |row| row.changed);
        // What changed meanwhile is read after this.
        let keys = query!("read what keys told": fetch_all (i64, String, i64, i64), self.pool.on(),
            "SELECT changed, teller.owner, missed, asks FROM teller JOIN learnt ON learnt.id = teller.learnt
              WHERE changed > $1 AND changed <= $2", changed, last)?;
        let mut told: HashMap<i64, BTreeMap<String, (Share, Share)>> = HashMap::new();
        for (changed, owner, missed, asks) in keys {
            let of_row = told.entry(changed).or_default();
            of_row.insert(owner, (share(missed), share(asks)));
        }
        let rows = rows.into_iter().map(|row| {
            // Early versions kept no names.
            let nameless = || [(String::new(), (Share(0), share(row.model.raised)))].into();
            let by = told.remove(&row.changed).unwrap_or_else(nameless);
            Row {
                on: row.on,
                way: row.model_digest,
                told: Told {
                    learnt: row.model.learnt(),
                    by,
                },
                changed: row.changed,
            }
        });
        Ok(rows.collect())
    }

    /// What outcomes teach this key about answers for a model and, where it says that, a way to train it, as it was last read: below limits
    /// of which something is known, and at last below others.
    pub fn calibrations(
        &self,
        on: &LearntOn,
        model: &str,
        training: &str,
        (owner, is_for_agents): (&str, bool),
    ) -> Vec<HeadroomCalibration> {
        // Of no way nothing is known: that of the digest alone is of answers of earlier versions.
        let way = format!("{model}/{training}");
        let limits = if training.is_empty() {
            BTreeSet::new()
        } else {
            self.lessons.limits(on, &way)
        };
        let below = |limit: Option<u32>| {
            let way = limit.map_or_else(|| way.clone(), |limit| format!("{way}/{limit}"));
            let taught = self.lessons.calibration(on, &way, owner, is_for_agents)?;
            let training = training.to_owned();
            Some(HeadroomCalibration {
                training,
                limit,
                ..taught
            })
        };
        limits
            .into_iter()
            .map(Some)
            .chain([None])
            .filter_map(below)
            .collect()
    }

    /// How often what was read would have made an answer another one: who keeps answers compares it.
    pub fn learnt_turns(&self) -> u64 {
        self.lessons.turns.load(Ordering::Relaxed)
    }
}
