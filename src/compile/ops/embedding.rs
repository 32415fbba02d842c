//! `embedding` and the sort behind its gradient.

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::{Tensor, TensorBody};
use crate::graph::Extent;
use crate::program::{Capability, Kernel};

/// Up to so many indices the gradient is scattered directly; above, indices are sorted first.
const DIRECT: u64 = 3072;

impl Eager {
    /// `embedding(weight, indices)`.
    pub(in super::super) fn embedding(
        &mut self,
        weight: &Tensor,
        indices: &Tensor,
        padding: Option<u64>,
    ) -> Result<Tensor, Stop> {
        let mut draft = Draft::new(self, &[Some(weight)]);
        draft.save(self, "indices", indices)?;
        let mut shape = indices.shape.clone();
        shape.push(weight.shape[1]);
        // Indices that are not contiguous, such as expanded positions, are copied for the look-up.
        let dense = self.dense_copy(indices);
        let y = self.empty(&shape, weight.dtype);
        self.launch(Kernel::Embedding, &[weight, &dense], &[&y]);
        drop(dense);
        let table = weight.shape.clone();
        let [y] = draft.finish(self, [y], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None];
            };
            let gradient = eager.dense_copy(gradient);
            let indices = eager.dense_copy(saved.get("indices"));
            vec![Some(eager.embedding_grad(
                [&gradient, &indices],
                &table,
                padding,
            ))]
        });
        Ok(y)
    }

    /// See Note [Embedding gradient] for the sequence and the measured sizes.
    fn embedding_grad(
        &mut self,
        [gradient, indices]: [&Tensor; 2],
        table: &[Extent],
        padding: Option<u64>,
    ) -> Tensor {
        let (count, card) = (indices.numel(), self.capability);
        let fixed = |length: Extent| length.as_fixed().expect("a table has a fixed size");
        let (rows, width) = (fixed(table[0]), fixed(table[1]));
        // A buffer of the sorted path: so many bytes, or none where the path is not taken.
        let buffer = |eager: &mut Eager, bytes: fn(Sort) -> u64| {
            eager.scratch_by("embedding sort", move |batch| {
                let sort = Sort {
                    indices: count.at(batch),
                    rows,
                    width,
                    card,
                };
                if sort.indices <= DIRECT {
                    0
                } else {
                    bytes(sort)
                }
            })
        };
        let emit = |eager: &mut Eager, result: &TensorBody| {
            let kernel = Kernel::EmbeddingGrad { padding };
            eager.launch(kernel, &[gradient, indices], &[result]);
        };
        let sorted = buffer(self, |sort| 8 * sort.indices);
        let original = buffer(self, |sort| 8 * sort.indices);
        let iota = buffer(self, |sort| 8 * sort.indices);
        drop(buffer(self, |sort| radix_bytes(&sort.card, sort.indices)));
        drop(iota);
        let result = self.empty(table, gradient.dtype);
        let offsets = buffer(self, |sort| 8 * sort.indices);
        let unique = buffer(self, |_| 8);
        let dummy = buffer(self, |sort| 8 * sort.indices);
        drop(buffer(self, |sort| {
            distinct_bytes(&sort.card, sort.indices)
        }));
        drop(dummy);
        let per_segment = buffer(self, |sort| 8 * sort.segments());
        let segment_offsets = buffer(self, |sort| 8 * sort.segments());
        drop(buffer(self, |sort| match sort.segments() {
            ..=10_240 => 1279,
            10_241..=28_672 => 1535,
            28_673..=40_960 => 1791,
            segments => 2047 + (segments.saturating_sub(50_000)) / 63,
        }));
        let partial_count = buffer(self, |_| 8);
        let partial_offsets = buffer(self, |sort| 8 * sort.partials());
        let partials = buffer(self, |sort| {
            // Few rows are summed another way: so it was with 200 rows on all cards but one of 40
            // multiprocessors, and with 514 on none.
            if sort.rows <= 2 * sort.card.multiprocessors {
                8 * sort.partials()
            } else {
                4 * sort.width * sort.partials()
            }
        });
        emit(self, &result);
        drop(partials);
        drop(partial_offsets);
        drop(partial_count);
        drop(segment_offsets);
        drop(per_segment);
        drop(unique);
        drop(offsets);
        drop(original);
        drop(sorted);
        Tensor::new(result)
    }
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

/// Elements whose sort was measured, and the buffers of the radix sort and of the count of distinct keys
/// that it took: on compute capability 7.5, on 8.0, and on 9.0, 10.0 and 12.0, which agree in all but the
/// last two counts.
const MEASURED: [(u64, [u64; 3], [u64; 3]); 16] = [
    (3_073, [68_607, 67_583, 67_583], [1_279, 1_279, 1_279]),
    (4_096, [84_479, 84_479, 83_455], [1_279, 1_279, 1_279]),
    (6_144, [118_271, 117_247, 117_247], [1_535, 1_279, 1_279]),
    (8_192, [151_039, 151_039, 150_015], [1_535, 1_279, 1_279]),
    (9_216, [168_447, 167_423, 166_399], [1_535, 1_279, 1_279]),
    (10_240, [184_831, 183_807, 183_807], [1_535, 1_279, 1_279]),
    (12_288, [218_623, 217_599, 216_575], [1_791, 1_279, 1_279]),
    (16_384, [285_183, 284_159, 283_135], [2_047, 1_279, 1_279]),
    (20_480, [352_767, 350_719, 349_695], [2_047, 1_279, 1_279]),
    (24_576, [419_327, 417_279, 416_255], [2_303, 1_279, 1_279]),
    (27_136, [461_311, 459_263, 457_215], [2_559, 1_279, 1_279]),
    (32_768, [553_471, 550_399, 549_375], [2_815, 1_535, 1_279]),
    (50_000, [835_583, 831_487, 828_415], [3_583, 1_535, 1_279]),
    (
        65_536,
        [1_090_047, 1_083_903, 1_080_831],
        [4_351, 1_791, 1_279],
    ),
    (
        131_072,
        [2_162_175, 2_149_887, 2_143_743],
        [7_679, 2_303, 1_535],
    ),
    (
        262_144,
        [4_307_455, 4_281_855, 4_269_567],
        [14_335, 3_583, 2_047],
    ),
];

/// Which column of [`MEASURED`] is this card's.
fn column(card: &Capability) -> usize {
    match card.compute.0 {
        ..=7 => 0,
        8 => 1,
        _ => 2,
    }
}

/// The radix sort's buffer for so many int64 keys and values, interpolated between measured points (it
/// grows by about 16 bytes an element).
pub(super) fn radix_bytes(card: &Capability, count: u64) -> u64 {
    let column = column(card);
    let points = MEASURED.map(|(elements, radix, _)| (elements, radix[column]));
    let (from, to) = match points.iter().position(|(n, _)| *n >= count) {
        Some(0) => return points[0].1,
        Some(i) => (points[i - 1], points[i]),
        None => (points[points.len() - 2], points[points.len() - 1]),
    };
    from.1 + (to.1 - from.1) * (count - from.0) / (to.0 - from.0)
}

/// The buffer with which distinct keys are counted.
fn distinct_bytes(card: &Capability, count: u64) -> u64 {
    let column = column(card);
    let measured = MEASURED.iter().find(|(elements, ..)| *elements >= count);
    measured.unwrap_or(&MEASURED[MEASURED.len() - 1]).2[column]
}
