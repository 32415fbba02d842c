//! What would have happened: the same requests on simulated memory, under any limit and settings.

use super::driver::UNKNOWN_TOTAL;
use super::history::MemoryHistory;
use super::plan::{Initial, Request, RequestKind};
use super::reading::recording::Recording;
use super::replayer::{Answer, Replayer};
use super::report::StopReport;
use crate::alloc::{CachingAllocator, Observer, Settings, SimulatedMemory, Snapshot, Stats};
use crate::units::Bytes;

/// The requests of a recording, to be put again and again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requests<'r> {
    pub(super) recording: &'r Recording,
    pub(super) initial: &'r [Initial],
    pub(super) all: &'r [Request],
}

/// Under what.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conditions {
    pub(super) settings: Settings,
    pub(super) limit: Option<Bytes>,
    /// What the device has, where it is known.
    pub(super) total: Option<Bytes>,
}

/// What came of it.
#[derive(Debug, Clone)]
pub(super) struct Simulated<O> {
    pub(super) stats: Stats,
    pub(super) observer: O,
    /// Where it ended early: memory was refused that the recorded program was given.
    pub(super) stop: Option<StopReport>,
    /// Requests that the recording refused and that were granted.
    pub(super) granted: u64,
    /// Whether the last of the recording's refusals was one again.
    pub(super) last_refused: bool,
}

impl<O> Simulated<O> {
    /// Whether the program could not have gone on.
    pub(super) fn runs_out(&self, recording: &Recording) -> bool {
        self.stop.is_some() || (self.last_refused && recording.ends_out_of_memory())
    }
}

impl Requests<'_> {
    /// Puts the requests until one is refused that the recording granted.
    pub(super) fn simulate<O: Observer + Clone>(
        &self,
        conditions: &Conditions,
        observer: O,
        mut history: Option<&mut MemoryHistory>,
    ) -> Simulated<O> {
        let mut player = player(conditions, observer);
        let mut stop = None;
        let (mut granted, mut last_refused) = (0, false);
        if let Err(refused) = player.start_with(self.initial) {
            let place = "the blocks that were there before".to_owned();
            stop = Some(StopReport::of(place, refused));
        }
        if let Some(history) = &mut history {
            history.note(0, player.memory());
        }
        for request in self.all {
            if stop.is_some() {
                break;
            }
            match player.put(request) {
                Answer::Same => {
                    last_refused |= matches!(request.kind, RequestKind::Refused { .. });
                }
                Answer::GrantedAndFreed => {
                    granted += 1;
                    last_refused = false;
                }
                Answer::Refused(refused) => {
                    let place = self.recording.place(request.entries.end - 1);
                    stop = Some(StopReport::of(place, refused));
                }
            }
            if let Some(history) = &mut history {
                history.note(request.entries.end, player.memory());
            }
        }
        Simulated {
            stats: *player.allocator.stats(),
            observer: player.allocator.observer().clone(),
            stop,
            granted,
            last_refused,
        }
    }

    /// What the allocator holds right after so many entries.
    pub(super) fn held_after(&self, conditions: &Conditions, entries: usize) -> Snapshot {
        let mut player = player(conditions, ());
        if player.start_with(self.initial).is_ok() {
            let until = self.all.iter();
            for request in until.take_while(|request| request.entries.end <= entries) {
                if let Answer::Refused(_) = player.put(request) {
                    break;
                }
            }
        }
        player.allocator.snapshot()
    }
}

pub(super) fn player<O: Observer>(
    conditions: &Conditions,
    observer: O,
) -> Replayer<SimulatedMemory, O> {
    let memory = SimulatedMemory::new(conditions.total.unwrap_or(UNKNOWN_TOTAL));
    let settings = conditions.settings.clone();
    let limit = conditions.limit;
    Replayer::new(CachingAllocator::observed(
        memory, settings, limit, observer,
    ))
}
