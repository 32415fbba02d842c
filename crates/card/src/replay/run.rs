//! One replay: under the recorded conditions or others, with a proof where there can be one.

use super::compare::{SettingsComparison, compare};
use super::events::events_exactly;
use super::exact::{Comparison, Exact, held_exactly, replay_exactly};
use super::findings::{Findings, Lifetimes, Memory, find};
use super::history::{MemoryHistory, MemoryPoint};
use super::plan::initial;
use super::reading::recording::{RecordedLimit, Recording};
use super::simulate::{Conditions, Requests, Stop};
use crate::alloc::{BlockState, Event, MemoryLimit, Settings, Snapshot, Stats, limit_of_fraction};
use crate::probe::{MemoryEvents, Verdict};
use crate::units::Bytes;

/// Points of a timeline, about.
const POINTS: usize = 512;

/// What to replay under. What is `None` is as recorded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplayOptions {
    /// What may be reserved.
    pub limit: Option<MemoryLimit>,
    /// How the allocator behaves.
    pub settings: Option<Settings>,
    /// Whether to compare with other settings.
    pub compare: bool,
    /// Whether to tell each allocation and free.
    pub events: bool,
}

/// Where the addresses of segments come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// From the recording: the driver answers as it did then.
    Recorded,
    /// From simulated memory.
    Simulated,
}

/// A recording that was replayed.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Where the addresses came from.
    pub addresses: Addresses,
    /// What could be reserved.
    pub limit: Option<Bytes>,
    /// How the allocator behaved.
    pub settings: Settings,
    /// How it ended.
    pub verdict: Verdict,
    /// How far it equals the recording, where limit and settings are the recorded ones.
    pub comparison: Option<Comparison>,
    /// Where it ended early.
    pub stop: Option<Stop>,
    /// Requests that the recording refused and that were granted, and freed at once.
    pub granted: u64,
    /// The statistics at the end.
    pub stats: Stats,
    /// Everything the allocator did.
    pub events: Vec<Event>,
    /// Memory over time.
    pub timeline: Vec<MemoryPoint>,
    /// When allocated memory was at its peak.
    pub most_allocated: MemoryPoint,
    /// When reserved memory first was at its peak.
    pub most_reserved: MemoryPoint,
    /// What was held then.
    pub held: Snapshot,
    /// The answers under several settings, when they were asked for.
    pub compared: Option<Compared>,
    /// Each allocation and free, when they were asked for.
    pub told: Option<MemoryEvents>,
    /// What the recording says of its program.
    pub findings: Findings,
    /// What a reader of the answer should know.
    pub notes: Vec<String>,
}

/// The answers under several settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// What may be reserved under each.
    pub limit: Option<Bytes>,
    /// One for each setting, best first.
    pub rows: Vec<SettingsComparison>,
}

/// The limit cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a snapshot does not say how much memory its device has, so the limit cannot be a fraction of it; expected bytes, such as 12GiB"
)]
pub struct FractionOfUnknown;

/// Replays a recording.
pub fn replay(recording: &Recording, asked: &ReplayOptions) -> Result<Replay, FractionOfUnknown> {
    let recorded = recorded_conditions(recording);
    let conditions = conditions(recording, asked, &recorded)?;
    let as_recorded = replay_exactly(recording, &recorded.settings, recorded.limit);
    let attempt = Attempt::at(recording, &recorded, &conditions, &as_recorded);
    let mut notes = recording.notes.clone();
    let exact = attempt.as_ref().filter(|attempt| attempt.proves);

    let initial = initial(recording);
    let requests = Requests {
        recording,
        initial: &initial,
        all: &exact
            .map_or(&as_recorded, |attempt| &attempt.exact)
            .requests,
    };
    let mut replay = match exact {
        Some(attempt) => proven(recording, &conditions, &attempt.exact),
        None => simulated(&requests, &conditions),
    };
    if let (Some(attempt), None) = (&attempt, exact)
        && attempt.is_expected
    {
        replay.comparison = Some(attempt.exact.comparison.clone());
        notes.push(
            "the recording could not be repeated event for event; the figures come from simulated memory"
                .to_owned(),
        );
    }
    if asked.events {
        replay.told = Some(match exact {
            Some(attempt) => events_exactly(recording, &conditions, &attempt.exact.requests),
            None => requests.events(&conditions),
        });
    }
    replay.findings = findings(&requests, (&recorded, &conditions), &as_recorded, &replay);
    if asked.compare {
        let mut others = vec![recording.settings.clone(), conditions.settings.clone()];
        others.dedup();
        let known = match (conditions.limit, recording.limit) {
            (None, RecordedLimit::Unknown) => effective_limit(&as_recorded, &mut notes),
            (limit, _) => limit,
        };
        let conditions = Conditions {
            limit: known,
            ..conditions
        };
        replay.compared = Some(Compared {
            limit: known,
            rows: compare(&requests, &conditions, &others),
        });
    }
    replay.notes.extend(notes);
    explain(recording, &mut replay);
    Ok(replay)
}

