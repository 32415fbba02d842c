//! How headroom follows from lessons.

use super::Lesson;
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

/// What is kept beyond what was needed, at the least: half of the floor.
const MARGIN: Share = Share(2_500);

/// And as a part of what was needed.
const MARGIN_PART: u32 = 8;

/// Sinking by less is as good as being there.
const GRAIN: u32 = 500;

/// What is known about one model on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learnt {
    /// What is to be left free.
    pub share: Share,
    /// What misses have raised it to, as far as it has not sunk since; nothing before the first.
    pub raised: Share,
    /// Whether it has sunk by what was learnt: until then it only adds to what answers leave free anyway.
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

impl Learnt {
    /// Before the first outcome: what the answer left free that it is about.
    pub fn begin(share: Share) -> Learnt {
        Learnt {
            share: share.clamp(FLOOR, CEILING),
            raised: Share(0),
            has_sunk: false,
            agreed: 0,
            needed: Share(0),
            outcomes: 0,
            misses: 0,
        }
    }

    /// Takes in what was learnt of a run; says whether the headroom is another one now.
    pub fn take(&mut self, lesson: Lesson) -> bool {
        let before = (self.share, self.has_sunk);
        self.outcomes += 1;
        let (wanted, is_miss) = match lesson {
            Lesson::Needs(need) => {
                let margin = MARGIN.0.max(need.0 / MARGIN_PART);
                let wanted = Share(need.0 + margin);
                (wanted, wanted > self.share)
            }
            // Twice what was not enough. Others that follow the same answer say the same, and change nothing.
            Lesson::NeedsMoreThan(free) => (Share(free.0.saturating_mul(2)), true),
        };
        if is_miss {
            self.misses += 1;
            self.agreed = 0;
            self.needed = Share(0);
            self.raised = self.raised.max(wanted.clamp(FLOOR, CEILING));
            self.share = self.share.max(self.raised);
        } else {
            self.agreed += 1;
            self.needed = self.needed.max(wanted);
            if self.agreed == AGREEING {
                self.sink();
            }
        }
        before != (self.share, self.has_sunk)
    }

    /// Half of the way to what was needed, or all of it where that is near.
    fn sink(&mut self) {
        let needed = self.needed.max(FLOOR);
        let beyond = self.share.0.saturating_sub(needed.0);
        self.share = Share(needed.0 + if beyond <= GRAIN { 0 } else { beyond / 2 });
        self.raised = self.raised.min(self.share);
        self.has_sunk = true;
        self.agreed = 0;
        self.needed = Share(0);
    }
}

/// What the models of a card teach about one that nobody has told anything about: what the second worst of them was raised to.
/// The worst one alone may be what is wrong, or whoever tells of it.
pub fn of_others(models: impl Iterator<Item = Learnt>) -> Option<Share> {
    let [mut most, mut second] = [Share(0); 2];
    for raised in models.map(|learnt| learnt.raised) {
        if raised > most {
            (most, second) = (raised, most);
        } else {
            second = second.max(raised);
        }
    }
    (second > FLOOR).then(|| second.min(CEILING_OF_OTHERS))
}
