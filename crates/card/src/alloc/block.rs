//! Blocks: pieces of segments, linked to their neighbours.

use std::num::NonZeroU32;

use super::expandable::ReservationId;
use super::memory::segment::Address;
use super::pool::{PoolKey, PoolKind};
use super::streams::StreamIndex;
use crate::units::Bytes;

/// Names a block until it is freed. Ids of freed blocks are given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(NonZeroU32);

impl BlockId {
    pub(super) fn from_index(index: usize) -> BlockId {
        let index = u32::try_from(index).expect("fewer than 2^32 blocks exist at once");
        BlockId(NonZeroU32::new(index).expect("slot zero is never given out"))
    }

    #[inline]
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
    /// Given back by the caller, while other streams may still use it.
    Pending,
    /// Address space of an expandable segment, without memory behind it.
    Unmapped,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: Address,
    pub(super) size: Bytes,
    /// What the caller asked for; stale while the block is free, as in PyTorch's snapshots.
    pub(super) requested: Bytes,
    /// The searches of its pool when it last became free: how old it is to the garbage collection.
    pub(super) free_since: u64,
    /// The blocks that end where this one starts and start where it ends, in the same segment.
    pub(super) prev: Option<BlockId>,
    pub(super) next: Option<BlockId>,
    /// The expandable segment it lies in; `None` in one that came whole from the source.
    pub(super) reservation: Option<ReservationId>,
    pub(super) home: PoolKey,
    pub(super) state: State,
    /// Whether other streams than its own were seen to use it since it was handed out.
    pub(super) shared: bool,
}

impl Block {
    /// A whole segment or reservation, in no set yet.
    pub(super) fn whole(address: Address, size: Bytes, home: PoolKey, state: State) -> Block {
        Block {
            address,
            size,
            requested: Bytes::ZERO,
            free_since: 0,
            prev: None,
            next: None,
            reservation: None,
            home,
            state,
            shared: false,
        }
    }

    /// The end of the block.
    pub(super) fn end(&self) -> Address {
        self.address.offset(self.size)
    }

    /// Whether the segment has other blocks. PyTorch's `is_split`.
    #[inline]
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
        let home = PoolKey {
            stream: StreamIndex::DEFAULT,
            pool: PoolKind::Small,
        };
        let unused = Block::whole(Address(0), Bytes::ZERO, home, State::Vacant);
        Blocks {
            slots: vec![unused],
            vacant: Vec::new(),
        }
    }
}

impl Blocks {
    #[inline]
    pub(super) fn add(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.index()] = block;
            return id;
        }
        let id = BlockId::from_index(self.slots.len());
        if self.slots.len() == self.slots.capacity() {
            // Half as much again, where a `Vec` would double: a block costs 84 bytes at most.
            self.slots.reserve_exact(self.slots.len() / 2 + 64);
        }
        self.slots.push(block);
        id
    }

    #[inline]
    pub(super) fn remove(&mut self, id: BlockId) {
        self.slots[id.index()].state = State::Vacant;
        self.vacant.push(id);
    }

    /// Cuts the first `size` bytes off a block and returns them as a block of their own.
    ///
    /// The remainder keeps its id, as it keeps its object in PyTorch.
    #[inline]
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
    #[inline]
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

    /// Every block, in no particular order, and slots that belong to none.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Block> + '_ {
        self.slots.iter_mut()
    }

    /// Forgets all blocks and keeps the room for them.
    pub(super) fn clear(&mut self) {
        self.slots.truncate(1);
        self.vacant.clear();
    }
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.slots[id.index()]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slots[id.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_56_bytes() {
        assert_eq!(size_of::<Block>(), 56);
    }
}
