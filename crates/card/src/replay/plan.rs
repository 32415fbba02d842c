//! What the program asked for, taken out of a recording: the rest of it is what the allocator answered.

use std::collections::HashMap;
use std::ops::Range;

use super::layout::Used;
use super::reading::recording::{Entry, Recording};
use crate::alloc::{Address, Event, Stream};
use crate::units::Bytes;

/// Something that the program asked of the allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// What for.
    pub(super) kind: RequestKind,
    /// The entries from the last request on that belong to this one, itself included.
    pub(super) entries: Range<usize>,
    /// The blocks whose frees were reported complete before the answer: each is a stream, see
    /// [`RequestKind::Free`].
    pub(super) completed: Vec<Stream>,
    /// How `completed` and the segments that went back came about.
    pub(super) before: Before,
}

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// Memory, which was granted.
    Malloc {
        stream: Stream,
        requested: Bytes,
        slot: Slot,
    },
    /// Memory, which was refused. Only the rounded size is known.
    Refused { stream: Stream, rounded: Bytes },
    /// To take a block back. When another stream still used it, that stream is made up: each such block
    /// waits for one of its own, so that it can be completed when it was in the recording.
    Free {
        slot: Slot,
        waits_for: Option<Stream>,
    },
    /// To give the cache back. Not recorded as such: segments went back and no request explains it.
    EmptyCache,
}

/// Names a block of the recording from its `alloc` on: counts the blocks that were there at the start,
/// by address, and then every `alloc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(pub(super) usize);

/// What happens right before a request. A recording does not say it, so each is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// The streams have passed the completed frees.
    Passed,
    /// Nothing: the request itself waited for all streams.
    Nothing,
    /// The program emptied the cache.
    EmptyCache,
}

/// Streams that are made up have handles from here on, where no address of a program lies.
const MADE_UP: u64 = 1 << 63;

/// A stream for one block to wait for. Where several are done at once, the allocator goes by handle, so
/// it is made of the entry that reports the block free.
fn made_up(completion: usize) -> Stream {
    Stream(MADE_UP + completion as u64)
}

/// A block that was in use when the recording started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Initial {
    pub(super) stream: Stream,
    pub(super) used: Used,
    /// The stream made up for it, if it waits for one.
    pub(super) waits_for: Option<Stream>,
}

/// The blocks that were in use when the recording started, by address.
pub(super) fn initial(recording: &Recording) -> Vec<Initial> {
    // The first time that an address is reported free without having been freed before.
    let mut completions: HashMap<Address, usize> = HashMap::new();
    for (index, entry) in recording.entries.iter().enumerate() {
        if let Event::FreeCompleted { address, .. } = entry.event {
            completions.entry(address).or_insert(index);
        }
    }
    let segments = recording.initial.segments.iter();
    let used = segments.flat_map(|segment| segment.used.iter().map(|used| (segment.stream, *used)));
    used.map(|(stream, used)| {
        let completion = completions.get(&used.address).copied();
        let made_up = made_up(completion.unwrap_or(recording.entries.len()));
        Initial {
            stream,
            used,
            waits_for: used.is_pending.then_some(made_up),
        }
    })
    .collect()
}

/// Takes the requests out of a recording.
pub(super) fn requests(recording: &Recording) -> Vec<Request> {
    let mut reader = Requests::default();
    for initial in initial(recording) {
        reader.hold(initial.used.address);
        if let Some(stream) = initial.waits_for {
            reader.waiting.insert(initial.used.address, stream);
        }
    }
    let entries = &recording.entries;
    let completions = completions(recording);
    for (index, entry) in entries.iter().enumerate() {
        reader.take(index, *entry, completions[index]);
    }
    reader.empty_cache(entries.len());
    reader.found
}

/// For each entry that frees a block, the one that reports it free, or one far past the last.
fn completions(recording: &Recording) -> Vec<usize> {
    let never = recording.entries.len() + 1;
    let mut completions = vec![never; recording.entries.len()];
    let mut requested: HashMap<Address, usize> = HashMap::new();
    for (index, entry) in recording.entries.iter().enumerate() {
        match entry.event {
            Event::FreeRequested { address, .. } => drop(requested.insert(address, index)),
            Event::FreeCompleted { address, .. } => {
                if let Some(free) = requested.remove(&address) {
                    completions[free] = index;
                }
            }
            _ => {}
        }
    }
    completions
}

/// Goes through the entries of a recording.
#[derive(Default)]
struct Requests {
    found: Vec<Request>,
    slots: usize,
    live: HashMap<Address, Slot>,
    /// Freed blocks that are not reported complete, and the stream made up for each.
    waiting: HashMap<Address, Stream>,
    /// The first entry after those of the last request.
    start: usize,
    completed: Vec<Stream>,
    /// Whether anything happened since the last request that no request asked for by itself.
    changed: bool,
}

impl Requests {
    fn hold(&mut self, address: Address) -> Slot {
        let slot = Slot(self.slots);
        self.slots += 1;
        self.live.insert(address, slot);
        slot
    }

    /// Takes the next entry; `completion` is the one that reports the same block free, for a free.
    fn take(&mut self, index: usize, entry: Entry, completion: usize) {
        let stream = entry.stream;
        match entry.event {
            Event::Alloc { address, requested } => {
                let slot = self.hold(address);
                let malloc = RequestKind::Malloc {
                    stream,
                    requested,
                    slot,
                };
                self.push(malloc, index + 1);
            }
            Event::OutOfMemory { rounded } => {
                self.push(RequestKind::Refused { stream, rounded }, index + 1);
            }
            Event::FreeRequested { address, .. } => {
                // A free changes nothing but its own block, so the cache was emptied before it.
                self.empty_cache(index);
                let slot = self.live.remove(&address);
                let slot = slot.expect("a recording was checked to free only what it allocated");
                if completion == index + 1 {
                    let waits_for = None;
                    self.push(RequestKind::Free { slot, waits_for }, index + 2);
                } else {
                    let stream = made_up(completion);
                    self.waiting.insert(address, stream);
                    let waits_for = Some(stream);
                    self.push(RequestKind::Free { slot, waits_for }, index + 1);
                }
            }
            Event::FreeCompleted { address, .. } => {
                // The others came at once and belong to their frees.
                if let Some(stream) = self.waiting.remove(&address) {
                    self.completed.push(stream);
                    self.changed = true;
                }
            }
            Event::Segment(..) => self.changed = true,
        }
    }

    /// Explains what happened since the last request.
    fn empty_cache(&mut self, end: usize) {
        if self.changed {
            self.push(RequestKind::EmptyCache, end);
        }
    }

    fn push(&mut self, kind: RequestKind, end: usize) {
        self.found.push(Request {
            kind,
            entries: self.start..end,
            completed: std::mem::take(&mut self.completed),
            before: match kind {
                RequestKind::EmptyCache => Before::Nothing,
                RequestKind::Malloc { .. }
                | RequestKind::Refused { .. }
                | RequestKind::Free { .. } => Before::Passed,
            },
        });
        self.start = end;
        self.changed = false;
    }
}
