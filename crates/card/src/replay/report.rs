//! The document of `replay --json` and `POST /v1/replays`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::exact::Difference;
use super::findings::Findings;
use super::reading::recording::{Format, RecordedLimit, Recording};
use crate::alloc::{BlockView, Event, OutOfMemory, PoolKind, SegmentView};
use crate::probe::{MemoryEvents, SegmentAction, Verdict};

/// Where the addresses of segments come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AddressSource {
    /// The driver answers as it did in the recording.
    Recorded,
    /// Simulated memory: other limits or settings than the recorded ones.
    Simulated,
}

/// The two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordingFormat {
    /// Lines of text below a header.
    Trace,
    /// PyTorch's memory snapshot.
    Snapshot,
}

/// What was replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecordingSummary {
    /// How it was written down.
    pub format: RecordingFormat,
    /// What was recorded, where that was noted.
    pub case: Option<String>,
    /// How many events it has.
    pub events: usize,
    /// What the device had, when it is known.
    pub total_bytes: Option<u64>,
    /// What could be reserved; null when there was no limit, or a snapshot that does not tell.
    pub limit_bytes: Option<u64>,
    /// The allocator settings in force.
    pub allocator: String,
    /// Whether memory was held already when it started; rebuilt from the final snapshot.
    pub starts_late: bool,
    /// Whether it ends where memory ran out.
    pub ends_out_of_memory: bool,
}

/// Where a replay leaves its recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FirstDifference {
    /// The line, or the index in the snapshot.
    pub place: String,
    /// What was recorded; null at the end.
    pub recorded: Option<String>,
    /// What the allocator did; null for nothing.
    pub replayed: Option<String>,
}

/// Where a replay ended early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopReport {
    /// The line, or the index in the snapshot, of the request that was granted then and refused now.
    pub place: String,
    /// What was asked for.
    pub requested_bytes: u64,
    /// The segment that would have been needed.
    pub segment_bytes: u64,
    /// What the program held.
    pub allocated_bytes: u64,
    /// What was reserved, with nothing more to give back.
    pub reserved_bytes: u64,
}

/// Memory at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReplayMoment {
    /// Events of the recording up to here.
    pub event: usize,
    /// Bytes allocated then.
    pub allocated_bytes: u64,
    /// Bytes reserved then.
    pub reserved_bytes: u64,
}

/// A block of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockReport {
    /// Its size.
    pub size_bytes: u64,
    /// What was asked for; null while it is free.
    pub requested_bytes: Option<u64>,
    /// PyTorch's word: `active_allocated`, `active_pending_free` or `inactive`.
    #[schema(example = "active_allocated")]
    pub state: String,
}

/// A segment; of an expandable one, a mapped range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentReport {
    /// Its start, in hexadecimal.
    #[schema(example = "7f1b0bc00000")]
    pub address: String,
    /// Its size.
    pub size_bytes: u64,
    /// `small` or `large`.
    #[schema(example = "large")]
    pub pool: String,
    /// The stream it serves.
    pub stream: u64,
    /// Whether it is part of an expandable segment.
    pub is_expandable: bool,
    /// Its blocks, from its start to its end.
    pub blocks: Vec<BlockReport>,
}

/// When reserved memory first was at its peak, and where everything was then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PeakReport {
    /// Events of the recording up to then.
    pub event: usize,
    /// Bytes allocated then.
    pub allocated_bytes: u64,
    /// Bytes reserved then.
    pub reserved_bytes: u64,
    /// All segments, by address.
    pub segments: Vec<SegmentReport>,
}

/// The answer under one allocator setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ComparisonRow {
    /// The setting; empty for PyTorch's default.
    #[schema(example = "expandable_segments:True")]
    pub allocator: String,
    /// How it ends under the limit.
    pub verdict: Verdict,
    /// Whether it still fits, with retries or without.
    pub fits: bool,
    /// Most bytes allocated at a time.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved at a time.
    pub peak_reserved_bytes: u64,
    /// Times the cache had to be given back.
    pub retries: u64,
    /// Requests refused.
    pub ooms: u64,
    /// The smallest limit under which it fits without retries.
    pub smallest_limit_bytes: Option<u64>,
}

/// The settings compared, best first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ComparisonReport {
    /// The limit they are compared under; null for none.
    pub limit_bytes: Option<u64>,
    /// One for each setting.
    pub rows: Vec<ComparisonRow>,
}

