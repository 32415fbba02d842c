//! `embedding` and the sort behind its gradient.

use crate::ops::prelude::*;
use crate::program::Capability;

/// Up to so many indices the gradient is scattered directly; above, indices are sorted first.
const DIRECT: u64 = 3072;

impl Eager {
    /// `embedding(weight, indices)`.
    pub fn embedding(&mut self, weight: &Tensor, indices: &Tensor, padding: Option<u64>) -> Output {
        let mut draft = OpRecord::new(self, &[Some(weight)]);
        draft.save(self, "indices", indices)?;
        let mut shape = indices.shape.to_vec();
        shape.push(weight.shape[1]);
        // Indices that are not contiguous, such as expanded positions, are copied for the look-up.
        let dense = self.dense_copy(indices);
        let y = self.empty(&shape, weight.dtype);
        self.launch(Kernel::Embedding, &[weight, &dense], &[&y]);
        drop(dense);
        let table = weight.shape.clone();
        Ok(draft.finish_single(self, y, move |eager, gradient, saved| {
            let gradient = eager.dense_copy(gradient);
            let indices = eager.dense_copy(saved.get("indices"));
            let kernel = Kernel::EmbeddingGrad { padding };
            let inputs = [&*gradient, &*indices];
            vec![Some(eager.embedding_grad(
                (&indices, &inputs),
                &table,
                (kernel, Path::ByCount),
            ))]
        }))
    }

    /// The gradient of `embedding_bag`'s weight: `embedding_bag_backward_cuda_sum_avg` sorts any number of indices.
    pub fn embedding_bag_grad(
        &mut self,
        [gradient, indices]: [&Tensor; 2],
        more: &[&Tensor],
        (kernel, table): (Kernel, &[Extent]),
    ) -> Tensor {
        let mut inputs: Vec<&TensorBody> = vec![gradient, indices];
        inputs.extend(more.iter().map(|tensor| &***tensor));
        self.embedding_grad((indices, &inputs), table, (kernel, Path::Sorted))
    }

    /// See Note [Embedding gradient] for the sequence and the measured sizes.
    fn embedding_grad(
        &mut self,
        (indices, inputs): (&Tensor, &[&TensorBody]),
        table: &[Extent],
        (kernel, path): (Kernel, Path),
    ) -> Tensor {
        let (count, card) = (indices.numel(), self.capability);
        let fixed = |length: Extent| length.as_fixed().expect("a table has a fixed size");
        let (rows, width) = (fixed(table[0]), fixed(table[1]));
        // A buffer of the sorted path: so many bytes, or none where the path is not taken.
        let buffer = |eager: &mut Eager, bytes: fn(Sort) -> u64| {
            let of = (count, [rows, width], card, path, bytes);
            eager.scratch_by(
                "embedding sort",
                of,
                |&(count, [rows, width], card, path, bytes), batch| {
                    let sort = Sort {
                        indices: count.at(batch),
                        rows,
                        width,
                        card,
                    };
                    if sort.indices <= DIRECT && path == Path::ByCount {
                        0
                    } else {
                        bytes(sort)
                    }
                },
            )
        };
        let _sorted = buffer(self, |sort| 8 * sort.indices);
        let _original = buffer(self, |sort| 8 * sort.indices);
        let iota = buffer(self, |sort| 8 * sort.indices);
        drop(buffer(self, |sort| {
            radix_bytes(&sort.card, sort.indices, ALL_BITS)
        }));
        drop(iota);
        let result = self.empty(table, inputs[0].dtype);
        let _offsets = buffer(self, |sort| 8 * sort.indices);
        let _unique = buffer(self, |_| 8);
        let dummy = buffer(self, |sort| 8 * sort.indices);
        drop(buffer(self, |sort| {
            distinct_bytes(&sort.card, sort.indices)
        }));
        drop(dummy);
        let _per_segment = buffer(self, |sort| 8 * sort.segments());
        let _segment_offsets = buffer(self, |sort| 8 * sort.segments());
        drop(buffer(self, |sort| match sort.segments() {
            ..=10_240 => 1279,
            10_241..=28_672 => 1535,
            28_673..=40_960 => 1791,
            segments => 2047 + (segments.saturating_sub(50_000)) / 63,
        }));
        let _partial_count = buffer(self, |_| 8);
        let _partial_offsets = buffer(self, |sort| 8 * sort.partials());
        let _partials = buffer(self, |sort| {
            // Few rows are summed another way: so it was with 200 rows on all cards but one of 40
            // multiprocessors, and with 514 on none.
            if sort.rows <= 2 * sort.card.multiprocessors && sort.indices > DIRECT {
                8 * sort.partials()
            } else {
                4 * sort.width * sort.partials()
            }
        });
        if path == Path::Sorted {
            self.launch(Kernel::Fill(0.0), &[], &[&result]);
        }
        self.computed(result, kernel, inputs)
    }
}

/// When indices are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Path {
    /// Where there are many.
    ByCount,
    /// Always.
    Sorted,
}

/// Sizes of the sorted path.
#[derive(Clone, Copy)]
struct Sort {
    indices: u64,
    rows: u64,
    width: u64,
    card: Capability,
}

