//! What all observations together say of each batch.

use std::collections::BTreeMap;

use super::{Observation, Outcome, SearchRequest};
use crate::probe::Verdict;
use crate::units::Bytes;

/// Most batches that a note names.
const MOST_NAMED: usize = 8;

/// What was told of one batch.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    /// Which outcomes were told, in the order of [`Outcome::ALL`].
    told: [bool; Outcome::ALL.len()],
    /// The least and the most that runs reserved which fit without retries.
    bytes: Option<(u64, u64)>,
    /// Finished, with more than the limit.
    exceeds: bool,
}

impl Batch {
    fn was(self, outcome: Outcome) -> bool {
        self.told[outcome as usize]
    }

    /// How it counts, unless it only crashed. Of contradicting observations the worst counts.
    fn verdict(self) -> Option<Verdict> {
        if self.was(Outcome::OutOfMemory) || self.exceeds {
            Some(Verdict::OutOfMemory)
        } else if self.was(Outcome::FitsWithRetries) {
            Some(Verdict::FitsWithRetries)
        } else {
            self.was(Outcome::Fits).then_some(Verdict::Fits)
        }
    }
}

/// What was told of each batch.
#[derive(Debug, Clone)]
pub(super) struct Observations {
    batches: BTreeMap<u64, Batch>,
    limit: Option<u64>,
}

impl Observations {
    pub(super) fn of(terms: &SearchRequest, told: &[Observation]) -> Observations {
        let mut batches: BTreeMap<u64, Batch> = BTreeMap::new();
        for observation in told {
            let batch = batches.entry(observation.batch).or_default();
            let bytes = observation.peak_reserved_bytes;
            batch.told[observation.outcome as usize] = true;
            if observation.outcome == Outcome::Fits {
                let (least, most) = batch.bytes.unwrap_or((u64::MAX, 0));
                let both = bytes.map(|bytes| (least.min(bytes), most.max(bytes)));
                batch.bytes = both.or(batch.bytes);
            }
            let finished = match observation.outcome {
                Outcome::Fits | Outcome::FitsWithRetries => true,
                Outcome::OutOfMemory | Outcome::Crashed => false,
            };
            let exceeds = bytes.zip(terms.memory_limit);
            batch.exceeds |= finished && exceeds.is_some_and(|(bytes, limit)| bytes > limit);
        }
        Observations {
            batches,
            limit: terms.memory_limit,
        }
    }

    /// How each batch counts, but for those that only crashed.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = (u64, Verdict)> + '_ {
        let batches = self.batches.iter();
        batches.filter_map(|(batch, seen)| Some((*batch, seen.verdict()?)))
    }

    pub(super) fn verdict(&self, batch: u64) -> Option<Verdict> {
        self.batches.get(&batch)?.verdict()
    }

    /// Whether anything was told of it, be it that it crashed.
    pub(super) fn was_tried(&self, batch: u64) -> bool {
        self.batches.contains_key(&batch)
    }

    /// The smallest batch above `low` that does not fit without retries.
    pub(super) fn refused_above(&self, low: u64) -> Option<u64> {
        let mut above = self.batches.range(low + 1..);
        above
            .find(|(_, seen)| matches!(seen.verdict(), Some(verdict) if verdict != Verdict::Fits))
            .map(|(batch, _)| *batch)
    }

    /// The smallest batch above `low` that does not finish.
    pub(super) fn out_of_memory_above(&self, low: u64) -> Option<u64> {
        let mut above = self.batches.range(low + 1..);
        above
            .find(|(_, seen)| seen.verdict() == Some(Verdict::OutOfMemory))
            .map(|(batch, _)| *batch)
    }

    /// How many batches fit without retries.
    pub(super) fn fitting(&self) -> usize {
        let fits = |(_, verdict): &(u64, Verdict)| *verdict == Verdict::Fits;
        self.verdicts().filter(fits).count()
    }

    /// The most that the batch reserved, where it was told.
    pub(super) fn bytes(&self, batch: u64) -> Option<u64> {
        Some(self.batches.get(&batch)?.bytes?.1)
    }

    /// Batches that ran to their end without a retry, with the most that they reserved, also above the limit: a search
    /// may be for a smaller card than this one.
    pub(super) fn points(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let clean = self.batches.iter().filter(|(_, seen)| {
            !seen.was(Outcome::OutOfMemory) && !seen.was(Outcome::FitsWithRetries)
        });
        clean.filter_map(|(batch, seen)| Some((*batch, seen.bytes?.1)))
    }

    /// Why a batch does not count as one that fits without retries.
    pub(super) fn why_refused(&self, batch: u64) -> String {
        let seen = self.batches.get(&batch).copied().unwrap_or_default();
        if seen.was(Outcome::OutOfMemory) {
            format!("batch {batch} ran out of memory")
        } else if seen.exceeds {
            let limit = self.limit.map(|limit| Bytes(limit).to_string());
            format!(
                "batch {batch} reserved more than the limit of {}",
                limit.unwrap_or_default()
            )
        } else {
            format!("batch {batch} ran, but the allocator had to free its cache and retry")
        }
    }

    /// What was told that cannot all be so, or that says nothing; a sentence each.
    pub(super) fn notes(&self, ceiling: u64) -> Vec<String> {
        let mut notes = Vec::new();
        let mut say = |those: &dyn Fn(u64, &Batch) -> bool, what: &str| {
            let batches = self.batches.iter();
            let found: Vec<u64> = batches
                .filter(|(batch, seen)| those(**batch, seen))
                .map(|(batch, _)| *batch)
                .collect();
            if !found.is_empty() {
                notes.push(format!("{} {what}", named(&found)));
            }
        };
        say(
            &|_, seen| {
                (seen.was(Outcome::Fits) || seen.was(Outcome::FitsWithRetries))
                    && seen.was(Outcome::OutOfMemory)
            },
            "was told to fit and to run out of memory, and counts as not fitting",
        );
        say(
            &|_, seen| {
                seen.was(Outcome::Fits)
                    && seen.was(Outcome::FitsWithRetries)
                    && !seen.was(Outcome::OutOfMemory)
            },
            "was told to fit with retries and without, and counts as with",
        );
        say(
            &|_, seen| seen.bytes.is_some_and(|(least, most)| least != most),
            "was told with several peaks, of which the largest counts",
        );
        let largest = self
            .verdicts()
            .filter(|(_, verdict)| *verdict == Verdict::Fits);
        let largest = largest.map(|(batch, _)| batch).last().unwrap_or(0);
        say(
            &|batch, seen| {
                batch < largest
                    && seen
                        .verdict()
                        .is_some_and(|verdict| verdict != Verdict::Fits)
            },
            &format!(
                "does not fit though {largest} does: other sizes leave other holes in memory, so a batch holds for itself alone"
            ),
        );
        say(
            &|_, seen| seen.was(Outcome::Crashed) && seen.verdict().is_none(),
            "crashed, which says nothing about its memory; others were tried instead",
        );
        say(
            &|batch, _| batch > ceiling,
            &format!("is above {ceiling}, the largest that is looked for"),
        );
        notes
    }
}

/// Some batches at the beginning of a sentence.
pub(super) fn named(batches: &[u64]) -> String {
    match batches {
        [one] => format!("batch {one}"),
        several => {
            let shown: Vec<String> = several
                .iter()
                .take(MOST_NAMED)
                .map(u64::to_string)
                .collect();
            let rest = several.len() - shown.len();
            let rest = if rest > 0 {
                format!(" and {rest} more")
            } else {
                String::new()
            };
            format!("each of the batches {}{rest}", shown.join(", "))
        }
    }
}
