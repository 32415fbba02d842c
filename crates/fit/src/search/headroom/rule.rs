//! How headroom follows from lessons.

use std::collections::BTreeMap;

use super::Sample;
use crate::units::Share;

/// What is left free at the least: what the driver's placement of memory was measured to be worth. See Note [Measured errors]
/// in `jobs::fit`.
pub const FLOOR: Share = Share(5_000);

/// What is left free at the most, however bad outcomes are: the worst of 1,056 measured peaks was 19 % too low.
pub const CEILING: Share = Share(200_000);

/// The same for a model of which nothing is known but how others did on its card.
pub const CEILING_OF_OTHERS: Share = Share(50_000);

/// So many outcomes in a row have to agree before headroom sinks.
pub const AGREEING: u32 = 20;

/// As many of these as one key may report: outcomes of other keys have to agree.
pub const AGREEING_OF_A_KEY: u32 = 7;

/// What misses raise headroom to that one key alone tells of.
pub const CEILING_OF_A_KEY: Share = CEILING_OF_OTHERS;

/// What is kept beyond what was needed, at the least: half of the floor.
const MARGIN: Share = Share(2_500);

/// And as a part of what was needed.
const MARGIN_PART: u32 = 8;

/// Sinking by less is as good as being there.
const GRAIN: u32 = 500;

/// What is known about one model on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadroomModel {
    /// The headroom.
    pub share: Share,
    /// What misses have raised it to, as far as it has not sunk since; nothing before the first.
    pub raised: Share,
    /// Whether it has sunk by what was learnt: until then it only adds to the headroom of answers.
    pub has_sunk: bool,
    /// How many outcomes in a row have agreed with it since it last changed.
    pub agreed: u32,
    /// What those needed at the most, with the margin.
    pub needed: Share,
    /// Outcomes that were learnt from.
    pub outcomes: u64,
    /// How many of them were misses: they needed more than was known.
    pub misses: u64,
}

/// What one key has told about one model on one card. Where no keys are needed, everybody is one who is believed alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reporter {
    /// The key; empty where none is needed.
    pub owner: String,
    /// What its misses ask for.
    pub missed: Share,
    /// How many of those that agree in a row are its.
    pub agreed: u32,
}

impl Reporter {
    /// Of this key, which has told nothing.
    pub fn of(owner: &str) -> Reporter {
        Reporter {
            owner: owner.to_owned(),
            ..Reporter::default()
        }
    }

    /// Whether it is believed alone.
    fn is_open(&self) -> bool {
        self.owner.is_empty()
    }

    /// What its misses raise headroom to if no other key reports any.
    fn alone(&self) -> Share {
        if self.is_open() {
            self.missed
        } else {
            self.missed.min(CEILING_OF_A_KEY)
        }
    }
}

/// What the misses of these ask for together: as much as two of them do, and of what one alone does a part.
fn believed<'t>(reporters: impl Iterator<Item = &'t Reporter> + Clone) -> Share {
    let [mut most, mut second] = [Share(0); 2];
    for reporter in reporters.clone() {
        if reporter.missed > most {
            (most, second) = (reporter.missed, most);
        } else {
            second = second.max(reporter.missed);
        }
    }
    let alone = reporters.map(Reporter::alone).max();
    second.max(alone.unwrap_or_default())
}

impl HeadroomModel {
    /// Before the first outcome: what the answer left free that it is about.
    pub fn begin(share: Share) -> HeadroomModel {
        HeadroomModel {
            share: share.clamp(FLOOR, CEILING),
            raised: Share(0),
            has_sunk: false,
            agreed: 0,
            needed: Share(0),
            outcomes: 0,
            misses: 0,
        }
    }

    /// Takes in what was learnt of a run that `tellers[teller]` tells of, one of those who told before or now for the first time; says whether the headroom
    /// is another one now.
    pub fn take(&mut self, lesson: Sample, reporters: &mut [Reporter], reporter: usize) -> bool {
        let before = (self.share, self.has_sunk);
        self.outcomes += 1;
        let (wanted, is_miss) = match lesson {
            Sample::Needs(need) => {
                let margin = MARGIN.0.max(need.0 / MARGIN_PART);
                let wanted = Share(need.0 + margin);
                (wanted, wanted > self.share)
            }
            // Twice what was not enough. Others that follow the same answer say the same, and change nothing.
            Sample::NeedsMoreThan(free) => (Share(free.0.saturating_mul(2)), true),
        };
        if is_miss {
            self.misses += 1;
            self.agreed = 0;
            self.needed = Share(0);
            for one in reporters.iter_mut() {
                one.agreed = 0;
            }
            let one = &mut reporters[reporter];
            one.missed = one.missed.max(wanted.clamp(FLOOR, CEILING));
            self.raised = self.raised.max(believed(reporters.iter()));
            self.share = self.share.max(self.raised);
        } else {
            self.needed = self.needed.max(wanted);
            let one = &mut reporters[reporter];
            if one.is_open() || one.agreed < AGREEING_OF_A_KEY {
                one.agreed += 1;
                self.agreed += 1;
            }
            if self.agreed == AGREEING {
                self.sink(reporters);
            }
        }
        before != (self.share, self.has_sunk)
    }

    /// Half of the way to what was needed, or all of it where that is near; never below what the misses of those ask for who do not agree.
    fn sink(&mut self, reporters: &mut [Reporter]) {
        let silent = reporters.iter().filter(|reporter| reporter.agreed == 0);
        let needed = self.needed.max(FLOOR).max(believed(silent)).min(self.share);
        let beyond = self.share.0.saturating_sub(needed.0);
        self.share = Share(needed.0 + if beyond <= GRAIN { 0 } else { beyond / 2 });
        self.raised = self.raised.min(self.share);
        self.has_sunk = true;
        self.agreed = 0;
        self.needed = Share(0);
        for reporter in reporters {
            if std::mem::take(&mut reporter.agreed) > 0 {
                reporter.missed = reporter.missed.min(self.share);
            }
        }
    }
}

/// What the models of a card teach about one without outcomes: what the second worst of them was raised to, of those of one
/// key the worst. The worst one alone may be what is wrong, or the reporter of it.
pub fn of_others<'k>(models: impl Iterator<Item = (Share, &'k str)>) -> Option<Share> {
    let mut by_key: BTreeMap<&str, Share> = BTreeMap::new();
    let mut all = Vec::new();
    for (raised, owner) in models.filter(|(raised, _)| *raised > FLOOR) {
        if owner.is_empty() {
            all.push(raised);
        } else {
            let most = by_key.entry(owner).or_default();
            *most = raised.max(*most);
        }
    }
    let [mut most, mut second] = [Share(0); 2];
    for raised in all.into_iter().chain(by_key.into_values()) {
        if raised > most {
            (most, second) = (raised, most);
        } else {
            second = second.max(raised);
        }
    }
    (second > FLOOR).then(|| second.min(CEILING_OF_OTHERS))
}
