//! A recording as what a step program is made of: allocations and frees, without addresses.

use std::collections::HashMap;
use std::sync::Arc;

use super::RecordedError;
use crate::alloc::{Address, Event, PoolKind, SMALL_MAX, Settings, Stream};
use crate::replay::{Format, Layout, Recording, Segment};
use crate::units::Bytes;

/// Most events of one recording, as they are aligned: some twenty steps of the largest models.
pub const MOST_EVENTS: usize = 1 << 20;

/// Most streams of one recording.
const MOST_STREAMS: usize = 256;

/// What happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockEvent {
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
    /// Where it is in the file; nothing for what was there when the recording started.
    pub(super) position: Option<u32>,
    /// Which line of Python asked for it: an index into [`Sequence::frames`].
    pub(super) frame: Option<u32>,
}

/// The allocations and frees of one recording, and what is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// Samples in each micro-step.
    pub batch: u64,
    /// Micro-steps in each step.
    pub accumulation: u32,
    /// What was recorded, where that was noted.
    pub case: Option<String>,
    /// What the device had, when it is known.
    pub total: Option<Bytes>,
    /// The device's name, when it is known.
    pub gpu: Option<String>,
    /// The allocator settings in force, when they are known and not PyTorch's defaults.
    pub allocator: Option<String>,
    /// In order. Frees that follow each other are in the order of their allocations: which of them came first does not
    /// matter to the allocator, and hash tables are cleared in any order.
    pub(super) events: Vec<BlockEvent>,
    pub(super) blocks: Vec<Block>,
    /// The event that begins the first step, where it was marked.
    pub(super) first_step: Option<usize>,
    /// Lines of Python.
    pub(super) frames: Vec<Arc<str>>,
    pub(super) format: Format,
}

impl Sequence {
    /// What a recording of `batch` asked for.
    pub(super) fn of(recording: &Recording, batch: u64) -> Result<Sequence, RecordedError> {
        let mut reader = Reader::default();
        reader.start(&recording.initial)?;
        for (index, entry) in recording.entries.iter().enumerate() {
            match entry.event {
                Event::Alloc { address, requested } => {
                    let place = (Some(entry.position), entry.frame);
                    let stream = reader.stream(entry.stream)?;
                    let block = reader.allocate(requested.0, stream, place);
                    reader.alive.insert(address, block);
                }
                // What another stream still uses is free once that is done.
                Event::FreeCompleted { address, .. } => {
                    if let Some(block) = reader.alive.remove(&address) {
                        reader.push(block, true);
                    }
                }
                Event::OutOfMemory { .. } => {
                    return Err(RecordedError::OutOfMemory {
                        batch,
                        place: recording.place(index),
                    });
                }
                Event::FreeRequested { .. } | Event::Segment(..) => {}
            }
        }
        reader.finish(Sequence {
            batch,
            accumulation: recording.accumulation.unwrap_or(1).max(1),
            case: recording.case.clone(),
            total: recording.total,
            gpu: None,
            allocator: (recording.settings != Settings::default())
                .then(|| recording.settings.to_string()),
            events: Vec::new(),
            blocks: Vec::new(),
            first_step: None,
            frames: recording.frames.clone(),
            format: recording.format,
        })
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

    /// How many allocations and frees there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing was allocated.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn block(&self, event: usize) -> &Block {
        &self.blocks[self.events[event].block]
    }

    /// How many blocks belong to construction: those before the first step, where it was marked, or else before the
    /// first free.
    pub(super) fn parameters(&self) -> usize {
        let end = self
            .first_step
            .or_else(|| self.events.iter().position(|event| event.is_free));
        let events = &self.events[..end.unwrap_or(self.events.len())];
        events.iter().filter(|event| !event.is_free).count()
    }

    /// How many allocations a block lives through; nothing for what outlives the recording.
    pub(super) fn life(&self, block: usize) -> Option<usize> {
        self.blocks[block].life
    }

    /// Names the place of an event for the person who has the file.
    pub(super) fn place(&self, event: usize) -> String {
        match self.events.get(event).map(|_| self.block(event).position) {
            None => "its end".to_owned(),
            Some(None) => "its start".to_owned(),
            Some(Some(position)) => self.format.place(position),
        }
    }