/// What a recording says of its program, as it ran.
fn findings(
    requests: &Requests<'_>,
    (recorded, asked): (&Conditions, &Conditions),
    as_recorded: &Exact,
    replay: &Replay,
) -> Findings {
    let most_reserved = as_recorded.history.most_reserved();
    let held = held_exactly(
        requests.recording,
        &recorded.settings,
        recorded.limit,
        &as_recorded.requests,
        most_reserved.entries,
    );
    let blocks = held.segments.iter().flat_map(|segment| &segment.blocks);
    let free = blocks.filter(|block| block.state == BlockState::Inactive);
    let (pieces, largest) = free.fold((0, Bytes::ZERO), |(pieces, largest), block| {
        (pieces + 1, block.size.max(largest))
    });
    let is_of_the_run = asked.settings == recorded.settings;
    let memory = Memory {
        limit: if is_of_the_run {
            asked.limit
        } else {
            recorded.limit
        },
        reserved: most_reserved.reserved,
        allocated_then: most_reserved.allocated,
        free_pieces: (pieces, largest),
        retries: as_recorded.stats.num_alloc_retries,
        granted: if is_of_the_run && asked.limit.is_some() {
            replay.granted
        } else {
            0
        },
    };
    let expandable = |limit: Option<Bytes>| {
        let settings: Settings = "expandable_segments:True".parse().ok()?;
        if recorded.settings == settings {
            return None;
        }
        let conditions = Conditions {
            settings,
            limit,
            total: recorded.total,
        };
        let simulated = requests.simulate(&conditions, (), None);
        let refuses = simulated.stop.is_some() || simulated.stats.num_ooms > 0;
        (!refuses).then(|| simulated.stats.peak_reserved())
    };
    find(&Lifetimes::of(requests.recording), &memory, expandable)
}

/// A replay with the recorded answers of the driver.
struct Attempt {
    exact: Exact,
    /// Whether it explains everything that was recorded.
    proves: bool,
    /// Whether it should, because the conditions are the recorded ones.
    is_expected: bool,
}

impl Attempt {
    /// Tries where it could be: under other settings it cannot.
    fn at(
        recording: &Recording,
        recorded: &Conditions,
        conditions: &Conditions,
        as_recorded: &Exact,
    ) -> Option<Attempt> {
        if conditions == recorded {
            return Some(Attempt {
                exact: as_recorded.clone(),
                proves: as_recorded.comparison.difference.is_none(),
                is_expected: true,
            });
        }
        if conditions.settings != recorded.settings {
            return None;
        }
        // Another limit, or one that a snapshot does not tell: a proof all the same if it alone explains
        // every refusal that was recorded.
        let exact = replay_exactly(recording, &conditions.settings, conditions.limit);
        Some(Attempt {
            proves: exact.comparison.difference.is_none() && !exact.driver_refused,
            is_expected: false,
            exact,
        })
    }
}

/// A snapshot does not tell its limit; one that ran into it shows where it was.
fn effective_limit(exact: &Exact, notes: &mut Vec<String>) -> Option<Bytes> {
    let stats = &exact.stats;
    if stats.num_alloc_retries == 0 && stats.num_ooms == 0 {
        notes.push(
            "the snapshot does not tell the limit and never reached it: everything fits; set one to compare \
             under it"
                .to_owned(),
        );
        return None;
    }
    let peak = stats.peak_reserved();
    notes.push(format!(
        "the snapshot does not tell the limit; it ran into it, so the settings are compared under its peak of \
         {peak}"
    ));
    Some(peak)
}

