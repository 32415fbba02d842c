//! The proof: with the driver's recorded answers, the allocator does what PyTorch's did.

use super::driver::{RecordedDriver, Spaces};
use super::history::MemoryHistory;
use super::plan::{Before, Request, RequestKind, initial, requests};
use super::reading::recording::{Entry, Recording};
use super::replayer::Replayer;
use crate::alloc::{CachingAllocator, Event, SegmentAction, Settings, Snapshot, Stats};
use crate::units::Bytes;

/// Where a replay leaves its recording.
#[derive(Debug, Clone)]
pub(super) struct Difference {
    /// The entry, or the number of entries when the replay went on after the last.
    pub(super) entry: usize,
    /// What was recorded.
    pub(super) recorded: Option<Event>,
    /// What the allocator did.
    pub(super) replayed: Option<Event>,
}

/// What came of a replay with the recorded answers.
#[derive(Debug, Clone)]
pub(super) struct Exact {
    /// The first difference, addresses included.
    pub(super) difference: Option<Difference>,
    /// Whether the driver ever refused: then the limit alone does not explain the recording.
    pub(super) driver_refused: bool,
    pub(super) stats: Stats,
    pub(super) events: Vec<Event>,
    pub(super) history: MemoryHistory,
    /// The requests, with what came before each as far as the recording shows it.
    pub(super) requests: Vec<Request>,
}

/// How many live blocks are copied at most, over all attempts to explain a request: a bound for recordings
/// made up to take long. Real ones need a thousandth.
const EFFORT: u64 = 1 << 28;

pub(super) type Exactly<'r> = Replayer<RecordedDriver<'r>, Vec<Event>>;

/// Replays a recording with the driver's recorded answers until its end or the first difference.
pub(super) fn replay_exactly(
    recording: &Recording,
    settings: &Settings,
    limit: Option<Bytes>,
) -> Exact {
    let spaces = Spaces::of(recording, settings);
    let mut requests = requests(recording);
    let mut player = start(recording, settings, limit, &spaces);
    let mut history = MemoryHistory::default();
    history.note(0, player.memory());
    let mut difference = None;
    let mut events = Vec::new();
    let mut effort = EFFORT;
    for request in &mut requests {
        put(&mut player, recording, request, &mut effort);
        history.note(request.entries.end, player.memory());
        let answers = std::mem::take(player.allocator.observer_mut());
        difference = first_difference(&recording.entries, request, &answers);
        events.extend(answers);
        if difference.is_some() {
            break;
        }
    }
    Exact {
        difference,
        driver_refused: player.allocator.source().refusals > 0,
        stats: *player.allocator.stats(),
        events,
        history,
        requests,
    }
}

/// What the allocator holds right after so many entries of a recording that it replays exactly.
pub(super) fn held_exactly(
    recording: &Recording,
    settings: &Settings,
    limit: Option<Bytes>,
    requests: &[Request],
    entries: usize,
) -> Snapshot {
    let spaces = Spaces::of(recording, settings);
    let mut player = start(recording, settings, limit, &spaces);
    let until = requests.iter();
    for request in until.take_while(|request| request.entries.end <= entries) {
        let driver = player.allocator.source_mut();
        driver.serve(request.entries.clone());
        player.put(request);
    }
    player.allocator.snapshot()
}

pub(super) fn start<'r>(
    recording: &'r Recording,
    settings: &'r Settings,
    limit: Option<Bytes>,
    spaces: &'r Spaces,
) -> Exactly<'r> {
    let driver = RecordedDriver::new(recording, settings, spaces);
    let allocator = CachingAllocator::observed(driver, settings.clone(), limit, Vec::new());
    let mut player = Replayer::new(allocator);
    player.start_from(&recording.initial, &spaces.at_start, &initial(recording));
    // The frees of blocks that wait are not part of the recording.
    player.allocator.observer_mut().clear();
    player
}

/// Puts a request, and finds out what came before it where the recording does not say.
fn put(player: &mut Exactly<'_>, recording: &Recording, request: &mut Request, effort: &mut u64) {
    let driver = player.allocator.source_mut();
    driver.serve(request.entries.clone());
    if !is_ambiguous(recording, request) || *effort == 0 {
        player.put(request);
        return;
    }
    let mut surprising = None;
    for before in [Before::Passed, Before::Nothing, Before::EmptyCache] {
        *effort = effort.saturating_sub(player.allocator.stats().all.active.current + 1);
        let mut tried = player.clone();
        tried.put(&Request {
            before,
            ..request.clone()
        });
        let answers = tried.allocator.observer();
        if first_difference(&recording.entries, request, answers).is_some() {
            continue;
        }
        // A retry and a cache emptied by the program look the same. Where there was room for the request,
        // by all that is known, it was no retry.
        if surprises(&tried) == surprises(player) {
            request.before = before;
            *player = tried;
            return;
        }
        surprising.get_or_insert((before, tried));
    }
    match surprising {
        Some((before, tried)) => {
            request.before = before;
            *player = tried;
        }
        None => drop(player.put(request)),
    }
}

fn surprises(player: &Exactly<'_>) -> u64 {
    player.allocator.source().surprises
}

/// Whether frees were completed or memory was given back, by the request itself or before it.
fn is_ambiguous(recording: &Recording, request: &Request) -> bool {
    if !matches!(
        request.kind,
        RequestKind::Malloc { .. } | RequestKind::Refused { .. }
    ) {
        return false;
    }
    let released = |entry: &Entry| {
        matches!(
            entry.event,
            Event::Segment(SegmentAction::Free | SegmentAction::Unmap, ..)
        )
    };
    !request.completed.is_empty()
        || recording.entries[request.entries.clone()]
            .iter()
            .any(released)
}

fn first_difference(entries: &[Entry], request: &Request, answers: &[Event]) -> Option<Difference> {
    let recorded = &entries[request.entries.clone()];
    let same = recorded
        .iter()
        .zip(answers)
        .take_while(|(entry, answer)| entry.event == **answer)
        .count();
    (same < recorded.len() || same < answers.len()).then(|| Difference {
        entry: request.entries.start + same,
        recorded: recorded.get(same).map(|entry| entry.event),
        replayed: answers.get(same).copied(),
    })
}
