//! What is where, as `torch.cuda.memory_snapshot` shows it.

use super::block::{Blocks, State};
use super::pool::PoolKind;
use super::segment::Address;
use crate::units::Bytes;

/// All segments, in the order of their addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The segments held from the source.
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
}

impl Snapshot {
    pub(super) fn of(blocks: &Blocks) -> Snapshot {
        let mut segments: Vec<SegmentView> = blocks
            .heads()
            .map(|head| SegmentView {
                address: blocks[head].address,
                size: blocks.chain(head).map(|block| block.size).sum(),
                pool: blocks[head].pool,
                blocks: blocks.chain(head).map(BlockView::of).collect(),
            })
            .collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        Snapshot { segments }
    }
}

impl BlockView {
    fn of(block: &super::block::Block) -> BlockView {
        BlockView {
            address: block.address,
            size: block.size,
            requested: (block.state == State::Allocated).then_some(block.requested),
        }
    }
}
