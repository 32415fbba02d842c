//! What was there before a recording started: the final snapshot, with every recorded event undone.
//!
//! A recording may start in the middle of a run, and PyTorch's ring buffer drops the oldest events when
//! it is full. Both leave a suffix of the events and the state after them, and every event can be undone:
//! an `alloc` gives its block back, a `free_completed` takes it again.
//!
//! Only the size of a block that was freed is not recorded, just what was asked for. In the small pool and in
//! expandable segments that is the rounded size. In the large pool a remainder of up to 1 MiB stays with the
//! block, so nothing else is ever found there while the block lives: the first neighbour that is seen within
//! 1 MiB begins where the block ends.

use std::collections::BTreeMap;

use super::layout::{Layout, Segment, Used};
use super::reading::error::RecordingError;
use super::reading::recording::{Entry, Format};
use crate::alloc::{Address, Event, PoolKind, SMALL_SEGMENT, SegmentAction, Settings, Stream};
use crate::units::Bytes;

/// The large pool keeps no remainder up to this size.
const UNSPLIT: Bytes = Bytes::MIB;

/// Undoes `entries`, newest first, from the state `last` that they led to.
pub(super) fn rebuild(
    last: &Layout,
    entries: &[Entry],
    settings: &Settings,
    format: Format,
) -> Result<Layout, RecordingError> {
    let mut state = State::of(last, entries, settings);
    for entry in entries.iter().rev() {
        state
            .undo(*entry)
            .map_err(|problem| RecordingError::Rebuild {
                place: format.place(entry.position),
                problem,
            })?;
    }
    Ok(state.layout())
}

/// A segment, or a run of mapped memory in an expandable one.
#[derive(Debug, Clone, Copy)]
struct Run {
    size: Bytes,
    stream: Stream,
    pool: PoolKind,
    is_expandable: bool,
}

/// A block in use, and where it ends as far as that is known.
#[derive(Debug, Clone, Copy)]
struct UsedBlock {
    used: Used,
    /// Whether more than its size may belong to it.
    may_be_larger: bool,
}

struct State<'s> {
    settings: &'s Settings,
    runs: BTreeMap<Address, Run>,
    used: BTreeMap<Address, UsedBlock>,
    /// The pools of all addresses that blocks were seen at: expandable segments are told apart by them.
    pools: BTreeMap<Address, PoolKind>,
}

