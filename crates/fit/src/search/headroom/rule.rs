//! How headroom follows from lessons.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Sample;
use super::doubts::{Doubts, Halved, Kind, MOST_KINDS};
use crate::units::{Bytes, Share};

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

/// What is known about one way to train a model on one card: see [`way`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeadroomModel {
    /// The least headroom of answers to keys whose own misses ask for no more: see [`HeadroomModel::of`].
    pub share: Share,
    /// What other ways to train the model teach, until this one has sunk itself.
    pub inherited: Share,
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

/// What one key has told about one way to train. Where no keys are needed, everybody is one who is believed alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reporter {
    /// The key; empty where none is needed. Where an agent of another key found the answers, `KEY/KEY OF THE AGENT`.
    pub owner: String,
    /// The least headroom of its own answers: what its misses ask for.
    pub missed: Share,
    /// The same of other ways to train the model, until this one has sunk.
    pub inherited: Share,
    /// What its misses ask for; those of other ways to train confirm nothing.
    pub asks: Share,
    /// Its outcomes that agree in a row.
    pub agreements: Vec<Agreement>,
}

/// Outcomes of one key that agree.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Agreement {
    /// About answers with the same doubts, for which alone they speak; or about any.
    kind: Option<Kind>,
    /// How many count.
    agreed: u32,
    /// What they needed at the most, with the margin.
    needed: Share,
    /// The same of those that needed more than their answer kept for its doubts.
    #[serde(default)]
    beyond: Share,
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

    fn voices(&self) -> impl Iterator<Item = &str> {
        voices(&self.owner)
    }

    /// How many of its outcomes agree, and what they needed at the most.
    pub fn agreed(&self) -> (u32, Share) {
        let counts = self.agreements.iter().map(|one| one.agreed);
        let needed = self.agreements.iter().map(|one| one.needed).max();
        (counts.sum(), needed.unwrap_or_default())
    }

    /// The same of answers of a kind.
    fn agreed_on(&self, kind: Option<&Kind>) -> Agreement {
        let mut of = self.agreements.iter();
        let found = of.find(|one| one.kind.as_ref() == kind);
        found.cloned().unwrap_or_default()
    }

    /// Takes in one that needed so much, without counting it.
    fn agree_on(&mut self, kind: Option<&Kind>, needed: Share, beyond: Share) -> &mut Agreement {
        let mut known = self.agreements.iter();
        let known = known.position(|one| one.kind.as_ref() == kind);
        let place = known.unwrap_or_else(|| {
            if self.agreements.len() >= MOST_KINDS {
                self.agreements.remove(0);
            }
            self.agreements.push(Agreement {
                kind: kind.cloned(),
                ..Agreement::default()
            });
            self.agreements.len() - 1
        });
        let one = &mut self.agreements[place];
        one.needed = one.needed.max(needed);
        one.beyond = one.beyond.max(beyond);
        one
    }

    /// The least headroom of its own answers.
    pub fn own(&self) -> Share {
        self.missed.max(self.inherited)
    }

    /// Its answers need so much.
    fn ask_for(&mut self, share: Share) {
        self.missed = self.missed.max(share);
        self.asks = self.asks.max(share);
    }
}

/// Whose word a reporter's is: the teller's, and the agent's, since of what follows a wrong answer everybody tells the same.
fn voices(reporter: &str) -> impl Iterator<Item = &str> {
    reporter.split('/')
}

/// Whether one key alone can have both reporters say what they say.
fn share_a_voice(one: &str, other: &str) -> bool {
    voices(one).any(|voice| voices(other).any(|it| it == voice))
}

