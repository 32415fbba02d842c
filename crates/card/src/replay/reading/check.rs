//! Whether a recording makes sense: a file that contradicts itself is refused before anything is replayed.

use std::collections::{BTreeMap, HashMap};

use super::error::RecordingError;
use super::recording::{RecordedLimit, Recording};
use crate::alloc::{Address, Event, SegmentAction};
use crate::replay::layout::Layout;
use crate::units::Bytes;

/// Sizes from here on are refused by PyTorch before anything is recorded. No machine has as much.
const ABSURD: u64 = 1 << 60;

/// Checks that what is freed was allocated, that nothing overlaps and that no sum leaves 64 bits.
pub(in crate::replay) fn check(recording: &Recording) -> Result<(), RecordingError> {
    for (key, bytes) in [
        ("total", recording.total),
        ("limit", known(recording.limit)),
    ] {
        if let Some(bytes) = bytes
            && !(1..ABSURD).contains(&bytes.0)
        {
            let problem = format!("`{key}` is {}; expected 1 to 2^60 - 1 bytes", bytes.0);
            return Err(RecordingError::at("line 1", problem));
        }
    }
    if recording.entries.is_empty() {
        return Err(RecordingError::at(
            match recording.format {
                crate::replay::Format::Trace => "the end of the file".to_owned(),
                crate::replay::Format::Snapshot { device } => format!("device_traces[{device}]"),
            },
            "there are no events; expected at least one \
             (torch.cuda.memory._record_memory_history starts the recording)",
        ));
    }
    check_spaces(&recording.initial)?;
    let mut seen = CheckState::at_start(recording);
    for (index, entry) in recording.entries.iter().enumerate() {
        seen.take(entry.event, index)
            .map_err(|problem| RecordingError::at(recording.place(index), problem))?;
    }
    Ok(())
}

/// Each pool of each stream has one space for its expandable segments, and no two spaces overlap.
fn check_spaces(initial: &Layout) -> Result<(), RecordingError> {
    let mut left = Vec::new();
    let mut last = None;
    for segment in initial.segments.iter().filter(|it| it.is_expandable) {
        let key = (segment.stream, segment.pool);
        if left.contains(&key) {
            let problem = format!(
                "the expandable segment at {} lies behind one of another stream or pool; expected those of one \
                 stream and pool side by side",
                segment.address
            );
            return Err(RecordingError::at("segments", problem));
        }
        if last.is_some_and(|last| last != key) {
            left.extend(last);
        }
        last = Some(key);
    }
    Ok(())
}

fn known(limit: RecordedLimit) -> Option<Bytes> {
    match limit {
        RecordedLimit::Bytes(bytes) => Some(bytes),
        RecordedLimit::Unknown | RecordedLimit::None => None,
    }
}

/// What is known of an address that was handed out.
#[derive(Debug, Clone, Copy)]
enum AddressState {
    Held {
        requested: Bytes,
    },
    /// Freed, and another stream may still use it.
    Pending {
        requested: Bytes,
    },
    /// Free since this entry.
    Freed {
        by: usize,
    },
}

struct CheckState<'r> {
    recording: &'r Recording,
    holdings: HashMap<Address, AddressState>,
    /// Segments that came whole from the driver.
    segments: BTreeMap<Address, Bytes>,
    reserved: u64,
    /// The sum of all sizes so far: counters of the allocator add them up.
    sum: u64,
}

