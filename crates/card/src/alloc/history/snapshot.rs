//! What is where, as `torch.cuda.memory_snapshot` shows it.

use crate::alloc::block::{Block, Blocks, State};
use crate::alloc::memory::segment::Address;
use crate::alloc::pool::PoolKind;
use crate::alloc::streams::{Stream, Streams};
use crate::units::Bytes;

/// All segments, in the order of their addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The segments held from the source. Of an expandable one, each mapped range is a segment.
    pub segments: Vec<SegmentView>,
}

/// A segment and the blocks that tile it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentView {
    /// Its start.
    pub address: Address,
    /// Its size; PyTorch's `total_size`.
    pub size: Bytes,
    /// Which pool it was taken for.
    pub pool: PoolKind,
    /// Which stream it was taken for.
    pub stream: Stream,
    /// Whether it is part of an expandable segment.
    pub is_expandable: bool,
    /// Its blocks, from its start to its end.
    pub blocks: Vec<BlockView>,
}

/// A block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockView {
    /// Its start.
    pub address: Address,
    /// Its size.
    pub size: Bytes,
    /// What the caller asked for, or `None` while the block is free.
    pub requested: Option<Bytes>,
    /// Who has it.
    pub state: BlockState,
}

/// The `state` of a block in PyTorch's snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// The caller has it.
    ActiveAllocated,
    /// The caller gave it back, and another stream may still use it.
    ActivePendingFree,
    /// It is free.
    Inactive,
}

impl BlockState {
    /// PyTorch's word for it.
    pub fn name(self) -> &'static str {
        match self {
            BlockState::ActiveAllocated => "active_allocated",
            BlockState::ActivePendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        }
    }
}

impl Snapshot {
    pub(in crate::alloc) fn of(blocks: &Blocks, streams: &Streams) -> Snapshot {
        let mut segments = Vec::new();
        for head in blocks.heads() {
            let chain = blocks.chain(head);
            let mapped: Vec<&Block> = chain
                .filter(|block| block.state != State::Unmapped)
                .collect();
            let runs = mapped.chunk_by(|block, next| block.end() == next.address);
            segments.extend(runs.map(|run| SegmentView {
                address: run[0].address,
                size: run.iter().map(|block| block.size).sum(),
                pool: run[0].home.pool,
                stream: streams.of(run[0].home.stream),
                is_expandable: run[0].reservation.is_some(),
                blocks: run.iter().map(|block| BlockView::of(block)).collect(),
            }));
        }
        segments.sort_unstable_by_key(|segment| segment.address);
        Snapshot { segments }
    }
}

impl BlockView {
    fn of(block: &Block) -> BlockView {
        let state = match block.state {
            State::Allocated => BlockState::ActiveAllocated,
            State::Pending => BlockState::ActivePendingFree,
            State::Free | State::Unmapped | State::Vacant => BlockState::Inactive,
        };
        BlockView {
            address: block.address,
            size: block.size,
            requested: (state != BlockState::Inactive).then_some(block.requested),
            state,
        }
    }
}