/// What is believed of what reporters ask for: as much as two of them do that share neither teller nor agent, or one where no keys are
/// needed.
fn believed<'t>(
    reporters: impl Iterator<Item = &'t Reporter>,
    asks: impl Fn(&Reporter) -> Share,
) -> Share {
    let mut asked: Vec<(Share, &Reporter)> = reporters.map(|one| (asks(one), one)).collect();
    crate::order::by_key(&mut asked, |(share, _)| Reverse(*share));
    let is_confirmed = |place: usize| {
        let (_, one) = asked[place];
        let mut more = asked[..place].iter();
        one.owner.is_empty() || more.any(|(_, other)| !share_a_voice(&one.owner, &other.owner))
    };
    let two = (0..asked.len()).find(|place| is_confirmed(*place));
    two.map_or(Share(0), |place| asked[place].0)
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
            ..HeadroomModel::default()
        }
    }

    /// The least headroom of a key whose own misses ask for so much: those count fully for its own requests.
    pub fn of(&self, missed: Share) -> Share {
        self.share.max(self.inherited).max(missed)
    }

    /// The headroom of its answers with these doubts.
    pub fn of_answers(&self, missed: Share, doubts: &Doubts) -> Share {
        self.of(missed).max(self.halved.kept(doubts))
    }

    /// Takes in what other ways to train the model teach: all keys, and each. One that has sunk is known itself, but to a key that tells of it
    /// for the first time.
    pub fn inherit(
        &mut self,
        share: Share,
        missed: &BTreeMap<String, Share>,
        reporters: &mut [Reporter],
        new: Option<usize>,
    ) {
        let of = |one: &Reporter| missed.get(&one.owner).copied().unwrap_or_default();
        if !self.has_sunk {
            self.inherited = share;
            for one in reporters {
                one.inherited = of(one);
            }
        } else if let Some(new) = new {
            reporters[new].missed = of(&reporters[new]);
        }
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
                (wanted, wanted > self.of_answers(one.own(), doubts))
            }
            // Twice what was not enough. Others that follow the same answer say the same, and change nothing.
            Sample::NeedsMoreThan(free) => (Share(free.0.saturating_mul(2)), true),
        };
        if is_miss {
            self.misses += 1;
            one.ask_for(wanted.clamp(FLOOR, CEILING));
            one.agreements.clear();
            let confirmed = believed(reporters.iter(), |reporter| reporter.asks);
            self.share = self.share.max(confirmed);
        } else {
            let kind = doubts.kind();
            let is_covered = wanted <= self.halved.kept(doubts);
            let beyond = if is_covered { Share(0) } else { wanted };
            if !self.has_sunk && beyond > self.share {
                // What covers it now may sink by trainings in other ways.
                one.ask_for(beyond);
                let confirmed = believed(reporters.iter(), |reporter| reporter.asks);
                self.share = self.share.max(confirmed);
            }
            for of in [None, Some(&kind)] {
                let told = |voice: &str| {
                    let same = reporters
                        .iter()
                        .filter(|one| one.voices().any(|it| it == voice));
                    same.map(|one| one.agreed_on(of).agreed).sum::<u32>()
                };
                let one = &reporters[reporter];
                let counts = one.owner.is_empty()
                    || one.voices().all(|voice| told(voice) < AGREEING_OF_A_KEY);
                let one = reporters[reporter].agree_on(of, wanted, beyond);
                one.agreed += u32::from(counts);
            }
            if agreed_on(reporters, None) >= AGREEING {
                self.sink(reporters);
            }
            if agreed_on(reporters, Some(&kind)) >= AGREEING {
                self.halve(doubts, reporters);
            }
        }
        let kinds = reporters.iter().flat_map(|one| &one.agreements);
        let agreed = kinds.map(|one| agreed_on(reporters, one.kind.as_ref()));
        self.agreed = agreed.max().unwrap_or(0);
    }

    /// Half of the way to what those need who agree, and to what the misses of the others ask for, as far as two say so. What a key
    /// asks for itself sinks likewise, to what it needed.
    fn sink(&mut self, reporters: &mut [Reporter]) {
        let asked = |one: &Reporter| match one.agreed_on(None) {
            Agreement { agreed: 0, .. } => one.asks,
            agreement => agreement.needed,
        };
        let needed = believed(reporters.iter(), asked);
        self.share = halfway(self.of(Share(0)), needed.max(FLOOR));
        self.inherited = Share(0);
        self.has_sunk = true;
        for one in reporters.iter_mut() {
            one.missed = one.own();
            one.inherited = Share(0);
            let agreement = one.agreed_on(None);
            if agreement.agreed == 0 {
                continue;
            }
            let needed = agreement.needed.max(FLOOR);
            one.missed = halfway(one.missed, needed);
            one.asks = halfway(one.asks, needed);
            if agreement.beyond > self.share {
                one.ask_for(agreement.beyond);
            }
            one.agreements.retain(|one| one.kind.is_some());
        }
    }

    /// Half of what answers with these doubts keep for them, where that is enough for all that agree: who says that more is needed keeps for
    /// others what they keep by themselves, and no more.
    fn halve(&mut self, doubts: &Doubts, reporters: &mut [Reporter]) {
        let kind = doubts.kind();
        let needs = reporters
            .iter()
            .map(|one| one.agreed_on(Some(&kind)).needed);
        let half = Share(self.halved.least(&kind).0 / 2);
        if self.halved.kept(doubts) > FLOOR && needs.max() <= Some(half.max(FLOOR)) {
            self.halved.halve(doubts);
        }
        for one in reporters.iter_mut() {
            one.agreements
                .retain(|one| one.kind.as_ref() != Some(&kind));
        }
    }
}