/// What a replay found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayReport {
    /// What was replayed.
    pub recording: RecordingSummary,
    /// What could be reserved in the replay; null for no limit.
    pub limit_bytes: Option<u64>,
    /// The allocator settings of the replay.
    pub allocator: String,
    /// Where the addresses came from.
    pub addresses: AddressSource,
    /// Whether every event came out as recorded, addresses included; null under other conditions.
    pub equals_recording: Option<bool>,
    /// Where it first did not.
    pub first_difference: Option<FirstDifference>,
    /// How it ended.
    pub verdict: Verdict,
    /// Where it ended early.
    pub stopped: Option<StopReport>,
    /// Most bytes allocated at a time, over the whole recording.
    pub peak_allocated_bytes: u64,
    /// Most bytes reserved at a time, over the whole recording.
    pub peak_reserved_bytes: u64,
    /// Times the allocator gave back its cache and asked again.
    pub retries: u64,
    /// Requests refused.
    pub ooms: u64,
    /// Requests that the recording refused and that were granted here, and freed at once.
    pub granted_ooms: u64,
    /// What the allocator asked of the driver: `["alloc" | "free" | "map" | "unmap", bytes]`.
    #[schema(schema_with = segment_events)]
    pub segment_events: Vec<(SegmentAction, u64)>,
    /// `torch.cuda.memory_stats` at the end.
    pub memory_stats: BTreeMap<String, i64>,
    /// Memory over time, thinned to several hundred points.
    pub timeline: Vec<ReplayMoment>,
    /// When allocated memory was at its peak.
    pub allocated_peak: ReplayMoment,
    /// When reserved memory first was at its peak, with the map of segments and blocks.
    pub peak: PeakReport,
    /// Each allocation and free, with their addresses and lines, as `timeline` and `peak` have them. Missing where they were not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Box<MemoryEvents>>,
    /// The answers under several settings, when they were asked for.
    pub comparison: Option<ComparisonReport>,
    /// Who holds the memory, what grows, and what is wrong.
    pub findings: Findings,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// A pair of a word and a number, which JSON Schema can only say at length.
fn segment_events() -> utoipa::openapi::schema::Schema {
    use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaType, Type};
    let any =
        ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::String, Type::Integer]));
    let pair = ArrayBuilder::new()
        .items(any)
        .min_items(Some(2))
        .max_items(Some(2))
        .description(Some("alloc, free, map or unmap, and the bytes."));
    let example = serde_json::json!([["alloc", 2_097_152], ["alloc", 20_971_520]]);
    ArrayBuilder::new()
        .items(pair)
        .description(Some("What the allocator asked of the driver."))
        .examples([example])
        .into()
}

impl RecordingSummary {
    pub(super) fn of(recording: &Recording) -> RecordingSummary {
        RecordingSummary {
            format: match recording.format {
                Format::Trace => RecordingFormat::Trace,
                Format::Snapshot { .. } => RecordingFormat::Snapshot,
            },
            case: match (&recording.case, recording.batch) {
                (Some(case), Some(batch)) => Some(format!("{case}, batch {batch}")),
                (case, _) => case.clone(),
            },
            events: recording.entries.len(),
            total_bytes: recording.total.map(|total| total.0),
            limit_bytes: match recording.limit {
                RecordedLimit::Bytes(limit) => Some(limit.0),
                RecordedLimit::None | RecordedLimit::Unknown => None,
            },
            allocator: recording.settings.to_string(),
            starts_late: !recording.initial.is_empty(),
            ends_out_of_memory: recording.ends_out_of_memory(),
        }
    }
}

impl FirstDifference {
    pub(super) fn of(recording: &Recording, difference: &Difference) -> FirstDifference {
        let event = |event: Option<Event>| event.map(|event| event.to_string());
        FirstDifference {
            place: if difference.entry < recording.entries.len() {
                recording.place(difference.entry)
            } else {
                "after the last event".to_owned()
            },
            recorded: event(difference.recorded),
            replayed: event(difference.replayed),
        }
    }
}

impl StopReport {
    pub(super) fn of(place: String, refused: OutOfMemory) -> StopReport {
        StopReport {
            place,
            requested_bytes: refused.requested.0,
            segment_bytes: refused.segment.0,
            allocated_bytes: refused.allocated.0,
            reserved_bytes: refused.reserved.0,
        }
    }
}

impl SegmentReport {
    pub(super) fn of(segment: &SegmentView) -> SegmentReport {
        SegmentReport {
            address: segment.address.to_string(),
            size_bytes: segment.size.0,
            pool: match segment.pool {
                PoolKind::Small => "small",
                PoolKind::Large => "large",
            }
            .to_owned(),
            stream: segment.stream.0,
            is_expandable: segment.is_expandable,
            blocks: segment.blocks.iter().map(BlockReport::of).collect(),
        }
    }
}

impl BlockReport {
    fn of(block: &BlockView) -> BlockReport {
        BlockReport {
            size_bytes: block.size.0,
            requested_bytes: block.requested.map(|requested| requested.0),
            state: block.state.name().to_owned(),
        }
    }
}
