//! What comes around in a recording, and what each round leaves behind.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::lifetimes::{Lifetime, Lifetimes};
use super::{GrowthReport, LineBytes};
use crate::alloc::Event;
use crate::replay::reading::recording::Entry;

/// How often a line has to come around: a first time, which makes the optimizer's state, three that are compared, and two in which
/// nothing frees what these left.
const LEAST_ROUNDS: usize = 6;
/// How much longer the longest round may be than the shortest, in events, the first left out.
const MOST_UNLIKE: usize = 4;
/// Of four rounds, so many have to leave something behind.
const GROWING_OF_FOUR: usize = 3;
/// How often something has to be left behind, where it is not in most rounds.
const LEAST_TIMES: usize = 4;

/// Where each round begins.
#[derive(Debug)]
pub(super) struct Iterations {
    /// The line.
    pub(super) frame: u32,
    /// The first entry of each round.
    pub(super) begin: Vec<usize>,
}

/// The first entry of each round of a recording; none where nothing comes around.
pub(in crate::replay) fn begin_rounds(lives: &Lifetimes<'_>) -> Vec<usize> {
    Iterations::of(lives).map_or_else(Vec::new, |rounds| rounds.begin)
}

impl Iterations {
    /// The longest rounds that a recording consists of: of the lines that come around regularly through most of it, the one that does
    /// so least often.
    ///
    /// Layers come around too, and all of them keep something until the backward pass. Where it is known what runs inside of modules,
    /// only other lines are asked. What autograd's threads allocate has no line of Python, so a round without any, where there are some, is
    /// no step. Without either, rounds have to free most of what they allocate.
    pub(super) fn of(lives: &Lifetimes<'_>) -> Option<Iterations> {
        let entries = &lives.recording.entries;
        let knows_modules = lives.recording.knows_modules;
        let outside = knows_modules.then(|| Self::among(lives, |entry| !entry.in_module));
        outside.flatten().or_else(|| {
            let rounds = Self::among(lives, |_| true)?;
            let trains = entries
                .iter()
                .any(|entry| is_alloc(entry) && entry.frame.is_none());
            (trains || rounds.free_most(lives)).then_some(rounds)
        })
    }

    /// The longest rounds that some entries tell of.
    fn among(lives: &Lifetimes<'_>, is_asked: impl Fn(&Entry) -> bool) -> Option<Iterations> {
        let entries = &lives.recording.entries;
        // Where a program ends, it frees what it kept.
        let end = entries.iter().rposition(is_alloc)?;
        let mut visits: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut without_line = Vec::new();
        let mut before = None;
        for (index, entry) in entries.iter().enumerate() {
            if !is_alloc(entry) {
                continue;
            }
            // Many allocations of a line in a row are one visit.
            match entry.frame {
                Some(line) if entry.frame != before && is_asked(entry) => {
                    visits.entry(line).or_default().push(index);
                }
                Some(_) => {}
                None => without_line.push(index),
            }
            before = entry.frame;
        }
        let is_step = |begin: usize, end: usize| {
            let first = without_line.partition_point(|index| *index < begin);
            without_line.get(first).is_some_and(|index| *index < end)
        };
        let regular = visits.into_iter().filter(|(_, at)| {
            at.len() >= LEAST_ROUNDS
                && 2 * (at[at.len() - 1] - at[0]) >= end
                && is_regular(&at[1..])
                && (without_line.is_empty() || at.windows(2).all(|pair| is_step(pair[0], pair[1])))
        });
        let (frame, begin) = regular.min_by_key(|(_, at)| (at.len(), at[0]))?;
        Some(Iterations { frame, begin })
    }

    /// Whether most of what they allocate is freed before the last begins: layers of one forward pass keep it.
    fn free_most(&self, lives: &Lifetimes<'_>) -> bool {
        let (Some(first), Some(last)) = (self.begin.first(), self.begin.last()) else {
            return false;
        };
        let (mut freed, mut all) = (0_u64, 0_u64);
        for life in &lives.all {
            if life
                .born
                .is_some_and(|born| (*first..*last).contains(&born))
            {
                all = all.saturating_add(life.bytes);
                if !life.is_alive_after(last - 1) {
                    freed = freed.saturating_add(life.bytes);
                }
            }
        }
        freed >= all - freed
    }

    /// What rounds leave behind, if they go on doing so: in most rounds, or in one of so many.
    pub(super) fn growth(&self, lives: &Lifetimes<'_>) -> Option<GrowthReport> {
        self.growth_of_most(lives)
            .or_else(|| self.growth_now_and_then(lives))
    }

    /// What most rounds leave behind.
    fn growth_of_most(&self, lives: &Lifetimes<'_>) -> Option<GrowthReport> {
        let last = *self.begin.last()?;
        // From the second round on, and each with a whole round after it.
        let compared = self.begin.len().checked_sub(3)?;
        let kept = self.kept(lives, compared, last - 1);
        let goes_on = |rounds: &BTreeSet<usize>| {
            4 * rounds.len() >= GROWING_OF_FOUR * compared && rounds.last() == Some(&compared)
        };
        let rounds_of = rounds_by_line(&kept);
        let left = kept
            .iter()
            .filter(|(_, life)| goes_on(&rounds_of[&life.frame]));
        Self::report(lives, left, (compared as u64, 1), last - 1)
    }