impl<'s> State<'s> {
    fn of(layout: &Layout, entries: &[Entry], settings: &'s Settings) -> State<'s> {
        let runs = layout.segments.iter().map(|segment| {
            let run = Run {
                size: segment.size,
                stream: segment.stream,
                pool: segment.pool,
                is_expandable: segment.is_expandable,
            };
            (segment.address, run)
        });
        let used = layout.segments.iter().flat_map(|segment| &segment.used);
        let segments = layout
            .segments
            .iter()
            .map(|segment| (segment.address, segment.pool));
        let blocks = entries.iter().filter_map(|entry| match entry.event {
            Event::Alloc { address, requested } | Event::FreeCompleted { address, requested } => {
                (requested.0 < 1 << 60).then(|| {
                    let rounded = settings.round_size(requested);
                    (address, PoolKind::serving(rounded))
                })
            }
            _ => None,
        });
        State {
            settings,
            pools: segments.chain(blocks).collect(),
            runs: runs.collect(),
            used: used
                .map(|used| {
                    let holding = UsedBlock {
                        used: *used,
                        may_be_larger: false,
                    };
                    (used.address, holding)
                })
                .collect(),
        }
    }

    fn undo(&mut self, entry: Entry) -> Result<(), String> {
        match entry.event {
            Event::Alloc { address, requested } => match self.used.remove(&address) {
                Some(UsedBlock { used, .. }) if !used.is_pending && used.requested == requested => {
                    Ok(())
                }
                Some(_) | None => Err(format!(
                    "{} bytes are allocated at {address}, and are neither freed later nor there at the end; \
                     was the recording interrupted?",
                    requested.0
                )),
            },
            Event::FreeRequested { address, .. } => match self.used.get_mut(&address) {
                Some(UsedBlock { used, .. }) if used.is_pending => {
                    used.is_pending = false;
                    Ok(())
                }
                Some(_) | None => Err(format!(
                    "{address} is freed, and later events know nothing of it"
                )),
            },
            Event::FreeCompleted { address, requested } => self.occupy(address, requested),
            Event::Segment(SegmentAction::Alloc, address, size) => match self.runs.remove(&address)
            {
                Some(run) if run.size == size && !run.is_expandable => {
                    self.expect_unused(address, size)
                }
                Some(_) | None => Err(format!(
                    "a segment of {} bytes is taken at {address}, and is neither given back later nor there \
                     at the end",
                    size.0
                )),
            },
            Event::Segment(SegmentAction::Free, address, size) => {
                let pool = if size == SMALL_SEGMENT {
                    PoolKind::Small
                } else {
                    PoolKind::Large
                };
                let run = Run {
                    size,
                    stream: entry.stream,
                    pool,
                    is_expandable: false,
                };
                self.insert(address, run)
            }
            Event::Segment(SegmentAction::Map, address, size) => self.unmap(address, size),
            Event::Segment(SegmentAction::Unmap, address, size) => {
                self.map(entry.stream, address, size)
            }
            Event::OutOfMemory { .. } => Ok(()),
        }
    }

    /// Puts a block back that was freed.
    fn occupy(&mut self, address: Address, requested: Bytes) -> Result<(), String> {
        let gone = || format!("{address} is freed, and no free memory is there afterwards");
        let rounded = self.rounded(requested)?;
        let (start, run) = self.run_at(address).ok_or_else(gone)?;
        let end = start.offset(run.size);
        let below = self.used.range(..=address).next_back();
        if below.is_some_and(|(below, holding)| below.offset(holding.used.size) > address) {
            return Err(gone());
        }
        let above = self.used.range(address..).next();
        let room_end = above.map_or(end, |(above, _)| (*above).min(end));
        let room = Bytes(room_end.0 - address.0);
        if rounded > room {
            return Err(gone());
        }
        if let Some((below, _)) = below {
            let below = *below;
            self.see_neighbour(below, address);
        }
        let used = Used {
            address,
            size: rounded,
            requested,
            is_pending: true,
        };
        let holding = UsedBlock {
            used,
            may_be_larger: run.pool == PoolKind::Large && !run.is_expandable,
        };
        self.used.insert(address, holding);
        if room_end < end {
            self.see_neighbour(address, room_end);
        }
        Ok(())
    }

    /// Learns from a block that begins at `next` where the one before it ends.
    fn see_neighbour(&mut self, block: Address, next: Address) {
        let Some((start, run)) = self.run_at(block) else {
            return;
        };
        let is_inside = next <= start.offset(run.size);
        if let Some(holding) = self.used.get_mut(&block)
            && holding.may_be_larger
            && is_inside
        {
            let rounded_end = block.offset(holding.used.size);
            if next.0 - rounded_end.0 <= UNSPLIT.0 {
                holding.used.size = Bytes(next.0 - block.0);
                holding.may_be_larger = false;
            }
        }
    }

    fn rounded(&self, requested: Bytes) -> Result<Bytes, String> {
        if !(1..1 << 60).contains(&requested.0) {
            return Err(format!(
                "the size {}; expected 1 to 2^60 - 1 bytes",
                requested.0
            ));
        }
        Ok(self.settings.round_size(requested))
    }

    /// Whether blocks of this size are never cut, whatever is left of them.
    fn is_oversize(&self, rounded: Bytes) -> bool {
        self.settings
            .max_split()
            .is_some_and(|most| rounded >= most)
    }

    fn insert(&mut self, address: Address, run: Run) -> Result<(), String> {
        let overlaps = || {
            format!(
                "{} bytes at {address} overlap with what is there",
                run.size.0
            )
        };
        let end = address.0.checked_add(run.size.0).ok_or_else(overlaps)?;
        let below = self.runs.range(..Address(end)).next_back();
        if below.is_some_and(|(start, below)| start.offset(below.size) > address) {
            return Err(overlaps());
        }
        self.runs.insert(address, run);
        Ok(())
    }

    /// Takes a part out of a run.
    fn unmap(&mut self, address: Address, size: Bytes) -> Result<(), String> {
        let gone = || {
            format!(
                "{} bytes are mapped at {address}, and are neither unmapped later nor there at the end",
                size.0
            )
        };
        let (start, run) = self.run_at(address).ok_or_else(gone)?;
        let end = start.offset(run.size);
        let unmapped_end = address.0.checked_add(size.0).map(Address);
        let unmapped_end = unmapped_end.filter(|to| *to <= end).ok_or_else(gone)?;
        if !run.is_expandable {
            return Err(gone());
        }
        self.expect_unused(address, size)?;
        self.runs.remove(&start);
        for (from, to) in [(start, address), (unmapped_end, end)] {
            if from < to {
                let size = Bytes(to.0 - from.0);
                self.runs.insert(from, Run { size, ..run });
            }
        }
        Ok(())
    }

    /// Puts memory back that was unmapped, together with the runs that it touches.
    fn map(&mut self, stream: Stream, address: Address, size: Bytes) -> Result<(), String> {
        let unit = self.settings.segment_size(Bytes::mib(2));
        let pool = if size.0.is_multiple_of(unit.0) {
            self.nearest_pool(address, size)
        } else {
            PoolKind::Small
        };
        let run = Run {
            size,
            stream,
            pool,
            is_expandable: true,
        };
        self.insert(address, run)?;
        let below = self.runs.range(..address).next_back();
        let below = below.map(|(start, run)| (*start, *run));
        let mut joined = (address, run);
        if let Some((start, below)) = below
            && below.is_expandable
            && start.offset(below.size) == address
        {
            self.runs.remove(&address);
            joined = (
                start,
                Run {
                    size: below.size + size,
                    ..below
                },
            );
            self.runs.insert(joined.0, joined.1);
        }
        let end = joined.0.offset(joined.1.size);
        if let Some(above) = self.runs.get(&end).copied()
            && above.is_expandable
        {
            self.runs.remove(&end);
            let size = joined.1.size + above.size;
            self.runs.insert(joined.0, Run { size, ..joined.1 });
        }
        Ok(())
    }

    /// The pool that memory belongs to, by the closest block: reservations are far larger than what is
    /// mapped of them, so it is in the same one.
    fn nearest_pool(&self, address: Address, size: Bytes) -> PoolKind {
        let above = self.pools.range(address..).next();
        let below = self.pools.range(..address).next_back();
        let end = address.0.saturating_add(size.0);
        let distance = |other: &Address| {
            if *other < address {
                address.0 - other.0
            } else {
                other.0.saturating_sub(end)
            }
        };
        let nearest = [above, below].into_iter().flatten();
        nearest
            .min_by_key(|(at, _)| distance(at))
            .map_or(PoolKind::Large, |(_, pool)| *pool)
    }

    fn run_at(&self, address: Address) -> Option<(Address, Run)> {
        let (start, run) = self.runs.range(..=address).next_back()?;
        (start.offset(run.size) > address).then_some((*start, *run))
    }

    fn expect_unused(&self, address: Address, size: Bytes) -> Result<(), String> {
        let inside = self.used.range(address..address.offset(size)).next();
        match inside {
            None => Ok(()),
            Some((used, _)) => Err(format!(
                "the memory at {address} is new, and {used} in it was in use before"
            )),
        }
    }

    fn layout(mut self) -> Layout {
        let segments: Vec<(Address, Run)> = self.runs.iter().map(|(at, run)| (*at, *run)).collect();
        for (start, run) in segments {
            let end = start.offset(run.size);
            let last = self.used.range(start..end).next_back();
            let Some((last, holding)) = last.map(|(at, holding)| (*at, *holding)) else {
                continue;
            };
            // What is too large to be split is all of its segment.
            if holding.may_be_larger && self.is_oversize(holding.used.size) {
                let whole = self.used.get_mut(&last).expect("it was just found");
                whole.used.size = Bytes(end.0 - last.0);
            } else {
                self.see_neighbour(last, end);
            }
        }
        let segments = self.runs.iter().map(|(address, run)| Segment {
            address: *address,
            size: run.size,
            stream: run.stream,
            pool: run.pool,
            is_expandable: run.is_expandable,
            used: self
                .used
                .range(*address..address.offset(run.size))
                .map(|(_, holding)| holding.used)
                .collect(),
        });
        Layout {
            segments: segments.collect(),
        }
    }
}
