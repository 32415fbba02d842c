//! Streams, and the blocks that wait for them. See Note [Streams].

use std::collections::{BTreeMap, VecDeque};

use super::block::BlockId;

/// A stream, by the handle that PyTorch's traces show. Zero is the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stream(pub u64);

/// A stream by the order in which it was first used to allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamIndex(u32);

impl StreamIndex {
    /// The default stream, which always exists.
    pub(super) const DEFAULT: StreamIndex = StreamIndex(0);

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The streams that were ever used to allocate.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    /// By index. The first is the default stream.
    known: Vec<Stream>,
    /// In the order of their handles, which is PyTorch's order of free blocks.
    ordered: Vec<StreamIndex>,
}

impl Default for Streams {
    fn default() -> Self {
        Streams {
            known: vec![Stream::default()],
            ordered: vec![StreamIndex::DEFAULT],
        }
    }
}

impl Streams {
    pub(super) fn find(&self, stream: Stream) -> Option<StreamIndex> {
        let mut ordered = self.ordered.iter().copied();
        ordered.find(|index| self.of(*index) == stream)
    }

    /// Adds a stream that is not known yet.
    pub(super) fn add(&mut self, stream: Stream) -> StreamIndex {
        let index = u32::try_from(self.known.len()).expect("fewer than 2^32 streams exist");
        self.known.push(stream);
        let before = |other: &StreamIndex| self.known[other.index()] < stream;
        let at = self.ordered.partition_point(before);
        self.ordered.insert(at, StreamIndex(index));
        StreamIndex(index)
    }

    pub(super) fn of(&self, index: StreamIndex) -> Stream {
        self.known[index.index()]
    }

    /// All of them, by handle.
    pub(super) fn ordered(&self) -> &[StreamIndex] {
        &self.ordered
    }
}

/// What other streams use, and what was freed before they were done with it.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    /// The streams that each shared block was recorded on, in that order.
    uses: BTreeMap<BlockId, Vec<Stream>>,
    /// The events of each stream, in the order in which they were recorded.
    queues: BTreeMap<Stream, Queue>,
    /// How many events each freed block still waits for.
    events: BTreeMap<BlockId, usize>,
}

/// A stream works in order, so what has passed is always the front of its queue.
#[derive(Debug, Clone, Default)]
struct Queue {
    blocks: VecDeque<BlockId>,
    /// How many of them the stream has passed.
    passed: usize,
}

impl Waiting {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Notes that `stream` uses a live block.
    pub(super) fn record(&mut self, id: BlockId, stream: Stream) {
        let uses = self.uses.entry(id).or_default();
        if !uses.contains(&stream) {
            uses.push(stream);
        }
    }

    /// Queues an event on every stream that uses the block, which is being freed.
    pub(super) fn wait(&mut self, id: BlockId) {
        let uses = self.uses.remove(&id).unwrap_or_default();
        self.events.insert(id, uses.len());
        for stream in uses {
            self.queues.entry(stream).or_default().blocks.push_back(id);
        }
    }

    /// Notes that a stream has done everything it was given.
    pub(super) fn complete(&mut self, stream: Stream) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.passed = queue.blocks.len();
        }
    }

    pub(super) fn complete_all(&mut self) {
        for queue in self.queues.values_mut() {
            queue.passed = queue.blocks.len();
        }
    }

    /// Takes the events that have passed, stream by stream, and gives the blocks that have none left, in
    /// that order.
    pub(super) fn take_done(&mut self) -> Vec<BlockId> {
        let mut done = Vec::new();
        for queue in self.queues.values_mut() {
            for id in queue.blocks.drain(..queue.passed) {
                let events = self.events.get_mut(&id);
                let events = events.expect("a queued block waits for at least one event");
                *events -= 1;
                if *events == 0 {
                    self.events.remove(&id);
                    done.push(id);
                }
            }
            queue.passed = 0;
        }
        self.queues.retain(|_, queue| !queue.blocks.is_empty());
        done
    }

    pub(super) fn clear(&mut self) {
        *self = Waiting::default();
    }
}
