//! A recording as what a step program is made of: allocations and frees, without addresses.

use std::collections::HashMap;

use super::RecordedError;
use crate::alloc::{Address, Event, PoolKind, SMALL_MAX, Stream};
use crate::replay::{Layout, Recording, Segment};

/// Most events of one recording, as they are aligned: some twenty steps of the largest models.
pub const MOST_EVENTS: usize = 1 << 20;

/// Most streams of one recording.
const MOST_STREAMS: usize = 256;

/// What happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Happening {
    /// An index into [`Sequence::blocks`].
    pub(super) block: usize,
    pub(super) is_free: bool,
}

/// Memory that the program asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// What was asked for.
    pub(super) bytes: u64,
    /// The stream, by the order in which streams first appear.
    pub(super) stream: u8,
    /// When it was asked for: an index into [`Sequence::events`].
    pub(super) born: usize,
    /// When it could be used again; nothing for what outlives the recording.
    pub(super) freed: Option<usize>,
    /// How many allocations there are while it is alive; nothing for what outlives the recording.
    pub(super) life: Option<usize>,
    /// The entry of the recording; nothing for what was there when it started.
    pub(super) entry: Option<usize>,
}

/// The allocations and frees of one recording.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sequence {
    pub(super) batch: u64,
    /// In order. Frees that follow each other are in the order of their allocations: which of them came first does not
    /// matter to the allocator, and hash tables are cleared in any order.
    pub(super) events: Vec<Happening>,
    pub(super) blocks: Vec<Block>,
}

impl Sequence {
    /// What a recording of `batch` asked for.
    pub(super) fn of(recording: &Recording, batch: u64) -> Result<Sequence, RecordedError> {
        if recording.entries.len() > 4 * MOST_EVENTS {
            return Err(RecordedError::TooLong { batch });
        }
        let mut reader = Reader::default();
        reader.start(&recording.initial)?;
        for (index, entry) in recording.entries.iter().enumerate() {
            match entry.event {
                Event::Alloc { address, requested } => {
                    reader.allocate(address, requested.0, entry.stream, Some(index))?;
                }
                // What another stream still uses is free once that is done.
                Event::FreeCompleted { address, .. } => reader.free(address),
                Event::OutOfMemory { .. } => {
                    return Err(RecordedError::OutOfMemory {
                        batch,
                        place: recording.place(index),
                    });
                }
                Event::FreeRequested { .. }
                | Event::SegmentAlloc { .. }
                | Event::SegmentFree { .. }
                | Event::SegmentMap { .. }
                | Event::SegmentUnmap { .. } => {}
            }
        }
        if reader.events.len() > MOST_EVENTS {
            return Err(RecordedError::TooLong { batch });
        }
        let mut sequence = Sequence {
            batch,
            events: reader.events,
            blocks: reader.blocks,
        };
        sequence.order_frees();
        Ok(sequence)
    }

    fn order_frees(&mut self) {
        for run in self.events.chunk_by_mut(|a, b| a.is_free && b.is_free) {
            run.sort_unstable_by_key(|event| event.block);
        }
        let mut allocated = 0;
        for (index, event) in self.events.iter().enumerate() {
            let block = &mut self.blocks[event.block];
            if event.is_free {
                block.freed = Some(index);
                // Blocks are numbered as they are allocated.
                block.life = Some(allocated - event.block - 1);
            } else {
                allocated += 1;
            }
        }
    }

    pub(super) fn block(&self, event: usize) -> &Block {
        &self.blocks[self.events[event].block]
    }

    /// How many blocks there are before the first that is freed: those of construction, where it was recorded.
    pub(super) fn parameters(&self) -> usize {
        let first_free = self.events.iter().position(|event| event.is_free);
        first_free.unwrap_or(self.events.len())
    }

    /// How many allocations a block lives through; nothing for what outlives the recording.
    pub(super) fn life(&self, block: usize) -> Option<usize> {
        self.blocks[block].life
    }
}

#[derive(Default)]
struct Reader {
    events: Vec<Happening>,
    blocks: Vec<Block>,
    alive: HashMap<Address, usize>,
    streams: Vec<Stream>,
}

impl Reader {
    fn allocate(
        &mut self,
        address: Address,
        bytes: u64,
        stream: Stream,
        entry: Option<usize>,
    ) -> Result<usize, RecordedError> {
        let known = self.streams.iter().position(|known| *known == stream);
        let stream = known.unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        let stream =
            u8::try_from(stream).map_err(|_| RecordedError::Streams { most: MOST_STREAMS })?;
        let block = self.blocks.len();
        self.blocks.push(Block {
            bytes,
            stream,
            born: self.events.len(),
            freed: None,
            life: None,
            entry,
        });
        self.alive.insert(address, block);
        self.push(block, false);
        Ok(block)
    }

    fn free(&mut self, address: Address) {
        if let Some(block) = self.alive.remove(&address) {
            self.push(block, true);
        }
    }

    fn push(&mut self, block: usize, is_free: bool) {
        self.events.push(Happening { block, is_free });
    }

    /// Asks for what was there when the recording started. See Note [What was there].
    fn start(&mut self, layout: &Layout) -> Result<(), RecordedError> {
        let mut gaps = Vec::new();
        for segment in &layout.segments {
            self.fill(segment, &mut gaps)?;
        }
        for gap in gaps {
            self.push(gap, true);
        }
        Ok(())
    }

    fn fill(&mut self, segment: &Segment, gaps: &mut Vec<usize>) -> Result<(), RecordedError> {
        // No block is at this address: those of a segment are reported at their own.
        let nowhere = Address(u64::MAX);
        if segment.pool == PoolKind::Large && !segment.is_expandable {
            let whole = self.allocate(nowhere, segment.size.0, segment.stream, None)?;
            self.push(whole, true);
        }
        for piece in pieces(segment) {
            let address = piece.used.unwrap_or(nowhere);
            let block = self.allocate(address, piece.bytes, segment.stream, None)?;
            if piece.used.is_none() {
                self.alive.remove(&nowhere);
                gaps.push(block);
            }
        }
        self.alive.remove(&nowhere);
        Ok(())
    }
}

/// A block in use, or a gap between two.
struct Piece {
    used: Option<Address>,
    bytes: u64,
}

/// What a segment consists of. A gap that the segment's pool would serve no request from belongs to the block beside it.
fn pieces(segment: &Segment) -> Vec<Piece> {
    let is_usable = |gap: u64| segment.pool == PoolKind::Small || gap > SMALL_MAX.0;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut end = segment.address.0;
    let mut carried = 0;
    for used in &segment.used {
        let gap = used.address.0 - end;
        if gap > 0 && is_usable(gap) {
            pieces.push(Piece {
                used: None,
                bytes: gap,
            });
        } else if let Some(last) = pieces.last_mut() {
            last.bytes += gap;
        } else {
            carried = gap;
        }
        pieces.push(Piece {
            used: Some(used.address),
            bytes: used.size.0 + std::mem::take(&mut carried),
        });
        end = used.address.0 + used.size.0;
    }
    let gap = segment.address.0 + segment.size.0 - end;
    match pieces.last_mut() {
        Some(last) if !is_usable(gap) => last.bytes += gap,
        _ if gap > 0 => pieces.push(Piece {
            used: None,
            bytes: gap,
        }),
        _ => {}
    }
    pieces
}
