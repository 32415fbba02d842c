//! What PyTorch recorded: the allocator's events on one device, and what is known about them.

use std::sync::Arc;

use crate::alloc::{Event, SegmentAction, Settings, Stream};
use crate::replay::layout::Layout;
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
    /// The line of Python that it is of, where stacks were recorded: an index into [`Recording::frames`].
    pub frame: Option<u32>,
    /// Whether that line runs inside of a `torch.nn.Module`, where [`Recording::knows_modules`].
    pub in_module: bool,
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
    /// What was recorded, where that was noted.
    pub case: Option<String>,
    /// Samples in each step, when it was noted.
    pub batch: Option<u64>,
    /// Micro-steps in each step, when it was noted.
    pub accumulation: Option<u32>,
    /// What the device had, when it is known.
    pub total: Option<Bytes>,
    /// What could be reserved.
    pub limit: RecordedLimit,
    /// The allocator settings in force.
    pub settings: Settings,
    /// What was there when the recording started.
    pub initial: Layout,
    /// Lines of Python, such as `train.py:12 forward`.
    pub frames: Vec<Arc<str>>,
    /// Whether stacks have PyTorch's own frames too, so that it is known what runs inside of modules.
    pub knows_modules: bool,
    /// What happened, oldest first.
    pub entries: Vec<Entry>,
    /// What the whole device had free when memory was last refused, where that was noted: `device_free` of an `oom`.
    pub device_free: Option<Bytes>,
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

    /// What the limit was at least: so much was reserved, with the segment that was asked for, where the
    /// allocator was allowed to grow.
    pub(in crate::replay) fn least_limit(&self, settings: &Settings) -> Bytes {
        let expandable = self
            .initial
            .segments
            .iter()
            .any(|segment| segment.is_expandable);
        let mut reserved = self.initial.reserved().0;
        // In expandable segments, more can be mapped than the limit is compared with.
        let mut least = if expandable { 0 } else { reserved };
        let mut before_growth = None;
        for entry in &self.entries {
            match entry.event {
                Event::Segment(SegmentAction::Alloc | SegmentAction::Map, _, size) => {
                    before_growth.get_or_insert(reserved);
                    reserved = reserved.saturating_add(size.0);
                }
                Event::Segment(SegmentAction::Free | SegmentAction::Unmap, _, size) => {
                    before_growth = None;
                    reserved = reserved.saturating_sub(size.0);
                }
                Event::Alloc { requested, .. } => {
                    if let Some(before) = before_growth.take() {
                        let rounded = settings.round_size(requested);
                        let segment = settings.segment_size(rounded);
                        least = least.max(before.saturating_add(segment.0));
                    }
                }
                Event::OutOfMemory { .. } => before_growth = None,
                Event::FreeRequested { .. } | Event::FreeCompleted { .. } => {}
            }
        }
        Bytes(least)
    }

    /// Whether the last request was refused: the program ended there, and what it
    /// would have asked for next is not known.
    pub fn ends_out_of_memory(&self) -> bool {
        let mut latest_first = self.entries.iter().rev().map(|entry| entry.event);
        let last = latest_first
            .find(|event| matches!(event, Event::Alloc { .. } | Event::OutOfMemory { .. }));
        matches!(last, Some(Event::OutOfMemory { .. }))
    }
}
