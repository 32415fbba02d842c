//! PyTorch's own memory snapshots: what `torch.cuda.memory._dump_snapshot` writes.

use std::borrow::Cow;
use std::collections::HashSet;

use super::error::RecordingError;
use super::pickle::{Pickle, Value, ValueId};
use super::recording::{Entry, Format, RecordedLimit, Recording};
use super::stacks::{CallSite, Frames};
use super::text::{ACTIONS, MOMENT, event};
use crate::alloc::{Address, Event, PoolKind, Stream};
use crate::limits::shorten;
use crate::replay::layout::{Layout, Segment, Used};
use crate::replay::rebuild::rebuild;
use crate::units::Bytes;

pub(super) type Members = [[ValueId; 2]];

/// Reads the device with the longest trace, and rebuilds what was there when its recording started.
pub(in crate::replay) fn read(
    pickle: &Pickle<'_>,
    most: usize,
) -> Result<Recording, RecordingError> {
    let reader = Reader { pickle };
    let root = reader.map(pickle.root(), || "the snapshot".to_owned())?;
    let traces = reader.member(root, "device_traces", String::new)?;
    let traces = reader.list(traces, || "device_traces".to_owned())?;
    let (device, entries, others) = longest(&reader, traces)?;
    if entries.len() > most {
        return Err(RecordingError::TooLong { most });
    }
    let mut frames = Frames::default();
    let device_free = reader.device_free(entries);
    let entries = reader.entries(device, entries, &mut frames)?;
    let segments = reader.member(root, "segments", String::new)?;
    let last = reader.layout(segments, device)?;
    let text = match pickle.member(root, "allocator_settings") {
        Some(settings) => reader.settings(settings)?,
        None => String::new(),
    };
    let settings = text.parse().map_err(|source| RecordingError::Settings {
        place: "allocator_settings.PYTORCH_CUDA_ALLOC_CONF".to_owned(),
        source,
    })?;

    let format = Format::Snapshot { device };
    let mut entries = entries;
    let mut initial = rebuild(&last, &entries, &settings, format)?;
    let mut notes = Vec::new();
    let cut = cut_request(&entries);
    if cut > 0 && !initial.is_empty() {
        entries.drain(..cut);
        initial = rebuild(&last, &entries, &settings, format)?;
        notes.push(format!(
            "the first {cut} events are left out: they are the end of frees whose beginning is lost"
        ));
    }
    if !others.is_empty() {
        notes.push(format!(
            "the snapshot also has events of device {}; device {device} is the one replayed",
            others.join(", ")
        ));
    }
    if !initial.is_empty() {
        notes.push(format!(
            "the recording started late, or its ring buffer overran: {} segments were there before and are \
             rebuilt from the final snapshot; peaks and statistics count from there",
            initial.segments.len()
        ));
    }
    Ok(Recording {
        format,
        case: None,
        batch: None,
        accumulation: None,
        total: None,
        limit: RecordedLimit::Unknown,
        settings,
        initial,
        knows_modules: frames.has_modules(),
        frames: frames.lines,
        entries,
        device_free,
        notes,
    })
}

/// How many events at the start are the second half of a free: a ring buffer drops its oldest events one
/// by one. Any number of them may be left out, as the state after them is rebuilt.
fn cut_request(entries: &[Entry]) -> usize {
    let cut = |entry: &&Entry| matches!(entry.event, Event::FreeCompleted { .. });
    entries.iter().take_while(cut).count()
}

/// PyTorch's own bound: `C10_COMPILE_TIME_MAX_GPUS` in `c10/cuda/CUDAMacros.h`.
const MOST_DEVICES: usize = 120;

