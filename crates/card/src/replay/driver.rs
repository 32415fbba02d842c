//! A driver that answers as it did when the recording was made.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::reading::recording::{Entry, Recording};
use crate::alloc::{
    Address, Event, Full, PoolKind, Reserved, SMALL_SEGMENT, SegmentAction, SegmentSource,
    Settings, Stream, expandable_size,
};
use crate::units::Bytes;

/// Stands in for the size of a device that a recording does not name: larger than any there is.
pub(super) const UNKNOWN_TOTAL: Bytes = Bytes::gib(4096);

/// Gives the segments that were recorded for the current request, and refuses all else.
#[derive(Debug, Clone)]
pub(super) struct RecordedDriver<'r> {
    entries: &'r [Entry],
    settings: &'r Settings,
    /// The segment that the current request needs: what a limit is compared with, whatever is asked for.
    segment: u64,
    /// The entries of the current request that are not used up.
    next: usize,
    end: usize,
    /// Where expandable segments can lie.
    spaces: &'r Spaces,
    held: Vec<Reserved>,
    /// What is taken and mapped.
    reserved: u64,
    /// What the limit was at least.
    least_limit: u64,
    /// How often something was refused.
    pub(super) refusals: u64,
    /// How often although the limit was higher.
    pub(super) surprises: u64,
}

impl<'r> RecordedDriver<'r> {
    pub(super) fn new(
        recording: &'r Recording,
        settings: &'r Settings,
        spaces: &'r Spaces,
    ) -> RecordedDriver<'r> {
        RecordedDriver {
            entries: &recording.entries,
            settings,
            segment: 0,
            next: 0,
            end: 0,
            spaces,
            held: spaces.at_start.clone(),
            reserved: recording.initial.reserved().0,
            least_limit: recording.least_limit(settings).0,
            refusals: 0,
            surprises: 0,
        }
    }

    /// Turns to the entries of a request.
    pub(super) fn serve(&mut self, entries: std::ops::Range<usize>) {
        let last = entries
            .end
            .checked_sub(1)
            .map(|last| self.entries[last].event);
        self.segment = match last {
            Some(Event::Alloc { requested, .. } | Event::OutOfMemory { rounded: requested }) => {
                let rounded = self.settings.round_size(requested);
                self.settings.segment_size(rounded).0
            }
            _ => 0,
        };
        self.next = entries.start;
        self.end = entries.end;
    }

    /// The next event of the driver in this request.
    fn upcoming(&mut self) -> Option<Event> {
        while self.next < self.end {
            let event = self.entries[self.next].event;
            match event {
                Event::Segment(..) => return Some(event),
                Event::Alloc { .. }
                | Event::FreeRequested { .. }
                | Event::FreeCompleted { .. }
                | Event::OutOfMemory { .. } => self.next += 1,
            }
        }
        None
    }

    fn refuse(&mut self, asked: Bytes) -> Full {
        self.refusals += 1;
        if self.reserved + self.segment <= self.least_limit {
            self.surprises += 1;
        }
        Full { asked }
    }

    fn expect(&mut self, event: Event) {
        // What differs shows when the events are compared.
        if self.upcoming() == Some(event) {
            self.next += 1;
        }
    }
}

impl SegmentSource for RecordedDriver<'_> {
    fn take(&mut self, asked: Bytes) -> Result<Address, Full> {
        match self.upcoming() {
            Some(Event::Segment(SegmentAction::Alloc, address, size)) if size == asked => {
                self.next += 1;
                self.reserved += size.0;
                Ok(address)
            }
            _ => Err(self.refuse(asked)),
        }
    }

    fn give_back(&mut self, address: Address, size: Bytes) {
        self.reserved -= size.0;
        self.expect(Event::Segment(SegmentAction::Free, address, size));
    }

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        let Some(Event::Segment(SegmentAction::Map, address, _)) = self.upcoming() else {
            return Err(self.refuse(unit));
        };
        let reserved = self.spaces.from(address, unit);
        let overlaps = |other: &Reserved| {
            other.address < address.offset(reserved.size)
                && address < other.address.offset(other.size)
        };
        if reserved.size < unit || self.held.iter().any(overlaps) {
            return Err(self.refuse(unit));
        }
        self.held.push(reserved);
        Ok(reserved)
    }

    fn map(&mut self, address: Address, size: Bytes) -> Result<(), Full> {
        if self.upcoming() == Some(Event::Segment(SegmentAction::Map, address, size)) {
            self.next += 1;
            self.reserved += size.0;
            return Ok(());
        }
        Err(self.refuse(size))
    }

    fn unmap(&mut self, address: Address, size: Bytes) {
        self.reserved -= size.0;
        self.expect(Event::Segment(SegmentAction::Unmap, address, size));
    }

    fn release(&mut self, reserved: Reserved) {
        self.held.retain(|held| *held != reserved);
    }
}

/// The address space of expandable segments. A recording shows what is mapped of it, not its bounds.
#[derive(Debug, Clone, Default)]
pub(super) struct Spaces {
    /// What was reserved when the recording started.
    pub(super) at_start: Vec<Reserved>,
    /// Where spaces are seen to begin, by address.
    bases: Vec<Address>,
    total: Option<Bytes>,
}

