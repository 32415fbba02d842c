//! One replay: under the recorded conditions or others, with a proof where there can be one.

use super::compare::compare;
use super::events::events_exactly;
use super::exact::{Exact, held_exactly, replay_exactly};
use super::findings::{Findings, Lifetimes, Memory, find};
use super::history::MemoryHistory;
use super::plan::initial;
use super::reading::recording::{RecordedLimit, Recording};
use super::report::{
    AddressSource, ComparisonReport, FirstDifference, PeakReport, RecordingSummary, ReplayReport,
    SegmentReport,
};
use super::simulate::{Conditions, Requests};
use crate::alloc::{BlockState, Event, MemoryLimit, Settings, Snapshot, Stats, limit_of_fraction};
use crate::probe::Verdict;
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

/// A recording that was replayed.
#[derive(Debug, Clone)]
pub struct Replay {
    /// What came of it.
    pub report: ReplayReport,
    /// Everything the allocator did.
    pub events: Vec<Event>,
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
    let Replay { mut report, events } = match exact {
        Some(attempt) => proven(recording, &conditions, &attempt.exact),
        None => simulated(&requests, &conditions),
    };
    if let (Some(attempt), None) = (&attempt, exact)
        && attempt.is_expected
    {
        let difference = attempt.exact.difference.as_ref();
        report.equals_recording = Some(false);
        report.first_difference = difference.map(|it| FirstDifference::of(recording, it));
        notes.push(
            "the recording could not be repeated event for event; the figures come from simulated memory"
                .to_owned(),
        );
    }
    if asked.events {
        report.events = Some(Box::new(match exact {
            Some(attempt) => events_exactly(recording, &conditions, &attempt.exact.requests),
            None => requests.events(&conditions),
        }));
    }
    let granted = report.granted_ooms;
    report.findings = findings(&requests, (&recorded, &conditions), &as_recorded, granted);
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
        report.comparison = Some(ComparisonReport {
            limit_bytes: known.map(|limit| limit.0),
            rows: compare(&requests, &conditions, &others),
        });
    }
    report.notes.extend(notes);
    explain(recording, &mut report);
    Ok(Replay { report, events })
}

/// What a recording says of its program, as it ran.
fn findings(
    requests: &Requests<'_>,
    (recorded, asked): (&Conditions, &Conditions),
    as_recorded: &Exact,
    granted: u64,
) -> Findings {
    let most_reserved = as_recorded.history.most_reserved();
    let held = held_exactly(
        requests.recording,
        &recorded.settings,
        recorded.limit,
        &as_recorded.requests,
        most_reserved.event,
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
        reserved: Bytes(most_reserved.reserved_bytes),
        allocated_then: Bytes(most_reserved.allocated_bytes),
        free_pieces: (pieces, largest),
        retries: as_recorded.stats.num_alloc_retries,
        granted: if is_of_the_run && asked.limit.is_some() {
            granted
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
                proves: as_recorded.difference.is_none(),
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
            proves: exact.difference.is_none() && !exact.driver_refused,
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

fn explain(recording: &Recording, report: &mut ReplayReport) {
    if recording.ends_out_of_memory() {
        report.notes.push(
            "the recording ends where memory ran out: all answers are up to where it stopped, and what the \
             program would have asked for next is not known"
                .to_owned(),
        );
    }
    if report.granted_ooms > 0 {
        report.notes.push(format!(
            "{} requests that the recording refused were granted, at their rounded sizes, and freed at once",
            report.granted_ooms
        ));
    }
    if report.addresses == AddressSource::Simulated && !recording.initial.is_empty() {
        report.notes.push(
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
    let held = held_exactly(
        recording,
        &conditions.settings,
        conditions.limit,
        &exact.requests,
        exact.history.most_reserved().event,
    );
    let runs_out = recording.ends_out_of_memory();
    let memory = (&exact.stats, &exact.history, &held);
    let report = ReplayReport {
        addresses: AddressSource::Recorded,
        equals_recording: Some(true),
        ..report(recording, conditions, memory, &exact.events, runs_out)
    };
    let events = exact.events.clone();
    Replay { report, events }
}

fn simulated(requests: &Requests<'_>, conditions: &Conditions) -> Replay {
    let mut history = MemoryHistory::default();
    let simulated = requests.simulate(conditions, Vec::new(), Some(&mut history));
    let held = requests.held_after(conditions, history.most_reserved().event);
    let recording = requests.recording;
    let runs_out = simulated.runs_out(recording);
    let (memory, events) = ((&simulated.stats, &history, &held), simulated.observer);
    let report = ReplayReport {
        stopped: simulated.stop,
        granted_ooms: simulated.granted,
        ..report(recording, conditions, memory, &events, runs_out)
    };
    Replay { report, events }
}

/// What is told of any replay, as of one on simulated memory that was not stopped.
fn report(
    recording: &Recording,
    conditions: &Conditions,
    (stats, history, held): (&Stats, &MemoryHistory, &Snapshot),
    events: &[Event],
    runs_out: bool,
) -> ReplayReport {
    let most_reserved = history.most_reserved();
    ReplayReport {
        recording: RecordingSummary::of(recording),
        limit_bytes: conditions.limit.map(|limit| limit.0),
        allocator: conditions.settings.to_string(),
        addresses: AddressSource::Simulated,
        equals_recording: None,
        first_difference: None,
        verdict: verdict(runs_out, stats),
        stopped: None,
        peak_allocated_bytes: stats.peak_allocated().0,
        peak_reserved_bytes: stats.peak_reserved().0,
        retries: stats.num_alloc_retries,
        ooms: stats.num_ooms,
        granted_ooms: 0,
        segment_events: events
            .iter()
            .filter_map(|event| match *event {
                Event::Segment(action, _, size) => Some((action, size.0)),
                _ => None,
            })
            .collect(),
        memory_stats: stats.memory_stats(),
        timeline: history.thinned(POINTS),
        allocated_peak: history.most_allocated(),
        peak: PeakReport {
            event: most_reserved.event,
            allocated_bytes: most_reserved.allocated_bytes,
            reserved_bytes: most_reserved.reserved_bytes,
            segments: held.segments.iter().map(SegmentReport::of).collect(),
        },
        events: None,
        comparison: None,
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