fn explain(recording: &Recording, replay: &mut Replay) {
    if recording.ends_out_of_memory() {
        replay.notes.push(
            "the recording ends where memory ran out: all answers are up to where it stopped, and what the \
             program would have asked for next is not known"
                .to_owned(),
        );
    }
    if replay.granted > 0 {
        replay.notes.push(format!(
            "{} requests that the recording refused were granted, at their rounded sizes, and freed at once",
            replay.granted
        ));
    }
    if replay.addresses == Addresses::Simulated && !recording.initial.is_empty() {
        replay.notes.push(
            "the blocks that were there before the recording started are asked for first, by address; what was \
             cached then is not repeated"
                .to_owned(),
        );
    }
}

fn recorded_conditions(recording: &Recording) -> Conditions {
    let settings = recording.settings.clone();
    let total = recording.total;
    let limit = match recording.limit {
        RecordedLimit::Bytes(limit) => as_fraction(limit, total),
        RecordedLimit::None => None,
        RecordedLimit::Unknown => total.and_then(|total| settings.limit(total)),
    };
    Conditions {
        settings,
        limit,
        total,
    }
}

fn conditions(
    recording: &Recording,
    asked: &ReplayOptions,
    recorded: &Conditions,
) -> Result<Conditions, FractionOfUnknown> {
    let total = recording.total;
    let settings = asked.settings.as_ref().unwrap_or(&recording.settings);
    let limit = match (asked.limit, total) {
        (Some(MemoryLimit::Bytes(limit)), _) => as_fraction(limit, total),
        (Some(MemoryLimit::Fraction(fraction)), Some(total)) => limit_of_fraction(fraction, total),
        (Some(MemoryLimit::Fraction(_)), None) => return Err(FractionOfUnknown),
        (None, Some(total)) if settings.limit(total).is_some() && asked.settings.is_some() => {
            settings.limit(total)
        }
        (None, _) => recorded.limit,
    };
    Ok(Conditions {
        settings: settings.clone(),
        limit,
        total,
    })
}

/// What PyTorch makes of a limit, which it is given as a fraction of the device's memory.
fn as_fraction(limit: Bytes, total: Option<Bytes>) -> Option<Bytes> {
    match total {
        Some(total) => limit_of_fraction(limit.0 as f64 / total.0 as f64, total),
        None => Some(limit),
    }
}

fn proven(recording: &Recording, conditions: &Conditions, exact: &Exact) -> Replay {
    let most_reserved = exact.history.most_reserved();
    let held = held_exactly(
        recording,
        &conditions.settings,
        conditions.limit,
        &exact.requests,
        most_reserved.entries,
    );
    Replay {
        addresses: Addresses::Recorded,
        comparison: Some(exact.comparison.clone()),
        stop: None,
        granted: 0,
        ..replayed(
            conditions,
            &exact.stats,
            exact.events.clone(),
            &exact.history,
            held,
            recording.ends_out_of_memory(),
        )
    }
}

fn simulated(requests: &Requests<'_>, conditions: &Conditions) -> Replay {
    let mut history = MemoryHistory::default();
    let simulated = requests.simulate(conditions, Vec::new(), Some(&mut history));
    let held = requests.held_after(conditions, history.most_reserved().entries);
    Replay {
        stop: simulated.stop,
        granted: simulated.granted,
        ..replayed(
            conditions,
            &simulated.stats,
            simulated.observer.clone(),
            &history,
            held,
            simulated.runs_out(requests.recording),
        )
    }
}

fn replayed(
    conditions: &Conditions,
    stats: &Stats,
    events: Vec<Event>,
    history: &MemoryHistory,
    held: Snapshot,
    runs_out: bool,
) -> Replay {
    Replay {
        addresses: Addresses::Simulated,
        limit: conditions.limit,
        settings: conditions.settings.clone(),
        verdict: verdict(runs_out, stats),
        comparison: None,
        stop: None,
        granted: 0,
        stats: *stats,
        events,
        timeline: history.thinned(POINTS),
        most_allocated: history.most_allocated(),
        most_reserved: history.most_reserved(),
        held,
        compared: None,
        told: None,
        findings: Findings::default(),
        notes: Vec::new(),
    }
}

pub(super) fn verdict(runs_out: bool, stats: &Stats) -> Verdict {
    match (runs_out, stats.num_alloc_retries) {
        (true, _) => Verdict::OutOfMemory,
        (false, 0) => Verdict::Fits,
        (false, _) => Verdict::FitsWithRetries,
    }
}
