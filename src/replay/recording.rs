//! What PyTorch recorded: the allocator's events on one device, and what is known about them.

use super::layout::Layout;
use crate::alloc::{Event, Settings, Stream};
use crate::units::Bytes;

/// One entry of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What happened. An `alloc` has the size asked for, an `oom` the rounded one.
    pub event: Event,
    /// On which stream.
    pub stream: Stream,
    /// The line of a trace, or the index in the `device_traces` of a snapshot.
    pub position: u32,
}

/// How a recording was written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Lines of `action addr size stream` below a header.
    Trace,
    /// A pickle of `torch.cuda.memory._dump_snapshot`, of this device.
    Snapshot {
        /// The index in `device_traces`.
        device: usize,
    },
}

/// What the allocator was allowed to reserve while it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedLimit {
    /// The recording does not say: a snapshot never does.
    Unknown,
    /// As much as the device had.
    None,
    /// So much.
    Bytes(Bytes),
}

/// A recording that makes sense: what is freed was allocated, and nothing overlaps.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// How it was written down.
    pub format: Format,
    /// What was recorded, when somebody noted it.
    pub case: Option<String>,
    /// What the device had, when it is known.
    pub total: Option<Bytes>,
    /// What could be reserved.
    pub limit: RecordedLimit,
    /// The allocator settings in force.
    pub settings: Settings,
    /// What was there when the recording started.
    pub initial: Layout,
    /// What happened, oldest first.
    pub entries: Vec<Entry>,
    /// What a reader of the answer should know.
    pub notes: Vec<String>,
}

impl Format {
    /// Names a place for the person who has the file.
    pub fn place(self, position: u32) -> String {
        match self {
            Format::Trace => format!("line {position}"),
            Format::Snapshot { device } => format!("device_traces[{device}][{position}]"),
        }
    }
}

impl Recording {
    /// Names the place of an entry.
    pub fn place(&self, entry: usize) -> String {
        self.format.place(self.entries[entry].position)
    }

    /// The most that was reserved at a time.
    pub fn most_reserved(&self) -> Bytes {
        let mut reserved = self.initial.reserved().0;
        let mut most = reserved;
        for entry in &self.entries {
            match entry.event {
                Event::SegmentAlloc { size, .. } | Event::SegmentMap { size, .. } => {
                    reserved = reserved.saturating_add(size.0);
                    most = most.max(reserved);
                }
                Event::SegmentFree { size, .. } | Event::SegmentUnmap { size, .. } => {
                    reserved = reserved.saturating_sub(size.0);
                }
                Event::Alloc { .. }
                | Event::FreeRequested { .. }
                | Event::FreeCompleted { .. }
                | Event::OutOfMemory { .. } => {}
            }
        }
        Bytes(most)
    }

    /// Whether the last thing that anybody asked for was refused: the program ended there, and what it
    /// would have asked for next is not known.
    pub fn ends_out_of_memory(&self) -> bool {
        let mut latest_first = self.entries.iter().rev().map(|entry| entry.event);
        let last = latest_first
            .find(|event| matches!(event, Event::Alloc { .. } | Event::OutOfMemory { .. }));
        matches!(last, Some(Event::OutOfMemory { .. }))
    }
}