impl Sort {
    /// Most distinct indices.
    fn segments(self) -> u64 {
        self.indices.min(self.rows)
    }

    /// Most partial sums: one for each ten indices, and one for each distinct index.
    fn partials(self) -> u64 {
        self.indices / 10 + self.segments()
    }
}

/// Elements whose distinct keys were counted, and the buffer that it took: on compute capability 7.5, on 8.0,
/// and on 9.0, 10.0 and 12.0, which agree in all but the last two.
const DISTINCT: [(u64, [u64; 3]); 16] = [
    (3_073, [1_279, 1_279, 1_279]),
    (4_096, [1_279, 1_279, 1_279]),
    (6_144, [1_535, 1_279, 1_279]),
    (8_192, [1_535, 1_279, 1_279]),
    (9_216, [1_535, 1_279, 1_279]),
    (10_240, [1_535, 1_279, 1_279]),
    (12_288, [1_791, 1_279, 1_279]),
    (16_384, [2_047, 1_279, 1_279]),
    (20_480, [2_047, 1_279, 1_279]),
    (24_576, [2_303, 1_279, 1_279]),
    (27_136, [2_559, 1_279, 1_279]),
    (32_768, [2_815, 1_535, 1_279]),
    (50_000, [3_583, 1_535, 1_279]),
    (65_536, [4_351, 1_791, 1_279]),
    (131_072, [7_679, 2_303, 1_535]),
    (262_144, [14_335, 3_583, 2_047]),
];

/// Which column of a table by compute capability is this card's.
fn column(card: &Capability) -> usize {
    match card.compute.0 {
        ..=7 => 0,
        8 => 1,
        _ => 2,
    }
}

/// The buffer with which distinct keys are counted.
fn distinct_bytes(card: &Capability, count: u64) -> u64 {
    let column = column(card);
    let measured = DISTINCT.iter().find(|(elements, _)| *elements >= count);
    measured.unwrap_or(&DISTINCT[DISTINCT.len() - 1]).1[column]
}

/// Bits of an int64 key that is not known to be small.
pub const ALL_BITS: u64 = 64;
/// Bits that one pass of the sort looks at.
const BITS_OF_A_PASS: u64 = 8;
/// Up to so many keys one block sorts them, in no buffer to speak of.
const SINGLE_TILE: u64 = 2304;
/// Keys of a block, by [`column`].
const TILE: [u64; 3] = [2816, 3840, 4608];

/// The buffer of CUB's one-sweep radix sort of so many int64 keys, by their lowest `bits`, with int64 values.
///
/// The sum of what `DispatchRadixSort::InvokeOnesweep` asks for, each part in whole 256 bytes: a histogram for
/// each pass, what blocks tell each other, and second buffers of keys and values where there is a second pass.
/// It equals every size measured with PyTorch 2.11 on compute capability 7.5, 8.0, 9.0, 10.0 and 12.0, from
/// 2,049 to 1,000,000 keys of 7 to 64 bits.
pub fn radix_bytes(card: &Capability, count: u64, bits: u64) -> u64 {
    if count <= SINGLE_TILE {
        return 1;
    }
    let tile = TILE[column(card)];
    let passes = bits.div_ceil(BITS_OF_A_PASS).max(1);
    // Portions of keys that 32-bit counters can tell apart.
    let portion = ((1 << 28) - 1) / tile * tile;
    let portions = count.div_ceil(portion);
    let digits = 1 << BITS_OF_A_PASS;
    let histograms = portions * passes * digits * 8;
    let between_blocks = count.min(portion).div_ceil(tile) * digits * 4;
    let second = if passes > 1 {
        2 * aligned(8 * count)
    } else {
        0
    };
    let counters = aligned(portions * passes * 4);
    histograms + between_blocks + second + counters + 255
}

/// In whole 256 bytes.
fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(major: u32, minor: u32) -> Capability {
        Capability {
            compute: (major, minor),
            multiprocessors: 132,
            threads_per_multiprocessor: 2048,
        }
    }

    /// Read off the allocator's history, with PyTorch 2.11.
    #[test]
    fn a_sorts_buffer_is_what_pytorch_was_seen_to_take() {
        let measured = [
            (card(9, 0), 2_304, 10, 1),
            (card(9, 0), 2_305, 7, 3_583),
            (card(9, 0), 30_000, 10, 492_031),
            (card(9, 0), 1_000_000, 7, 225_791),
            (card(9, 0), 1_000_000, 17, 16_229_887),
            (card(9, 0), 3_073, ALL_BITS, 67_583),
            (card(9, 0), 262_144, ALL_BITS, 4_269_567),
            (card(8, 0), 1_000_000, 25, 16_275_967),
            (card(8, 0), 50_000, ALL_BITS, 831_487),
            (card(7, 5), 3_000, 7, 4_607),
            (card(7, 5), 131_072, ALL_BITS, 2_162_175),
        ];
        for (card, count, bits, bytes) in measured {
            assert_eq!(
                radix_bytes(&card, count, bits),
                bytes,
                "{count} keys of {bits} bits"
            );
        }
    }
}
