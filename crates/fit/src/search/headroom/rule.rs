//! How headroom follows from lessons.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Sample;
use super::doubts::{Doubts, Halved, Kind, MOST_KINDS};
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

/// The least batch that is recommended in the place of this one because of what one other key alone asks for: a twentieth less.
pub const fn least_for_unconfirmed(batch: u64) -> u64 {
    batch - batch / 20
}

/// What is kept beyond what was needed, at the least: half of the floor.
const MARGIN: Share = Share(2_500);

/// And as a part of what was needed.
const MARGIN_PART: u32 = 8;

/// Sinking by less is as good as being there.
const GRAIN: u32 = 500;

/// What is known about one model on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadroomModel {
    /// The least headroom of answers to keys whose own misses ask for no more: see [`HeadroomModel::of`].
    pub share: Share,
    /// What misses have asked for, as far as it has not sunk since, those of one key alone too; nothing before the first.
    pub raised: Share,
    /// Whether it has sunk by what was learnt.
    pub has_sunk: bool,
    /// How much less answers keep free by themselves.
    pub halved: Halved,
    /// How many outcomes about answers with the same doubts have agreed with it since it last sank by those, without those before a
    /// key's last miss.
    pub agreed: u32,
    /// Outcomes that were learnt from.
    pub outcomes: u64,
    /// How many of them were misses: they needed more than was known.
    pub misses: u64,
}

/// What one key has told about one model on one card. Where no keys are needed, everybody is one who is believed alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reporter {
    /// The key; empty where none is needed. Where an agent of another key found the answers, `KEY/KEY OF THE AGENT`.
    pub owner: String,
    /// What its misses ask for.
    pub missed: Share,
    /// The same by kind of answer: trainings that follow others do not take it back. Empty where an earlier version counted them.
    pub misses: Vec<(Kind, Share)>,
    /// Its outcomes that agree in a row.
    pub agreements: Vec<Agreement>,
}

/// Outcomes of one key that agree, about answers with the same doubts: each speaks for such answers alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Of which kind.
    kind: Kind,
    /// How many count.
    agreed: u32,
    /// What they needed at the most, with the margin.
    needed: Share,
}

impl Reporter {
    /// Of this key, which has told nothing.
    pub fn of(owner: &str) -> Reporter {
        Reporter {
            owner: owner.to_owned(),
            ..Reporter::default()
        }
    }

    /// The key that tells.
    pub fn teller(&self) -> &str {
        self.voices().next().unwrap_or_default()
    }

    /// Whose word it is: the teller's, and the agent's, since of what follows a wrong answer everybody tells the same.
    fn voices(&self) -> impl Iterator<Item = &str> {
        self.owner.split('/')
    }

    /// Whether one key alone can have both say what they say.
    fn shares_a_voice(&self, other: &Reporter) -> bool {
        self.voices()
            .any(|voice| other.voices().any(|one| one == voice))
    }

    /// How many of its outcomes agree, and what they needed at the most.
    pub fn agreed(&self) -> (u32, Share) {
        let counts = self.agreements.iter().map(|one| one.agreed);
        let needed = self.agreements.iter().map(|one| one.needed).max();
        (counts.sum(), needed.unwrap_or_default())
    }

    /// The same of answers of a kind.
    fn agreed_on(&self, kind: &Kind) -> (u32, Share) {
        let found = self.agreements.iter().find(|one| one.kind == *kind);
        found.map_or((0, Share(0)), |one| (one.agreed, one.needed))
    }

    /// Takes in one that needed so much, without counting it.
    fn agree_on(&mut self, kind: &Kind, needed: Share) -> &mut Agreement {
        let known = self.agreements.iter().position(|one| one.kind == *kind);
        let place = known.unwrap_or_else(|| {
            if self.agreements.len() >= MOST_KINDS {
                self.agreements.remove(0);
            }
            self.agreements.push(Agreement {
                kind: kind.clone(),
                agreed: 0,
                needed,
            });
            self.agreements.len() - 1
        });
        let one = &mut self.agreements[place];
        one.needed = one.needed.max(needed);
        one
    }

