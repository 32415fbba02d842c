//! Puts the requests of a recording to an allocator.

use super::layout::Layout;
use super::plan::{Before, Initial, Request, RequestKind, Slot};
use crate::alloc::{
    Address, BlockId, BlockState, BlockView, CachingAllocator, Observer, OutOfMemory, Reserved,
    SegmentSource, SegmentView, Snapshot, Stream,
};
use crate::units::Bytes;

/// How a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// As in the recording.
    Same,
    /// With memory that the recording refused; it was freed at once.
    GrantedAndFreed,
    /// Not with memory, which the recording granted.
    Refused(OutOfMemory),
}

/// An allocator, and where the blocks of the recording are in it.
#[derive(Debug, Clone)]
pub(super) struct Replayer<S, O> {
    pub(super) allocator: CachingAllocator<S, O>,
    /// By slot. A block that was freed leaves its id behind, which is never used again.
    blocks: Vec<BlockId>,
}

impl<S: SegmentSource, O: Observer> Replayer<S, O> {
    pub(super) fn new(allocator: CachingAllocator<S, O>) -> Self {
        Replayer {
            allocator,
            blocks: Vec::new(),
        }
    }

    /// Starts from the recording's own state: the same blocks at the same addresses.
    pub(super) fn start_from(
        &mut self,
        layout: &Layout,
        reserved: &[Reserved],
        initial: &[Initial],
    ) {
        self.blocks = self.allocator.restore(&snapshot(layout), reserved);
        self.free_waiting(initial);
    }

    /// Starts from the recording's live blocks, asked for one after the other by address: under other
    /// settings there is no telling where they would have been.
    pub(super) fn start_with(&mut self, initial: &[Initial]) -> Result<(), OutOfMemory> {
        for block in initial {
            let requested = block.used.requested;
            let id = self.allocator.malloc_on(block.stream, requested)?;
            self.blocks.push(id);
        }
        self.free_waiting(initial);
        Ok(())
    }

    /// Frees the blocks that wait for a stream.
    fn free_waiting(&mut self, initial: &[Initial]) {
        for (index, block) in initial.iter().enumerate() {
            if block.waits_for.is_some() {
                self.free(Slot(index), block.waits_for);
            }
        }
    }

    /// Puts one request.
    pub(super) fn put(&mut self, request: &Request) -> Answer {
        match request.before {
            Before::Passed => {
                for stream in &request.completed {
                    self.allocator.synchronize(*stream);
                }
            }
            Before::Nothing => {}
            Before::EmptyCache => self.allocator.empty_cache(),
        }
        match request.kind {
            RequestKind::Malloc {
                stream,
                requested,
                slot,
            } => match self.allocator.malloc_on(stream, requested) {
                Ok(id) => {
                    debug_assert_eq!(slot, Slot(self.blocks.len()), "slots count up");
                    self.blocks.push(id);
                    Answer::Same
                }
                Err(refusal) => Answer::Refused(refusal),
            },
            RequestKind::Refused { stream, rounded } => {
                match self.allocator.malloc_on(stream, rounded) {
                    Ok(id) => {
                        self.allocator.free(id);
                        Answer::GrantedAndFreed
                    }
                    Err(_) => Answer::Same,
                }
            }
            RequestKind::Free { slot, waits_for } => {
                self.free(slot, waits_for);
                Answer::Same
            }
            RequestKind::EmptyCache => {
                self.allocator.empty_cache();
                Answer::Same
            }
        }
    }

    fn free(&mut self, slot: Slot, waits_for: Option<Stream>) {
        let id = self.blocks[slot.0];
        if let Some(stream) = waits_for {
            self.allocator.record_stream(id, stream);
        }
        self.allocator.free(id);
    }

    /// The size of the block that was asked for last, which is still in use.
    pub(super) fn size_of_last(&self) -> Bytes {
        let last = self.blocks.last();
        last.map_or(Bytes::ZERO, |id| self.allocator.size(*id))
    }

    /// What is allocated and reserved.
    pub(super) fn memory(&self) -> (Bytes, Bytes) {
        let stats = self.allocator.stats();
        (stats.allocated(), stats.reserved())
    }
}

/// The layout with its free blocks.
fn snapshot(layout: &Layout) -> Snapshot {
    let segments = layout.segments.iter().map(|segment| {
        let mut blocks = Vec::new();
        let mut at = segment.address;
        let free = |from: Address, to: Address| {
            (from < to).then(|| BlockView {
                address: from,
                size: Bytes(to.0 - from.0),
                requested: None,
                state: BlockState::Inactive,
            })
        };
        for used in &segment.used {
            blocks.extend(free(at, used.address));
            blocks.push(BlockView {
                address: used.address,
                size: used.size,
                requested: Some(used.requested),
                state: BlockState::ActiveAllocated,
            });
            at = used.address.offset(used.size);
        }
        blocks.extend(free(at, segment.address.offset(segment.size)));
        SegmentView {
            address: segment.address,
            size: segment.size,
            pool: segment.pool,
            stream: segment.stream,
            is_expandable: segment.is_expandable,
            blocks,
        }
    });
    Snapshot {
        segments: segments.collect(),
    }
}