    /// Names a block: the line of Python that asked for it, or else the place in the file.
    pub(super) fn label(&self, block: usize) -> Arc<str> {
        let block = &self.blocks[block];
        let frame = block
            .frame
            .and_then(|frame| self.frames.get(frame as usize));
        match (frame, block.position) {
            (Some(frame), _) => Arc::clone(frame),
            (None, Some(position)) => Arc::from(self.format.place(position)),
            (None, None) => Arc::from("before the recording"),
        }
    }
}

/// Puts a sequence together, event by event.
#[derive(Default)]
pub(super) struct Reader {
    events: Vec<BlockEvent>,
    pub(super) blocks: Vec<Block>,
    alive: HashMap<Address, usize>,
    streams: Vec<Stream>,
}

impl Reader {
    /// One for streams that have numbers already.
    pub(super) fn of_numbered_streams() -> Reader {
        let streams = 0..MOST_STREAMS as u64;
        Reader {
            streams: streams.map(Stream).collect(),
            ..Reader::default()
        }
    }

    /// The number of a stream.
    fn stream(&mut self, stream: Stream) -> Result<u8, RecordedError> {
        let known = self.streams.iter().position(|known| *known == stream);
        let number = known.unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        u8::try_from(number).map_err(|_| RecordedError::Streams { most: MOST_STREAMS })
    }

    pub(super) fn allocate(
        &mut self,
        bytes: u64,
        stream: u8,
        (position, frame): (Option<u32>, Option<u32>),
    ) -> usize {
        let block = self.blocks.len();
        self.blocks.push(Block {
            bytes,
            stream,
            born: self.events.len(),
            freed: None,
            life: None,
            position,
            frame,
        });
        self.push(block, false);
        block
    }

    pub(super) fn push(&mut self, block: usize, is_free: bool) {
        self.events.push(BlockEvent { block, is_free });
    }

    /// The block that was there at this address.
    pub(super) fn block_at(&self, address: Address) -> Option<usize> {
        self.alive.get(&address).copied()
    }

    /// How many events there are so far.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// The whole sequence; `rest` is all about it but its events.
    pub(super) fn finish(self, rest: Sequence) -> Result<Sequence, RecordedError> {
        if self.events.len() > MOST_EVENTS {
            return Err(RecordedError::TooLong { batch: rest.batch });
        }
        let mut sequence = Sequence {
            events: self.events,
            blocks: self.blocks,
            ..rest
        };
        sequence.order_frees();
        Ok(sequence)
    }

    /// Asks for what was there when the recording started. See Note [What was there].
    pub(super) fn start(&mut self, layout: &Layout) -> Result<(), RecordedError> {
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
        let stream = self.stream(segment.stream)?;
        let most_pieces = usize::try_from(segment.size.0 / SMALL_MAX.0).unwrap_or(usize::MAX);
        let is_small = segment.pool == PoolKind::Small;
        if self.len() > MOST_EVENTS || (is_small && most_pieces > MOST_EVENTS) {
            return Err(RecordedError::StartsWithTooMuch);
        }
        if segment.pool == PoolKind::Large && !segment.is_expandable {
            let whole = self.allocate(segment.size.0, stream, (None, None));
            self.push(whole, true);
        }
        for piece in pieces(segment) {
            let block = self.allocate(piece.bytes, stream, (None, None));
            match piece.used {
                Some(address) => {
                    self.alive.insert(address, block);
                }
                None => gaps.push(block),
            }
        }
        Ok(())
    }
}

/// A block in use, or a gap between two.
struct Piece {
    used: Option<Address>,
    bytes: u64,
}

/// What a segment consists of. A gap that the segment's pool would serve no request from belongs to the block beside it;
/// one that is too large for a request that is served from small segments is several.
fn pieces(segment: &Segment) -> Vec<Piece> {
    let is_small = segment.pool == PoolKind::Small;
    let is_usable = |gap: u64| gap > 0 && (is_small || gap > SMALL_MAX.0);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut end = segment.address.0;
    let mut carried = 0;
    for used in &segment.used {
        let gap = used.address.0 - end;
        if is_usable(gap) {
            pieces.extend(gaps(gap, is_small));
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
        _ if gap > 0 => pieces.extend(gaps(gap, is_small)),
        _ => {}
    }
    pieces
}

/// A gap as what can be asked for.
fn gaps(gap: u64, is_small: bool) -> impl Iterator<Item = Piece> {
    let most = if is_small { SMALL_MAX.0 } else { gap };
    let whole = (0..gap / most).map(move |_| most);
    let rest = Some(gap % most).filter(|rest| *rest > 0);
    whole.chain(rest).map(|bytes| Piece { used: None, bytes })
}
