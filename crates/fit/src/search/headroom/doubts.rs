//! What answers keep free by themselves, and how often trainings have shown that half of it is enough.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::Share;

batchfit_step::listed! {
    /// What an answer may be wrong about.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Doubt {
        /// Where the driver places memory.
        Driver = "driver",
        /// When Python lets go of values.
        Lifetimes = "lifetimes",
        /// Scratch memory of convolutions.
        Workspaces = "workspaces",
        /// Custom autograd functions.
        Functions = "functions",
        /// Rules that were measured on another card.
        Card = "card",
        /// Memory whose size does not follow from recorded batches.
        Extrapolated = "extrapolated",
        /// Kernels far above the recorded batches.
        Far = "far",
        /// What a run reserved beyond the prediction.
        Short = "short",
        /// Operators that are not known.
        Assumed = "assumed",
    }
}

/// How much an answer keeps free for each of its doubts, as shares of the limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Doubts(BTreeMap<Doubt, Share>);

/// Answers with the same doubts, each of these within a factor of two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kind {
    /// The least of them.
    doubts: BTreeMap<Doubt, Share>,
}

impl FromIterator<(Doubt, Share)> for Doubts {
    /// Those that are there several times are added.
    fn from_iter<I: IntoIterator<Item = (Doubt, Share)>>(doubts: I) -> Doubts {
        let mut all = BTreeMap::new();
        for (doubt, share) in doubts {
            let sum: &mut Share = all.entry(doubt).or_default();
            sum.0 = sum.0.saturating_add(share.0).min(Share::ALL.0);
        }
        all.retain(|_, share| *share > Share(0));
        Doubts(all)
    }
}

impl Doubts {
    /// Each of them.
    pub fn each(&self) -> impl Iterator<Item = (Doubt, Share)> {
        self.0.iter().map(|(doubt, share)| (*doubt, *share))
    }

    /// What it keeps free for all of them.
    pub fn total(&self) -> Share {
        total(&self.0)
    }

    /// At most so much in all.
    #[must_use]
    pub fn within(mut self, most: Share) -> Doubts {
        let total = self.total();
        if total > most {
            for share in self.0.values_mut() {
                let part = u64::from(share.0) * u64::from(most.0) / u64::from(total.0);
                *share = Share(u32::try_from(part).unwrap_or(most.0));
            }
        }
        self
    }

    pub(super) fn kind(&self) -> Kind {
        let least = |share: Share| Share(share.0.checked_ilog2().map_or(0, |log| 1 << log));
        let doubts = self.each().map(|(doubt, it)| (doubt, least(it))).collect();
        Kind { doubts }
    }
}

fn total(shares: &BTreeMap<Doubt, Share>) -> Share {
    let sum = shares.values().fold(0u32, |sum, share| sum + share.0);
    Share(sum.min(Share::ALL.0))
}

/// Kinds of doubts of which so much is known; the first make room.
pub(super) const MOST_KINDS: usize = 16;

/// How often trainings halved what answers keep free for each kind of doubts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Halved(Vec<(Kind, u32)>);

impl Halved {
    /// Of how many kinds something is known.
    pub fn kinds(&self) -> usize {
        self.0.len()
    }

    /// How often that of answers with doubts like these.
    pub fn times(&self, doubts: &Doubts) -> u32 {
        self.times_of(&doubts.kind())
    }

    fn times_of(&self, kind: &Kind) -> u32 {
        let found = self.0.iter().find(|(other, _)| other == kind);
        found.map_or(0, |(_, times)| *times)
    }

    /// What is left of the least that answers of a kind keep free.
    pub(super) fn least(&self, kind: &Kind) -> Share {
        let all = total(&kind.doubts).0;
        Share(all.checked_shr(self.times_of(kind)).unwrap_or(0))
    }

    /// What is left of what they keep free.
    pub fn kept(&self, doubts: &Doubts) -> Share {
        let times = self.times(doubts);
        Share(doubts.total().0.checked_shr(times).unwrap_or(0))
    }

    /// Once more.
    pub fn halve(&mut self, doubts: &Doubts) {
        let kind = doubts.kind();
        if let Some((_, times)) = self.0.iter_mut().find(|(other, _)| *other == kind) {
            *times += 1;
            return;
        }
        if self.0.len() >= MOST_KINDS {
            self.0.remove(0);
        }
        self.0.push((kind, 1));
    }
}