    /// What is left behind once in so many rounds, such as by each validation, from the beginning to the end.
    ///
    /// Optimizer state that is made for more and more layers, and buffers that fill and are emptied, are of less regular kinds or
    /// begin late.
    fn growth_now_and_then(&self, lives: &Lifetimes<'_>) -> Option<GrowthReport> {
        let end = lives.recording.entries.iter().rposition(is_alloc)?;
        let last = self.begin.len().checked_sub(1)?;
        let kept = self.kept(lives, last, end);
        let rounds_of = rounds_by_line(&kept);
        let mut bytes_of: HashMap<Option<u32>, u64> = HashMap::new();
        for (_, life) in &kept {
            *bytes_of.entry(life.frame).or_default() += life.bytes;
        }
        // What most is kept of, and what is kept at the same times.
        let (chosen, period, _) = rounds_of
            .iter()
            .filter_map(|(frame, rounds)| Some((rounds, period(rounds, last)?, *frame)))
            .max_by_key(|(_, _, frame)| (bytes_of[frame], *frame))?;
        let alike = rounds_of.iter().filter(|(_, rounds)| *rounds == chosen);
        let alike: HashSet<Option<u32>> = alike.map(|(frame, _)| *frame).collect();
        let left = kept.iter().filter(|(_, life)| alike.contains(&life.frame));
        Self::report(lives, left, (chosen.len() as u64, period as u64), end)
    }

    /// What was allocated in the rounds from the second up to one, each with its round, and is in use after an entry.
    fn kept<'l>(
        &self,
        lives: &'l Lifetimes<'_>,
        upto: usize,
        entry: usize,
    ) -> Vec<(usize, &'l Lifetime)> {
        let round = |life: &Lifetime| {
            let after = self
                .begin
                .partition_point(|begin| Some(*begin) <= life.born);
            after.checked_sub(1)
        };
        let alive = lives.all.iter().filter(|life| life.is_alive_after(entry));
        let kept = alive.filter_map(|life| Some((round(life)?, life)));
        kept.filter(|(round, _)| (1..=upto).contains(round))
            .collect()
    }

    fn report<'l>(
        lives: &Lifetimes<'_>,
        left: impl Iterator<Item = &'l (usize, &'l Lifetime)>,
        (times, every_rounds): (u64, u64),
        entry: usize,
    ) -> Option<GrowthReport> {
        let left: Vec<&Lifetime> = left.map(|(_, life)| *life).collect();
        let total: u64 = left.iter().map(|life| life.bytes).sum();
        if total == 0 {
            return None;
        }
        let of: HashSet<Option<u32>> = left.iter().map(|life| life.frame).collect();
        let first = left.iter().map(|life| life.born).min()?;
        let kept_bytes = lives.all.iter().filter(|life| {
            life.born >= first && of.contains(&life.frame) && life.is_alive_after(entry)
        });
        let kept_bytes = kept_bytes.map(|life| life.bytes).sum();
        let (mut each_line, _) = lives.by_line(left.into_iter());
        for LineBytes { bytes, blocks, .. } in &mut each_line {
            (*bytes, *blocks) = (bytes.div_ceil(times), blocks.div_ceil(times));
        }
        Some(GrowthReport {
            times,
            every_rounds,
            bytes_each_time: total / times,
            kept_bytes,
            lines: each_line,
        })
    }
}

/// The rounds in which each line left something behind.
fn rounds_by_line(kept: &[(usize, &Lifetime)]) -> HashMap<Option<u32>, BTreeSet<usize>> {
    let mut rounds_of: HashMap<Option<u32>, BTreeSet<usize>> = HashMap::new();
    for (round, life) in kept {
        rounds_of.entry(life.frame).or_default().insert(*round);
    }
    rounds_of
}

/// How many rounds there are from one to the next, where they are evenly spread over all from the second to the last, which may
/// not be over.
fn period(rounds: &BTreeSet<usize>, last: usize) -> Option<usize> {
    let before_last = || {
        rounds
            .iter()
            .copied()
            .filter(|round| *round < last)
            .collect()
    };
    even_period(rounds, last).or_else(|| even_period(&before_last(), last))
}

fn even_period(rounds: &BTreeSet<usize>, last: usize) -> Option<usize> {
    let gaps = || {
        rounds
            .iter()
            .zip(rounds.iter().skip(1))
            .map(|(one, next)| next - one)
    };
    let (shortest, longest) = (gaps().min()?, gaps().max()?);
    let (first, latest) = (*rounds.first()?, *rounds.last()?);
    (rounds.len() >= LEAST_TIMES
        && longest <= shortest + 1
        && longest > 1
        && first <= longest
        && latest + longest >= last)
        .then_some(longest)
}

fn is_alloc(entry: &Entry) -> bool {
    matches!(entry.event, Event::Alloc { .. })
}

fn is_regular(begins: &[usize]) -> bool {
    let lengths = begins.windows(2).map(|pair| pair[1] - pair[0]);
    match (lengths.clone().min(), lengths.max()) {
        (Some(shortest), Some(longest)) => longest <= MOST_UNLIKE * shortest,
        _ => false,
    }
}
