//! How headroom follows from lessons.

use std::cmp::Reverse;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadroomModel {
    /// The headroom of keys whose own misses ask for no more: see [`HeadroomModel::of`].
    pub share: Share,
    /// What misses have asked for, as far as it has not sunk since, those of one key alone too; nothing before the first.
    pub raised: Share,
    /// Whether it has sunk by what was learnt: until then it only adds to the headroom of answers.
    pub has_sunk: bool,
    /// How many outcomes have agreed with it since it last sank, without those before a key's last miss.
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
    /// How many of those that agree in a row are its.
    pub agreed: u32,
    /// What these needed at the most, with the margin.
    pub needed: Share,
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

    /// What it asks for today.
    fn asks(&self) -> Share {
        if self.agreed > 0 {
            self.needed
        } else {
            self.missed
        }
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
    /// Before the first outcome: what the answer left free that it is about.
    pub fn begin(share: Share) -> HeadroomModel {
        HeadroomModel {
            share: share.clamp(FLOOR, CEILING),
            raised: Share(0),
            has_sunk: false,
            agreed: 0,
            outcomes: 0,
            misses: 0,
        }
    }

    /// The headroom of a key whose own misses ask for so much: those count fully for its own requests.
    pub fn of(&self, missed: Share) -> Share {
        self.share.max(missed)
    }

    /// Takes in what was learnt of a run that `reporters[reporter]` tells of, one of those who told before or now for the first time.
    pub fn take(&mut self, lesson: Sample, reporters: &mut [Reporter], reporter: usize) {
        self.outcomes += 1;
        let one = &mut reporters[reporter];
        let (wanted, is_miss) = match lesson {
            Sample::Needs(need) => {
                let margin = MARGIN.0.max(need.0 / MARGIN_PART);
                let wanted = Share(need.0 + margin);
                (wanted, wanted > self.of(one.missed))
            }
            // Twice what was not enough. Others that follow the same answer say the same, and change nothing.
            Sample::NeedsMoreThan(free) => (Share(free.0.saturating_mul(2)), true),
        };
        if is_miss {
            self.misses += 1;
            one.missed = one.missed.max(wanted.clamp(FLOOR, CEILING));
            (one.agreed, one.needed) = (0, Share(0));
            let (two, most) = believed(reporters.iter(), |reporter| reporter.missed);
            self.share = self.share.max(two);
            self.raised = self.raised.max(most);
        } else {
            one.needed = one.needed.max(wanted);
            let one = &reporters[reporter];
            let told = |voice: &str| {
                let same = reporters
                    .iter()
                    .filter(|one| one.voices().any(|it| it == voice));
                same.map(|one| one.agreed).sum::<u32>()
            };
            if one.owner.is_empty() || one.voices().all(|voice| told(voice) < AGREEING_OF_A_KEY) {
                reporters[reporter].agreed += 1;
            }
            let agreed: u32 = reporters.iter().map(|reporter| reporter.agreed).sum();
            if agreed >= AGREEING {
                self.sink(reporters);
            }
        }
        self.agreed = reporters.iter().map(|reporter| reporter.agreed).sum();
    }

    /// Half of the way to what those need who agree, and to what the misses of the others ask for, as far as two say so. What a key
    /// asks for itself sinks likewise, to what it needed.
    fn sink(&mut self, reporters: &mut [Reporter]) {
        let (needed, _) = believed(reporters.iter(), Reporter::asks);
        self.share = halfway(self.share, needed.max(FLOOR));
        self.has_sunk = true;
        for one in reporters.iter_mut().filter(|one| one.agreed > 0) {
            one.missed = halfway(one.missed, one.needed.max(FLOOR));
            if one.needed > self.share {
                one.missed = one.missed.max(one.needed);
            }
            (one.agreed, one.needed) = (0, Share(0));
        }
        let (_, most) = believed(reporters.iter(), |reporter| reporter.missed);
        self.raised = self.raised.min(self.share.max(most));
    }
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