/// How many outcomes agree about answers of a kind.
fn agreed_on(reporters: &[Reporter], kind: Option<&Kind>) -> u32 {
    reporters.iter().map(|one| one.agreed_on(kind).agreed).sum()
}

/// What names a way to train a model below a limit. Trainings are wrong by alike that are alike in all of it, and the limit within a
/// factor of two: what a script takes beside its model is bytes, not a share.
pub fn way(model: &str, training: &str, limit: Bytes) -> String {
    let power = limit.0.checked_ilog2().unwrap_or(0);
    format!("{model}/{training}/{power}")
}

/// What was told of one way to train, or of all of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// What is learnt of it.
    pub learnt: HeadroomModel,
    /// What was learnt of each [`Reporter::owner`]: [`Reporter::missed`] and [`Reporter::asks`].
    pub by: BTreeMap<String, (Share, Share)>,
}

impl Told {
    /// Takes in what was told of another way to train the same model: the most counts.
    pub fn also(&mut self, other: &Told) {
        self.learnt.share = self.learnt.share.max(other.learnt.share);
        self.learnt.has_sunk |= other.learnt.has_sunk;
        self.learnt.outcomes += other.learnt.outcomes;
        for (reporter, (missed, asks)) in &other.by {
            let most = self.by.entry(reporter.clone()).or_default();
            *most = (most.0.max(*missed), most.1.max(*asks));
        }
    }
}

/// The least headroom of a key's answers for one way to train a model, where something is known of that, and of which so much is known in
/// all; and what other keys alone ask for. A way that has sunk is known itself: until then what was learnt of any counts.
pub fn taught(way: Option<&Told>, all: &Told, owner: &str, by_agents: bool) -> (Share, Share) {
    let sunk = way.filter(|way| way.learnt.has_sunk);
    let known = sunk.unwrap_or(all);
    let [mut own, mut alone] = [Share(0); 2];
    for (reporter, of_all) in &all.by {
        let of_way = known.by.get(reporter);
        let (key, agent) = reporter.split_once('/').unwrap_or((reporter, ""));
        if key != owner {
            alone = alone.max(of_way.map_or(Share(0), |(_, asks)| *asks));
        } else if by_agents || agent.is_empty() {
            own = own.max(of_way.unwrap_or(of_all).0);
        }
    }
    (known.learnt.share.max(own), alone)
}

/// What the models of a card teach about one without outcomes: what two keys ask for, each of another model, or one where no keys are needed
/// of two. A model alone may be what is wrong, or the reporter of it.
pub fn of_others<'k>(models: impl Iterator<Item = (&'k str, &'k Told)>) -> Option<Share> {
    // Of what one asks for, the most of one model, and of another.
    let mut most: BTreeMap<&str, Vec<(Share, &str)>> = BTreeMap::new();
    for (model, told) in models {
        for (reporter, (_, asks)) in told.by.iter().filter(|(_, (_, asks))| *asks > FLOOR) {
            let two = most.entry(reporter).or_default();
            two.push((*asks, model));
            crate::order::by_key(two, |(asks, _)| Reverse(*asks));
            two.truncate(2);
        }
    }
    let all = most.into_iter().flat_map(|(reporter, two)| {
        two.into_iter()
            .map(move |(asks, model)| (asks, model, reporter))
    });
    let mut all: Vec<_> = all.collect();
    crate::order::by_key(&mut all, |(asks, ..)| Reverse(*asks));
    let is_confirmed = |place: usize| {
        let (_, model, reporter) = all[place];
        all[..place].iter().any(|(_, of, other)| {
            *of != model && (reporter.is_empty() || !share_a_voice(reporter, other))
        })
    };
    let two = (0..all.len()).find(|place| is_confirmed(*place))?;
    Some(all[two].0.min(CEILING_OF_OTHERS))
}
