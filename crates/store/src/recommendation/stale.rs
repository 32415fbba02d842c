//! Which answers would be other ones today.
//!
//! An answer is as good as what it was made with: the rules of batchfit, PyTorch, on a GPU the driver and cuDNN, and what was
//! known of headroom. Which driver a card has today is not asked: it is that of the newest answer that was made on such a card.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::{StoredRecommendation, is_simulation};
use crate::Db;
use crate::model::{CalibrationSource, ENGINE_DIGEST, PYTORCH};
use crate::outcome::{LearntOn, Lessons};
use crate::units::{Bytes, Share};
use batchfit_fit::search::headroom::{Doubts, way};

/// Why an answer is out of date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Stale {
    /// What has changed since, one or more.
    pub because: Vec<Outdated>,
}

/// Something that has changed since an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Outdated {
    /// `batchfit`, `pytorch`, `driver`, `cudnn` or `headroom`.
    #[schema(value_type = String, pattern = "^(batchfit|pytorch|driver|cudnn|headroom)$")]
    pub what: &'static str,
    /// What it was made with; null where that is not known.
    pub was: Option<String>,
    /// What it would be made with now.
    pub now: Option<String>,
}

/// What GPUs have today, by the cards' names.
#[derive(Debug, Clone, Default)]
pub(super) struct CurrentGpus {
    cards: HashMap<String, OnCard>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OnCard {
    /// When the newest answer was made.
    at: i64,
    driver: Option<String>,
    cudnn: Option<String>,
}

/// The major and minor number of a version: `2.11` of `2.11.0+cu130`.
pub fn minor(version: &str) -> &str {
    let dots = version.match_indices('.').nth(1).map(|(at, _)| at);
    &version[..dots.unwrap_or(version.len())]
}

impl CurrentGpus {
    /// Takes in an answer: the newest of a card says what that has.
    pub(super) fn see(present: &mut Arc<CurrentGpus>, row: &StoredRecommendation) {
        let Some(card) = card(row).filter(|_| row.driver.is_some()) else {
            return;
        };
        let known = present.cards.get(card);
        if known.is_some_and(|known| known.at > row.created_at.0) {
            return;
        }
        let now = OnCard {
            at: row.created_at.0,
            driver: row.driver.clone(),
            cudnn: row.cudnn.clone(),
        };
        Arc::make_mut(present).cards.insert(card.to_owned(), now);
    }

    /// The same answer, marked where it would be another one today.
    pub(super) fn marked(
        &self,
        mut row: StoredRecommendation,
        lessons: &Lessons,
    ) -> StoredRecommendation {
        let mut because = Vec::new();
        if row.rules != ENGINE_DIGEST {
            let was = match row.rules.as_str() {
                "" => row.batchfit_version.clone(),
                rules => format!("{} ({rules})", row.batchfit_version),
            };
            because.push(Outdated {
                what: "batchfit",
                was: Some(was),
                now: Some(format!("{} ({ENGINE_DIGEST})", env!("CARGO_PKG_VERSION"))),
            });
        }
        if !row.pytorch.is_empty() && minor(&row.pytorch) != PYTORCH {
            because.push(Outdated {
                what: "pytorch",
                was: Some(row.pytorch.clone()),
                now: Some(PYTORCH.to_owned()),
            });
        }
        let card = card(&row).and_then(|card| self.cards.get(card));
        if let (Some(_), Some(card)) = (&row.driver, card) {
            for (what, was, now) in [
                ("driver", &row.driver, &card.driver),
                ("cudnn", &row.cudnn, &card.cudnn),
            ] {
                if was != now {
                    let (was, now) = (was.clone(), now.clone());
                    because.push(Outdated { what, was, now });
                }
            }
        }
        because.extend(headroom(&row, lessons, ""));
        row.stale = (!because.is_empty()).then_some(Stale { because });
        row
    }
}

/// What has one driver at a time: a machine's card. Of a kind of card each machine may have another, and none is out of date.
fn card(row: &StoredRecommendation) -> Option<&str> {
    if row.device.contains('/') {
        Some(&row.device)
    } else {
        row.device.starts_with("cuda:").then_some(&row.gpu)
    }
}

impl Db {
    /// The same for this key, whose own misses count for it alone.
    pub fn as_read_by(&self, reader: &str, mut row: StoredRecommendation) -> StoredRecommendation {
        let mut because = row
            .stale
            .take()
            .map_or_else(Vec::new, |stale| stale.because);
        because.retain(|one| one.what != "headroom");
        because.extend(headroom(&row, &self.lessons, reader));
        row.stale = (!because.is_empty()).then_some(Stale { because });
        row
    }
}

/// The headroom today, where that is something else. What one key alone tells makes no answer out of date to others: neither the answers
/// without it, nor those with it.
fn headroom(row: &StoredRecommendation, lessons: &Lessons, reader: &str) -> Option<Outdated> {
    let headroom = row.headroom.as_ref().filter(|was| was.from != "asked")?;
    if lessons.is_empty() {
        return None;
    }
    let is_for_agents = !is_simulation(&row.device);
    let on = row.learnt_on();
    let taught = lessons.calibration(&on, &row.way(), reader, is_for_agents)?;
    let kept = taught.halved.kept(&row.doubts());
    let (was, now) = (headroom.share, taught.share.max(kept));
    let is_more = was > now.max(taught.unconfirmed);
    let is_learnt = headroom.from == "learnt" && taught.of == CalibrationSource::Itself;
    let is_other = now > was || (is_more && (is_learnt || kept < headroom.doubts.total()));
    let percent = |share: Share| Some(format!("{:.2}%", share.fraction() * 100.0));
    is_other.then(|| Outdated {
        what: "headroom",
        was: percent(was),
        now: percent(now),
    })
}

impl StoredRecommendation {
    /// What it keeps free by itself, by what trainings that follow it teach.
    pub fn doubts(&self) -> Doubts {
        let doubts = self.headroom.as_ref().map(|it| it.doubts.clone());
        doubts.unwrap_or_default()
    }

    /// What trainings that follow it teach about.
    pub fn way(&self) -> String {
        let limit = Bytes(self.limit_bytes.unsigned_abs());
        if self.training.is_empty() {
            return self.model_digest.clone();
        }
        way(&self.model_digest, &self.training, limit)
    }

    /// What it is wrong by alike with others.
    pub fn learnt_on(&self) -> LearntOn {
        let source = match self.evidence.as_str() {
            "recorded" => "recorded",
            // What an agent simulated is about a kind of card, and has no driver either.
            _ if is_simulation(&self.device) || self.driver.is_none() => "simulated",
            _ => "probed",
        };
        LearntOn {
            gpu: self.gpu.clone(),
            source: source.to_owned(),
            strategy: self.strategy.clone(),
            driver: self.driver.clone().unwrap_or_default(),
            pytorch: minor(&self.pytorch).to_owned(),
        }
    }

    /// Whether this version of PyTorch is the one that it is for, as far as that matters.
    pub fn is_for_pytorch(&self, version: &str) -> bool {
        !self.pytorch.is_empty() && minor(version) == minor(&self.pytorch)
    }
}
