//! What `DistributedDataParallel` sends when it is made: shapes to compare, parameters and buffers.

use std::collections::VecDeque;
use std::ops::Range;

use super::buckets::{Member, by_first, parts, places};
use super::ddp::{announce, member, part_like, send_from};
use crate::eager::{Eager, Tensor, TensorBody};
use crate::program::{Collective, Kernel};
use crate::shape::{DType, Extent};

const MIB: u64 = 1 << 20;

/// How large the messages are in which parameters and buffers are sent (`broadcast_bucket_size` in
/// torch/nn/parallel/distributed.py).
const BROADCAST: u64 = 250 * MIB;

/// Ranks of which each one's tensor is told apart where shapes are compared: what they take fills a segment of small tensors
/// (`kSmallBuffer` in c10/core/AllocatorConfig.h), and whatever others had left.
const EACH: u64 = 2 * MIB / LEAST;

/// So many of these tensors are as large as the largest small one (`kSmallSize`).
const OF_A_BLOCK: u64 = MIB / LEAST;

/// The least that a tensor takes (`kMinBlockSize`).
const LEAST: u64 = 512;

/// `_verify_param_shape_across_processes`: counts of parameters are gathered into a list, then all their lengths and strides
/// are sent.
pub(super) fn compare_shapes(eager: &mut Eager, ranks: u64, dimensions: u64) {
    let input = eager.scratch(8);
    let _outputs: Vec<_> = lists(ranks).map(|bytes| eager.scratch(bytes)).collect();
    let counts = eager.scratch(8 * ranks);
    let count = TensorBody::over(&input, &[Extent::ONE], DType::Int64);
    let gathered = TensorBody::over(&counts, &[Extent::fixed(ranks)], DType::Int64);
    eager.launch(Kernel::Fill(0.0), &[], &[&count]);
    let gather = Kernel::Collective(Collective::AllGather);
    eager.launch(gather, &[&count], &[&gathered]);
    drop((gathered, counts, count));
    let shapes = eager.scratch(8 * 2 * dimensions);
    announce(eager, &shapes, 2 * dimensions, DType::Int64);
}

/// What the counts of so many ranks are gathered into: a tensor of 8 bytes for each, of which beyond [`EACH`] as many are one as fill a block
/// of the same pool. Both take the same bytes, but for what of the pool's last segment is too small for such a block.
fn lists(ranks: u64) -> impl Iterator<Item = u64> {
    let each = ranks.min(EACH);
    let (blocks, rest) = ((ranks - each) / OF_A_BLOCK, (ranks - each) % OF_A_BLOCK);
    let whole = (0..blocks).map(|_| OF_A_BLOCK * LEAST);
    (0..each)
        .map(|_| 8)
        .chain(whole)
        .chain((0..rest).map(|_| 8))
}

/// `broadcast_coalesced` (torch/csrc/distributed/c10d/comm.cpp): a message for each part, of which two are under way.
pub(super) fn broadcast(eager: &mut Eager, tensors: &[Tensor]) {
    let members: Vec<Member> = tensors.iter().map(|tensor| member(tensor)).collect();
    let mut under_way = VecDeque::new();
    for part in by_first(parts(&members, &[BROADCAST])) {
        // A message of one tensor is that tensor.
        if let [only] = &*part {
            send_from(eager, 0, &tensors[*only]);
            under_way.push_back(None);
        } else {
            let places = places(&members, &part);
            let elements = Extent::fixed(places.last().map_or(0, |place| place.end));
            let dtype = members[part[0]].dtype;
            let storage = eager.scratch_of(elements, dtype);
            let flat = TensorBody::over(&storage, &[elements], dtype);
            for (index, place) in part.iter().zip(&places) {
                let view = part_like(&tensors[*index], &flat, place.start);
                eager.launch(Kernel::Copy, &[&tensors[*index]], &[&view]);
            }
            send_from(eager, 0, &flat);
            under_way.push_back(Some(Message { flat, places, part }));
        }
        if under_way.len() > 2 {
            under_way
                .pop_front()
                .flatten()
                .into_iter()
                .for_each(|message| message.arrive(eager, tensors));
        }
    }
    for message in under_way.into_iter().flatten() {
        message.arrive(eager, tensors);
    }
}

/// Tensors that are sent together.
struct Message {
    flat: TensorBody,
    places: Vec<Range<u64>>,
    part: Vec<usize>,
}

impl Message {
    /// Copies what was sent to where it belongs.
    fn arrive(self, eager: &mut Eager, tensors: &[Tensor]) {
        for (index, place) in self.part.iter().zip(&self.places) {
            let view = part_like(&tensors[*index], &self.flat, place.start);
            eager.launch(Kernel::Copy, &[&view], &[&tensors[*index]]);
        }
    }
}