/// The device with most events, its trace, and the other devices that have any.
fn longest<'p>(
    reader: &Reader<'p, '_>,
    traces: &[ValueId],
) -> Result<(usize, &'p [ValueId], Vec<String>), RecordingError> {
    if traces.len() > MOST_DEVICES {
        let problem = format!("{} devices; expected at most {MOST_DEVICES}", traces.len());
        return Err(RecordingError::at("device_traces", problem));
    }
    let mut all: Vec<(usize, &[ValueId])> = Vec::new();
    for (device, trace) in traces.iter().enumerate() {
        let trace = reader.list(*trace, || format!("device_traces[{device}]"))?;
        if !trace.is_empty() {
            all.push((device, trace));
        }
    }
    // The first of equals.
    let most = all.iter().rev().max_by_key(|(_, trace)| trace.len());
    let Some(&(chosen, trace)) = most else {
        return Err(RecordingError::at(
            "device_traces",
            "there are no events of any device; expected a snapshot taken after \
             torch.cuda.memory._record_memory_history(enabled=\"all\")",
        ));
    };
    let others = all.iter().filter(|(device, _)| *device != chosen);
    let others = others.map(|(device, _)| device.to_string()).collect();
    Ok((chosen, trace, others))
}

/// Takes a pickle apart, and names the key when it is not as expected.
pub(super) struct Reader<'p, 'a> {
    pub(super) pickle: &'p Pickle<'a>,
}

