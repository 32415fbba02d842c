//! Micro-steps that repeat: when further ones cannot do anything new.
//!
//! See Note [Repeated requests] in `alloc`.

use std::collections::VecDeque;

use super::timeline::Reading;
use crate::alloc::Checkpoint;

/// Repeats that are looked back upon. Most states come back at once; a longer cycle was never seen.
const LOOKED_BACK_UPON: usize = 32;
/// Readings of a timeline that are kept for the repeats looked back upon: 32 MiB.
const MOST_READINGS: usize = 2 << 20;

/// The state after a repeat.
#[derive(Debug)]
struct State {
    mark: Checkpoint,
    /// Which plans convolutions settled on.
    plans: u64,
    /// What a timeline showed during the repeat that ended here.
    readings: Vec<Reading>,
}

/// The states after the latest repeats of a section.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    states: VecDeque<State>,
    readings: usize,
}

/// Repeats after which everything is as it was before them.
#[derive(Debug)]
pub(super) struct Cycle {
    /// The state before.
    pub(super) before: Checkpoint,
    /// How many repeats it takes.
    pub(super) repeats: u32,
    /// What a timeline showed.
    pub(super) readings: Vec<Reading>,
}

impl Repeats {
    /// Takes in the state after a repeat; gives the cycle that ends with it, if there is one.
    pub(super) fn after(
        &mut self,
        mark: &Checkpoint,
        plans: u64,
        readings: Vec<Reading>,
    ) -> Option<Cycle> {
        self.readings += readings.len();
        self.states.push_back(State {
            mark: *mark,
            plans,
            readings,
        });
        while self.states.len() > LOOKED_BACK_UPON
            || (self.readings > MOST_READINGS && self.states.len() > 2)
        {
            let oldest = self.states.pop_front();
            self.readings -= oldest.map_or(0, |state| state.readings.len());
        }
        let last = self.states.len() - 1;
        let is_same = |before: &State| mark.repeats(&before.mark) && plans == before.plans;
        let found = self.states.range(..last).rposition(is_same)?;
        let since = self.states.range(found + 1..);
        Some(Cycle {
            before: self.states[found].mark,
            repeats: u32::try_from(last - found).expect("few are looked back upon"),
            readings: since.flat_map(|state| state.readings.clone()).collect(),
        })
    }
}