/// Each pool of each stream has a space of its own.
type Key = (Stream, PoolKind);

/// A space that is in use.
#[derive(Debug, Clone, Copy)]
struct Space {
    base: Address,
    /// Where the last of what is mapped at the start ends.
    end: Address,
    mapped: u64,
    is_from_start: bool,
}

/// The spaces that are in use while a recording goes by.
struct SpacesInUse {
    spaces: BTreeMap<Key, Space>,
    /// Where those begin that were there at the start, as far as that is seen.
    from_start: BTreeMap<Key, Address>,
    /// Where the others begin.
    bases: Vec<Address>,
}

impl SpacesInUse {
    /// Takes in what was mapped for a request of `key`, and what was unmapped before, anywhere.
    fn change(&mut self, key: Key, changes: &mut Vec<Event>) {
        for change in changes.drain(..) {
            match change {
                Event::Segment(SegmentAction::Map, address, size) => self.map(key, address, size),
                Event::Segment(SegmentAction::Unmap, address, size) => {
                    let spaces = self.spaces.values_mut();
                    let below = spaces.filter(|space| space.mapped > 0 && space.base <= address);
                    if let Some(space) = below.max_by_key(|space| space.base) {
                        space.mapped = space.mapped.saturating_sub(size.0);
                    }
                }
                _ => {}
            }
        }
    }

    fn map(&mut self, key: Key, address: Address, size: Bytes) {
        let known = self.spaces.get_mut(&key).filter(|space| space.mapped > 0);
        let Some(space) = known else {
            // The space before it went with the last of its memory.
            self.bases.push(address);
            let space = Space {
                base: address,
                end: address.offset(size),
                mapped: size.0,
                is_from_start: false,
            };
            self.spaces.insert(key, space);
            return;
        };
        space.mapped += size.0;
        if space.is_from_start && address < space.base {
            space.base = address;
            self.from_start.insert(key, address);
        }
    }
}

impl Spaces {
    pub(super) fn of(recording: &Recording, settings: &Settings) -> Spaces {
        let at_start = spaces_at_start(&recording.initial);
        let ends: BTreeMap<Key, Address> = at_start
            .iter()
            .map(|(key, space)| (*key, space.end))
            .collect();
        let mut in_use = SpacesInUse {
            from_start: at_start
                .iter()
                .map(|(key, space)| (*key, space.base))
                .collect(),
            spaces: at_start,
            bases: Vec::new(),
        };
        let mut changes = Vec::new();
        for entry in &recording.entries {
            match entry.event {
                Event::Segment(..) => changes.push(entry.event),
                // What is mapped serves the request that follows.
                Event::Alloc { requested, .. } | Event::OutOfMemory { rounded: requested } => {
                    let pool = PoolKind::serving(settings.round_size(requested));
                    in_use.change((entry.stream, pool), &mut changes);
                }
                Event::FreeRequested { .. } | Event::FreeCompleted { .. } => {}
            }
        }
        let SpacesInUse {
            from_start,
            mut bases,
            ..
        } = in_use;
        bases.extend(from_start.values());
        bases.sort_unstable();
        let mut spaces = Spaces {
            at_start: Vec::new(),
            bases,
            total: recording.total,
        };
        let found = from_start.iter().map(|(key, base)| {
            let unit = match key.1 {
                PoolKind::Small => SMALL_SEGMENT,
                PoolKind::Large => settings.segment_size(Bytes::mib(2)),
            };
            // What is mapped is inside, whatever a recording says of the device's memory.
            let mapped = Bytes(ends[key].0 - base.0);
            let space = spaces.from(*base, unit);
            Reserved {
                size: space.size.max(mapped),
                ..space
            }
        });
        spaces.at_start = found.collect();
        spaces
    }

    /// A space that begins at `base` and grows in `unit`s; it ends where the next one begins.
    fn from(&self, base: Address, unit: Bytes) -> Reserved {
        let size = expandable_size(self.total.unwrap_or(UNKNOWN_TOTAL), unit).unwrap_or(unit);
        let next = self.bases.iter().find(|other| **other > base);
        let room = next.map_or(u64::MAX, |next| next.0) - base.0;
        let size = size.0.min(room);
        Reserved {
            address: base,
            size: Bytes(size - size % unit.0),
        }
    }
}

fn spaces_at_start(initial: &Layout) -> BTreeMap<Key, Space> {
    let mut spaces: BTreeMap<Key, Space> = BTreeMap::new();
    let expandable = initial
        .segments
        .iter()
        .filter(|segment| segment.is_expandable);
    for segment in expandable {
        // By address, so the first of each is its lowest.
        let space = spaces
            .entry((segment.stream, segment.pool))
            .or_insert(Space {
                base: segment.address,
                end: segment.address,
                mapped: 0,
                is_from_start: true,
            });
        space.end = segment.address.offset(segment.size);
        space.mapped += segment.size.0;
    }
    spaces
}
