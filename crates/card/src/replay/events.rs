//! Every allocation and free of a replay, for a drawing: what was asked for, where it lay, and whose line it was.

use std::collections::HashMap;

use super::driver::Spaces;
use super::exact;
use super::findings::{Lifetimes, begin_rounds};
use super::plan::{Request, RequestKind};
use super::reading::recording::Recording;
use super::replayer::{Answer, Replayer};
use super::simulate::{Conditions, Requests, player};
use crate::alloc::{Event, Observer as _, SegmentSource};
use crate::probe::{EventLog, EventOwner, MemoryEvents};
use crate::units::Bytes;

/// The events of a recording that is replayed exactly.
pub(super) fn events_exactly(
    recording: &Recording,
    conditions: &Conditions,
    requests: &[Request],
) -> MemoryEvents {
    let settings = &conditions.settings;
    let spaces = Spaces::of(recording, settings);
    let mut player = exact::start(recording, settings, conditions.limit, &spaces);
    let mut log = Follower::of(recording, &player);
    for request in requests {
        let driver = player.allocator.source_mut();
        driver.serve(request.entries.clone());
        log.put(&mut player, request);
    }
    log.told.finish()
}

impl Requests<'_> {
    /// The events of the same requests on simulated memory, until one is refused that the recording granted.
    pub(super) fn events(&self, conditions: &Conditions) -> MemoryEvents {
        let mut player = player(conditions, Vec::new());
        let granted = player.start_with(self.initial);
        let mut log = Follower::of(self.recording, &player);
        player.allocator.observer_mut().forget();
        if granted.is_ok() {
            for request in self.all {
                if let Answer::Refused(_) = log.put(&mut player, request) {
                    break;
                }
            }
        }
        log.told.finish()
    }
}

/// Follows a replay from request to request.
struct Follower<'r> {
    recording: &'r Recording,
    told: EventLog,
    /// The first entry of each round.
    rounds: Vec<usize>,
    /// The owner of what a line asks for.
    owners: HashMap<Option<u32>, u32>,
}

impl<'r> Follower<'r> {
    fn of<S: SegmentSource>(
        recording: &'r Recording,
        player: &Replayer<S, Vec<Event>>,
    ) -> Follower<'r> {
        let mut follower = Follower {
            recording,
            told: EventLog::default(),
            rounds: begin_rounds(&Lifetimes::of(recording)),
            owners: HashMap::new(),
        };
        let no_owner = follower.owner(None);
        follower
            .told
            .start_from(&player.allocator.snapshot(), no_owner);
        follower
    }

    fn put<S: SegmentSource>(
        &mut self,
        player: &mut Replayer<S, Vec<Event>>,
        request: &Request,
    ) -> Answer {
        let answer = player.put(request);
        let last = request.entries.end.checked_sub(1);
        let frame = last.and_then(|last| self.recording.entries.get(last)?.frame);
        let size = match request.kind {
            RequestKind::Malloc { .. } if answer == Answer::Same => player.size_of_last(),
            RequestKind::Refused { rounded, .. } => player.allocator.settings().round_size(rounded),
            RequestKind::Malloc { .. } | RequestKind::Free { .. } | RequestKind::EmptyCache => {
                Bytes::ZERO
            }
        };
        let round = self
            .rounds
            .partition_point(|begin| *begin < request.entries.end);
        self.told
            .begin_band(u32::try_from(round).unwrap_or(u32::MAX), None);
        let owner = self.owner(frame);
        self.told
            .hear(player.allocator.observer().events(), owner, size);
        player.allocator.observer_mut().forget();
        answer
    }

    fn owner(&mut self, frame: Option<u32>) -> u32 {
        if let Some(known) = self.owners.get(&frame) {
            return *known;
        }
        let line = frame.and_then(|frame| self.recording.frames.get(frame as usize));
        let owner = self.told.owner(EventOwner {
            module: String::new(),
            operation: line.map_or_else(String::new, |line| line.as_ref().to_owned()),
            category: None,
        });
        self.owners.insert(frame, owner);
        owner
    }
}
