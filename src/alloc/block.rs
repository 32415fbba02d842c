//! Blocks: pieces of segments, linked to their neighbours.

use std::num::NonZeroU32;

use super::pool::PoolKind;
use super::segment::Address;
use crate::units::Bytes;

/// Names a block until it is freed. Ids of freed blocks are given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(NonZeroU32);

impl BlockId {
    pub(super) fn from_index(index: usize) -> BlockId {
        let index = u32::try_from(index).expect("fewer than 2^32 blocks exist at once");
        BlockId(NonZeroU32::new(index).expect("slot zero is never given out"))
    }

    pub(super) fn index(self) -> usize {
        self.0.get() as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The slot belongs to no block.
    Vacant,
    /// In the free set of its pool.
    Free,
    /// Held by the caller.
    Allocated,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: Address,
    pub(super) size: Bytes,
    /// What the caller asked for; stale while the block is free, as in PyTorch's snapshots.
    pub(super) requested: Bytes,
    /// The blocks that end where this one starts and start where it ends, in the same segment.
    pub(super) prev: Option<BlockId>,
    pub(super) next: Option<BlockId>,
    pub(super) pool: PoolKind,
    pub(super) state: State,
}

impl Block {
    /// Whether the segment has other blocks. PyTorch's `is_split`.
    pub(super) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }
}

/// All blocks of an allocator.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    /// Slot zero stays vacant, so that an optional id takes four bytes.
    slots: Vec<Block>,
    vacant: Vec<BlockId>,
}

impl Default for Blocks {
    fn default() -> Self {
        let unused = Block {
            address: Address(0),
            size: Bytes::ZERO,
            requested: Bytes::ZERO,
            prev: None,
            next: None,
            pool: PoolKind::Small,
            state: State::Vacant,
        };
        Blocks {
            slots: vec![unused],
            vacant: Vec::new(),
        }
    }
}

impl Blocks {
    pub(super) fn add(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.index()] = block;
            return id;
        }
        let id = BlockId::from_index(self.slots.len());
        self.slots.push(block);
        id
    }

    pub(super) fn remove(&mut self, id: BlockId) {
        self.slots[id.index()].state = State::Vacant;
        self.vacant.push(id);
    }

    /// Cuts the first `size` bytes off a block and returns them as a block of their own.
    ///
    /// The remainder keeps its id, as it keeps its object in PyTorch.
    pub(super) fn split_front(&mut self, id: BlockId, size: Bytes) -> BlockId {
        let whole = self[id];
        let front = self.add(Block {
            size,
            next: Some(id),
            ..whole
        });
        if let Some(prev) = whole.prev {
            self[prev].next = Some(front);
        }
        let rest = &mut self[id];
        rest.address = whole.address.offset(size);
        rest.size = whole.size - size;
        rest.prev = Some(front);
        front
    }

    /// Makes `id` cover its neighbour `absorbed` too, which stops existing.
    pub(super) fn absorb(&mut self, id: BlockId, absorbed: BlockId) {
        let gone = self[absorbed];
        let block = &mut self[id];
        block.size += gone.size;
        if block.prev == Some(absorbed) {
            block.address = gone.address;
            block.prev = gone.prev;
            if let Some(prev) = gone.prev {
                self[prev].next = Some(id);
            }
        } else {
            block.next = gone.next;
            if let Some(next) = gone.next {
                self[next].prev = Some(id);
            }
        }
        self.remove(absorbed);
    }

    /// The blocks that segments start with, in no particular order.
    pub(super) fn heads(&self) -> impl Iterator<Item = BlockId> + '_ {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, block)| block.state != State::Vacant && block.prev.is_none())
            .map(|(index, _)| BlockId::from_index(index))
    }

    /// `head` and what follows it in its segment.
    pub(super) fn chain(&self, head: BlockId) -> impl Iterator<Item = &Block> + '_ {
        std::iter::successors(Some(&self[head]), |block| {
            block.next.map(|next| &self[next])
        })
    }

    /// Forgets all blocks and keeps the room for them.
    pub(super) fn clear(&mut self) {
        self.slots.truncate(1);
        self.vacant.clear();
    }
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.slots[id.index()]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slots[id.index()]
    }
}