impl<'r> CheckState<'r> {
    fn at_start(recording: &'r Recording) -> CheckState<'r> {
        let mut seen = CheckState {
            recording,
            holdings: HashMap::new(),
            segments: BTreeMap::new(),
            reserved: 0,
            sum: 0,
        };
        for segment in &recording.initial.segments {
            seen.reserved += segment.size.0;
            if !segment.is_expandable {
                seen.segments.insert(segment.address, segment.size);
            }
            for used in &segment.used {
                let requested = used.requested;
                let holding = if used.is_pending {
                    AddressState::Pending { requested }
                } else {
                    AddressState::Held { requested }
                };
                seen.holdings.insert(used.address, holding);
            }
        }
        seen
    }

    fn take(&mut self, event: Event, index: usize) -> Result<(), String> {
        match event {
            Event::Alloc { address, requested } => {
                self.sized(Some(address), requested)?;
                match self.holdings.get(&address) {
                    Some(AddressState::Held { .. } | AddressState::Pending { .. }) => Err(format!(
                        "{address} is allocated while it is in use; expected a free address"
                    )),
                    Some(AddressState::Freed { .. }) | None => {
                        self.holdings
                            .insert(address, AddressState::Held { requested });
                        Ok(())
                    }
                }
            }
            Event::FreeRequested { address, requested } => match self.holdings.get(&address) {
                Some(AddressState::Held { requested: held }) if *held == requested => {
                    self.holdings
                        .insert(address, AddressState::Pending { requested });
                    Ok(())
                }
                other => Err(self.no_such_block("freed", address, requested, other)),
            },
            Event::FreeCompleted { address, requested } => match self.holdings.get(&address) {
                Some(AddressState::Pending { requested: held }) if *held == requested => {
                    self.holdings
                        .insert(address, AddressState::Freed { by: index });
                    Ok(())
                }
                Some(AddressState::Held { .. }) => Err(format!(
                    "{address} is reported free without `free_requested`; expected that first"
                )),
                other => Err(self.no_such_block("reported free", address, requested, other)),
            },
            Event::Segment(SegmentAction::Alloc, address, size) => {
                self.sized(Some(address), size)?;
                self.reserve(size)?;
                let below = self.segments.range(..address.offset(size)).next_back();
                if let Some((other, length)) = below
                    && other.offset(*length) > address
                {
                    return Err(format!(
                        "the segment at {address} overlaps the one of {} bytes at {other}",
                        length.0
                    ));
                }
                self.segments.insert(address, size);
                Ok(())
            }
            Event::Segment(SegmentAction::Free, address, size) => {
                match self.segments.remove(&address) {
                    Some(length) if length == size => {
                        self.reserved = self.reserved.checked_sub(size.0).ok_or_else(|| {
                        format!("the segment at {address} is given back after a part of it was unmapped")
                    })?;
                        Ok(())
                    }
                    Some(length) => Err(format!(
                        "{} bytes at {address} are given back; expected the {} bytes that were taken",
                        size.0, length.0
                    )),
                    None => Err(format!(
                        "the segment at {address} is given back; expected one that was taken before"
                    )),
                }
            }
            Event::Segment(SegmentAction::Map, address, size) => {
                self.sized(Some(address), size)?;
                self.reserve(size)
            }
            Event::Segment(SegmentAction::Unmap, address, size) => {
                self.sized(Some(address), size)?;
                self.reserved = self.reserved.checked_sub(size.0).ok_or_else(|| {
                    format!(
                        "{} bytes are unmapped; expected at most what is mapped",
                        size.0
                    )
                })?;
                Ok(())
            }
            Event::OutOfMemory { rounded } => self.sized(None, rounded),
        }
    }

    fn sized(&mut self, address: Option<Address>, size: Bytes) -> Result<(), String> {
        if !(1..ABSURD).contains(&size.0) {
            return Err(format!("the size {}; expected 1 to 2^60 - 1 bytes", size.0));
        }
        if let Some(address) = address
            && address.0.checked_add(size.0).is_none()
        {
            return Err(format!(
                "{} bytes at {address}; expected an end below 2^64",
                size.0
            ));
        }
        // Rounding and whole segments add to a request, at most as much again.
        self.sum = self
            .sum
            .checked_add(size.0)
            .filter(|sum| *sum < ABSURD)
            .ok_or("all sizes up to here add up to 2^60 bytes; expected less")?;
        Ok(())
    }

    fn reserve(&mut self, size: Bytes) -> Result<(), String> {
        self.reserved += size.0;
        match self.recording.total {
            Some(total) if self.reserved > total.0 => Err(format!(
                "{} bytes are reserved; expected at most the device's {}",
                self.reserved, total.0
            )),
            _ => Ok(()),
        }
    }

    fn no_such_block(
        &self,
        done: &str,
        address: Address,
        requested: Bytes,
        found: Option<&AddressState>,
    ) -> String {
        match found {
            Some(
                AddressState::Held { requested: held } | AddressState::Pending { requested: held },
            ) if *held != requested => {
                format!(
                    "{} bytes at {address} are {done}; expected the {} bytes that were asked for",
                    requested.0, held.0
                )
            }
            Some(AddressState::Held { .. } | AddressState::Pending { .. }) => {
                format!("{address} is {done} twice; expected one free for each alloc")
            }
            Some(AddressState::Freed { by }) => format!(
                "{address} is {done} twice, before at {}; expected an alloc in between",
                self.recording.place(*by)
            ),
            None => format!("{address} is {done} and was never allocated"),
        }
    }
}