    /// What misses of answers of this kind ask for; of others, where an earlier version counted them.
    fn missed_on(&mut self, kind: &Kind) -> &mut Share {
        let known = self.misses.iter().position(|(other, _)| other == kind);
        let place = known.unwrap_or_else(|| {
            let before = if self.misses.is_empty() {
                self.missed
            } else {
                Share(0)
            };
            if self.misses.len() >= MOST_KINDS {
                let least = (0..self.misses.len()).min_by_key(|place| self.misses[*place].1);
                self.misses.swap_remove(least.unwrap_or_default());
            }
            self.misses.push((kind.clone(), before));
            self.misses.len() - 1
        });
        &mut self.misses[place].1
    }

    /// Its misses of answers of this kind ask for so much now.
    fn ask_for(&mut self, kind: &Kind, share: Share) {
        *self.missed_on(kind) = share;
        let most = self.misses.iter().map(|(_, share)| *share).max();
        self.missed = most.unwrap_or_default();
        self.misses.retain(|(_, share)| *share > Share(0));
    }

    /// What it asks for of answers of a kind.
    fn asks(&self, kind: &Kind) -> Share {
        let found = self.misses.iter().find(|(other, _)| other == kind);
        let any = if self.misses.is_empty() {
            self.missed
        } else {
            Share(0)
        };
        found.map_or(any, |(_, share)| *share)
    }
}

/// What is believed of what reporters ask for: as much as two of them do that share neither teller nor agent, or one where no keys are
/// needed. And the most that any of them asks for.
fn believed<'t>(
    reporters: impl Iterator<Item = &'t Reporter>,
    asks: impl Fn(&Reporter) -> Share,
) -> (Share, Share) {
    let mut asked: Vec<(Share, &Reporter)> = reporters.map(|one| (asks(one), one)).collect();
    crate::order::by_key(&mut asked, |(share, _)| Reverse(*share));
    let is_confirmed = |place: usize| {
        let (_, one) = asked[place];
        let mut more = asked[..place].iter();
        one.owner.is_empty() || more.any(|(_, other)| !one.shares_a_voice(other))
    };
    let two = (0..asked.len()).find(|place| is_confirmed(*place));
    let share = |place: usize| asked.get(place).map_or(Share(0), |(share, _)| *share);
    (two.map_or(Share(0), share), share(0))
}

/// What is believed of answers of any kind: misses of one confirm none of another.
fn confirmed(reporters: &[Reporter], asks: impl Fn(&Reporter, &Kind) -> Share) -> Share {
    let kinds = reporters.iter().flat_map(|one| {
        let misses = one.misses.iter().map(|(kind, _)| kind);
        misses.chain(one.agreements.iter().map(|one| &one.kind))
    });
    let believed = kinds.map(|kind| believed(reporters.iter(), |one| asks(one, kind)).0);
    believed.max().unwrap_or_default()
}

/// Half of the way down, or all of it where that is near.
fn halfway(from: Share, to: Share) -> Share {
    let beyond = from.0.saturating_sub(to.0);
    Share(
        from.0
            - if beyond <= GRAIN {
                beyond
            } else {
                beyond.div_ceil(2)
            },
    )
}

impl HeadroomModel {
    /// Before the first outcome: the floor, or what other models teach. What the answer left free that it is about may be for doubts that
    /// others do not have.
    pub fn begin(share: Share) -> HeadroomModel {
        HeadroomModel {
            share: share.clamp(FLOOR, CEILING),
            raised: Share(0),
            has_sunk: false,
            halved: Halved::default(),
            agreed: 0,
            outcomes: 0,
            misses: 0,
        }
    }

    /// The least headroom of a key whose own misses ask for so much: those count fully for its own requests.
    pub fn of(&self, missed: Share) -> Share {
        self.share.max(missed)
    }

    /// The headroom of its answers with these doubts.
    pub fn of_answers(&self, missed: Share, doubts: &Doubts) -> Share {
        self.of(missed).max(self.halved.kept(doubts))
    }