impl<'p> Reader<'p, '_> {
    fn entries(
        &self,
        device: usize,
        trace: &[ValueId],
        frames: &mut Frames,
    ) -> Result<Vec<Entry>, RecordingError> {
        let mut entries = Vec::with_capacity(trace.len());
        for (index, id) in trace.iter().enumerate() {
            let place = || format!("device_traces[{device}][{index}]");
            let members = self.map(*id, place)?;
            let action = self.text(members, "action", place)?;
            let size = Bytes(self.number(members, "size", place)?);
            // In the place of an address, an `oom` has what the device had free.
            let address = if action == "oom" {
                Address(0)
            } else {
                Address(self.number(members, "addr", place)?)
            };
            let stream = Stream(self.number(members, "stream", place)?);
            if action == MOMENT {
                continue;
            }
            let event = event(&action, address, size).ok_or_else(|| {
                let problem = format!("unknown action `{}`; expected {ACTIONS}", shorten(&action));
                RecordingError::at(format!("{}.action", place()), problem)
            })?;
            let position = u32::try_from(index).map_err(|_| {
                RecordingError::at(place(), "too many events; expected fewer than 2^32")
            })?;
            let CallSite { line, in_module } = self.place(members, frames);
            entries.push(Entry {
                event,
                stream,
                position,
                frame: line,
                in_module,
            });
        }
        Ok(entries)
    }

    fn layout(&self, segments: ValueId, device: usize) -> Result<Layout, RecordingError> {
        let mut layout = Layout::default();
        let list = self.list(segments, || "segments".to_owned())?;
        // A pickle of few bytes can name one segment millions of times.
        let mut begun = HashSet::new();
        for (index, id) in list.iter().enumerate() {
            let place = || format!("segments[{index}]");
            let members = self.map(*id, place)?;
            if self.number(members, "device", place)? != device as u64 {
                continue;
            }
            self.in_default_pool(members, &place)?;
            let mut segment = Segment {
                address: Address(self.number(members, "address", place)?),
                size: Bytes(self.number(members, "total_size", place)?),
                stream: Stream(self.number(members, "stream", place)?),
                pool: match &*self.text(members, "segment_type", place)? {
                    "small" => PoolKind::Small,
                    "large" => PoolKind::Large,
                    other => {
                        return Err(RecordingError::at(
                            format!("{}.segment_type", place()),
                            format!("`{}`; expected `small` or `large`", shorten(other)),
                        ));
                    }
                },
                is_expandable: match self.pickle.member(members, "is_expandable") {
                    Some(id) => self.flag(id, || format!("{}.is_expandable", place()))?,
                    None => false,
                },
                used: Vec::new(),
            };
            if !begun.insert(segment.address) {
                return Err(overlapping([segment.address; 2]));
            }
            let blocks = self.member(members, "blocks", place)?;
            let blocks = self.list(blocks, || format!("{}.blocks", place()))?;
            segment.used = self.used(&segment, blocks, &place)?;
            layout.segments.push(segment);
        }
        crate::order::by_key(&mut layout.segments, |segment| segment.address);
        for pair in layout.segments.windows(2) {
            if pair[0].address.offset(pair[0].size) > pair[1].address {
                return Err(overlapping([pair[0].address, pair[1].address]));
            }
        }
        Ok(layout)
    }

    /// Graphs and `torch.cuda.MemPool` have pools of their own.
    fn in_default_pool(
        &self,
        members: &Members,
        place: &impl Fn() -> String,
    ) -> Result<(), RecordingError> {
        let Some(id) = self.pickle.member(members, "segment_pool_id") else {
            return Ok(());
        };
        let here = || format!("{}.segment_pool_id", place());
        if let [one, other] = self.list(id, here)?
            && self.unsigned(*one, here)? == 0
            && self.unsigned(*other, here)? == 0
        {
            return Ok(());
        }
        let problem = "a private pool (CUDA graphs or torch.cuda.MemPool), which is not supported; expected (0, 0)";
        Err(RecordingError::at(here(), problem))
    }

    fn used(
        &self,
        segment: &Segment,
        blocks: &[ValueId],
        segment_place: &impl Fn() -> String,
    ) -> Result<Vec<Used>, RecordingError> {
        let mut used = Vec::new();
        let mut end = segment.address.0;
        let wrong_place = |index: usize| format!("{}.blocks[{index}]", segment_place());
        let segment_end = end.checked_add(segment.size.0).filter(|end| *end < 1 << 63);
        let Some(segment_end) = segment_end else {
            let problem = format!(
                "{} bytes at {}; expected an end below 2^63",
                segment.size.0, segment.address
            );
            return Err(RecordingError::at(segment_place(), problem));
        };
        for (index, id) in blocks.iter().enumerate() {
            let place = || wrong_place(index);
            let members = self.map(*id, place)?;
            let address = self.number(members, "address", place)?;
            let size = self.number(members, "size", place)?;
            let requested = Bytes(self.number(members, "requested_size", place)?);
            let after = address
                .checked_add(size)
                .filter(|after| *after <= segment_end);
            if address != end || size == 0 || after.is_none() {
                let problem = format!(
                    "{size} bytes at {address:x}; expected a block at {end:x} inside of its segment"
                );
                return Err(RecordingError::at(place(), problem));
            }
            end = address + size;
            let is_pending = match &*self.text(members, "state", place)? {
                "inactive" => continue,
                "active_allocated" => false,
                "active_pending_free" | "active_awaiting_free" => true,
                other => {
                    let problem = format!(
                        "`{}`; expected active_allocated, active_pending_free or inactive",
                        shorten(other)
                    );
                    return Err(RecordingError::at(format!("{}.state", place()), problem));
                }
            };
            if !(1..=size).contains(&requested.0) {
                let problem = format!("{}; expected 1 to the block's {size} bytes", requested.0);
                return Err(RecordingError::at(
                    format!("{}.requested_size", place()),
                    problem,
                ));
            }
            used.push(Used {
                address: Address(address),
                size: Bytes(size),
                requested,
                is_pending,
            });
        }
        if end != segment_end {
            let problem =
                format!("the blocks end at {end:x}; expected {segment_end:x}, as their segment");
            return Err(RecordingError::at(segment_place(), problem));
        }
        Ok(used)
    }

    /// The text of the settings in force. What was changed at run time may be missing in PyTorch's copy of
    /// the text, and is added from the values beside it.
    fn settings(&self, id: ValueId) -> Result<String, RecordingError> {
        let place = || "allocator_settings".to_owned();
        let members = self.map(id, place)?;
        let mut text = match self.pickle.member(members, "PYTORCH_CUDA_ALLOC_CONF") {
            Some(_) => self.text(members, "PYTORCH_CUDA_ALLOC_CONF", place)?,
            None => Cow::Borrowed(""),
        }
        .into_owned();
        let add = |text: &mut String, key: &str, value: String| {
            if !text.contains(key) {
                if !text.is_empty() {
                    text.push(',');
                }
                text.push_str(key);
                text.push(':');
                text.push_str(&value);
            }
        };
        if let Some(Value::Bool(true)) = self.value(members, "expandable_segments") {
            add(&mut text, "expandable_segments", "True".to_owned());
        }
        if let Some(Value::Int(bytes @ 1..)) = self.value(members, "max_split_size") {
            add(&mut text, "max_split_size_mb", (bytes >> 20).to_string());
        }
        if let Some(Value::Float(threshold)) = self.value(members, "garbage_collection_threshold")
            && threshold > 0.0
        {
            add(
                &mut text,
                "garbage_collection_threshold",
                threshold.to_string(),
            );
        }
        if let Some(Value::Map(divisions)) = self.value(members, "roundup_power2_divisions") {
            let mut parts = Vec::new();
            let mut any = false;
            for [bound, divisions] in divisions {
                if let (Value::Text(bound), Value::Int(divisions)) =
                    (self.pickle.value(*bound), self.pickle.value(*divisions))
                {
                    any |= divisions > 1;
                    parts.push(format!("{bound}:{divisions}"));
                }
            }
            if any {
                let list = format!("[{}]", parts.join(","));
                add(&mut text, "roundup_power2_divisions", list);
            }
        }
        Ok(text)
    }

    pub(super) fn value(&self, members: &Members, key: &str) -> Option<Value<'p>> {
        let id = self.pickle.member(members, key)?;
        Some(self.pickle.value(id))
    }

    fn map(&self, id: ValueId, place: impl Fn() -> String) -> Result<&'p Members, RecordingError> {
        match self.pickle.value(id) {
            Value::Map(members) => Ok(members),
            other => Err(expected("a dict", &other, &place())),
        }
    }

    fn list(
        &self,
        id: ValueId,
        place: impl Fn() -> String,
    ) -> Result<&'p [ValueId], RecordingError> {
        match self.pickle.value(id) {
            Value::Sequence(parts) => Ok(parts),
            other => Err(expected("a list", &other, &place())),
        }
    }

    fn flag(&self, id: ValueId, place: impl Fn() -> String) -> Result<bool, RecordingError> {
        match self.pickle.value(id) {
            Value::Bool(flag) => Ok(flag),
            other => Err(expected("a bool", &other, &place())),
        }
    }

    pub(super) fn unsigned(
        &self,
        id: ValueId,
        place: impl Fn() -> String,
    ) -> Result<u64, RecordingError> {
        match self.pickle.value(id) {
            Value::Int(number) => u64::try_from(number).map_err(|_| {
                RecordingError::at(
                    place(),
                    format!("{number}; expected a number of at least 0"),
                )
            }),
            Value::Unsigned(number) => Ok(number),
            other @ (Value::None
            | Value::Bool(_)
            | Value::Long
            | Value::Float(_)
            | Value::Text(_)
            | Value::Bytes(_)
            | Value::Sequence(_)
            | Value::Map(_)) => Err(expected("an int of 64 bits", &other, &place())),
        }
    }

    fn number(
        &self,
        members: &Members,
        key: &str,
        place: impl Fn() -> String,
    ) -> Result<u64, RecordingError> {
        let id = self.member(members, key, &place)?;
        self.unsigned(id, || format!("{}.{key}", place()))
    }

    fn text(
        &self,
        members: &Members,
        key: &str,
        place: impl Fn() -> String,
    ) -> Result<Cow<'p, str>, RecordingError> {
        let id = self.member(members, key, &place)?;
        match self.pickle.value(id) {
            Value::Text(text) => Ok(text),
            other => Err(expected("a str", &other, &format!("{}.{key}", place()))),
        }
    }

    fn member(
        &self,
        members: &Members,
        key: &str,
        place: impl Fn() -> String,
    ) -> Result<ValueId, RecordingError> {
        self.pickle.member(members, key).ok_or_else(|| {
            let place = place();
            let place = if place.is_empty() {
                "the snapshot".to_owned()
            } else {
                place
            };
            RecordingError::at(place, format!("there is no `{key}`; expected it"))
        })
    }
}

fn overlapping([one, other]: [Address; 2]) -> RecordingError {
    RecordingError::at(
        "segments",
        format!("the segments at {one} and {other} overlap"),
    )
}

fn expected(what: &str, found: &Value<'_>, place: &str) -> RecordingError {
    RecordingError::at(place, format!("{}; expected {what}", found.kind()))
}