    /// Takes in what was learnt of a run that `reporters[reporter]` tells of, one of those who told before or now for the first time. It
    /// followed an answer with these doubts.
    pub fn take(
        &mut self,
        lesson: Sample,
        doubts: &Doubts,
        reporters: &mut [Reporter],
        reporter: usize,
    ) {
        self.outcomes += 1;
        let one = &mut reporters[reporter];
        let (wanted, is_miss) = match lesson {
            Sample::Needs(need) => {
                let margin = MARGIN.0.max(need.0 / MARGIN_PART);
                let wanted = Share(need.0 + margin);
                (wanted, wanted > self.of_answers(one.missed, doubts))
            }
            // Twice what was not enough. Others that follow the same answer say the same, and change nothing.
            Sample::NeedsMoreThan(free) => (Share(free.0.saturating_mul(2)), true),
        };
        if is_miss {
            self.misses += 1;
            let (kind, wanted) = (doubts.kind().any(), wanted.clamp(FLOOR, CEILING));
            let before = *one.missed_on(&kind);
            one.ask_for(&kind, before.max(wanted));
            one.agreements.clear();
            let (_, most) = believed(reporters.iter(), |reporter| reporter.missed);
            self.share = self.share.max(confirmed(reporters, Reporter::asks));
            self.raised = self.raised.max(most);
        } else {
            let kind = doubts.kind();
            for of in [kind.any(), kind.clone()] {
                let told = |voice: &str| {
                    let same = reporters
                        .iter()
                        .filter(|one| one.voices().any(|it| it == voice));
                    same.map(|one| one.agreed_on(&of).0).sum::<u32>()
                };
                let one = &reporters[reporter];
                let counts = one.owner.is_empty()
                    || one.voices().all(|voice| told(voice) < AGREEING_OF_A_KEY);
                reporters[reporter].agree_on(&of, wanted).agreed += u32::from(counts);
            }
            if agreed_on(reporters, &kind.any()) >= AGREEING {
                self.sink(&kind.any(), reporters);
            }
            if agreed_on(reporters, &kind) >= AGREEING {
                self.halve(doubts, reporters);
            }
        }
        let kinds = reporters.iter().flat_map(|one| &one.agreements);
        let agreed = kinds.map(|one| agreed_on(reporters, &one.kind));
        self.agreed = agreed.max().unwrap_or(0);
    }

    /// Half of the way to what those need who agree, and to what the misses of the others ask for, as far as two say so. What a key
    /// asks for itself sinks likewise, to what it needed.
    fn sink(&mut self, kind: &Kind, reporters: &mut [Reporter]) {
        let asked = |one: &Reporter, of: &Kind| match one.agreed_on(kind) {
            (1.., needed) if of == kind => needed,
            _ => one.asks(of),
        };
        self.share = halfway(self.share, confirmed(reporters, asked).max(FLOOR));
        self.has_sunk = true;
        for one in reporters.iter_mut() {
            let (agreed, needed) = one.agreed_on(kind);
            if agreed == 0 {
                continue;
            }
            let mut missed = halfway(*one.missed_on(kind), needed.max(FLOOR));
            if needed > self.share {
                missed = missed.max(needed);
            }
            one.ask_for(kind, missed);
            one.agreements.retain(|one| one.kind != *kind);
        }
        let (_, most) = believed(reporters.iter(), |reporter| reporter.missed);
        self.raised = self.raised.min(self.share.max(most));
    }

    /// Half of what answers with these doubts keep for them, where that is enough for those that agree.
    fn halve(&mut self, doubts: &Doubts, reporters: &mut [Reporter]) {
        let kind = doubts.kind();
        let (needed, _) = believed(reporters.iter(), |one| one.agreed_on(&kind).1);
        let half = Share(self.halved.least(&kind).0 / 2);
        if self.halved.kept(doubts) > FLOOR && needed <= half.max(FLOOR) {
            self.halved.halve(doubts);
        }
        let kept = self.share.max(self.halved.least(&kind));
        for one in reporters.iter_mut() {
            let (_, needed) = one.agreed_on(&kind);
            if needed > kept {
                let asked = *one.missed_on(&kind.any());
                one.ask_for(&kind.any(), asked.max(needed));
            }
            one.agreements.retain(|one| one.kind != kind);
        }
    }
}

/// How many outcomes agree about answers of a kind.
fn agreed_on(reporters: &[Reporter], kind: &Kind) -> u32 {
    reporters.iter().map(|one| one.agreed_on(kind).0).sum()
}

/// What the models of a card teach about one without outcomes: what misses asked for of the second worst of them, of those of one
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
