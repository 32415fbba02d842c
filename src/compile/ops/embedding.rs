//! `embedding` and the sort behind its gradient.

use super::super::autograd::Draft;
use super::super::eager::{Eager, Stop};
use super::super::tensor::{Tensor, TensorBody};
use crate::graph::Extent;
use crate::program::Kernel;

/// Up to so many indices the gradient is scattered directly; above, indices are sorted first.
const DIRECT: u64 = 3072;

impl Eager {
    /// `embedding(weight, indices)`.
    pub(in super::super) fn embedding(
        &mut self,
        weight: &Tensor,
        indices: &Tensor,
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
            vec![Some(eager.embedding_grad(&gradient, &indices, &table))]
        });
        Ok(y)
    }

    /// See Note [Embedding gradient] for the sequence and the measured sizes.
    fn embedding_grad(&mut self, gradient: &Tensor, indices: &Tensor, table: &[Extent]) -> Tensor {
        let count = indices.numel();
        let fixed = |length: Extent| length.as_fixed().expect("a table has a fixed size");
        let (rows, width) = (fixed(table[0]), fixed(table[1]));
        // A buffer of the sorted path: so many bytes, or none where the path is not taken.
        let buffer = |eager: &mut Eager, bytes: fn(Sort) -> u64| {
            eager.scratch_by("embedding sort", move |batch| {
                let sort = Sort {
                    indices: count.at(batch),
                    rows,
                    width,
                };
                if sort.indices <= DIRECT {
                    0
                } else {
                    bytes(sort)
                }
            })
        };
        let emit = |eager: &mut Eager, result: &TensorBody| {
            eager.launch(Kernel::EmbeddingGrad, &[gradient, indices], &[result]);
        };
        let sorted = buffer(self, |sort| 8 * sort.indices);
        let original = buffer(self, |sort| 8 * sort.indices);
        let iota = buffer(self, |sort| 8 * sort.indices);
        drop(buffer(self, |sort| radix_bytes(sort.indices)));
        drop(iota);
        let result = self.empty(table, gradient.dtype);
        let offsets = buffer(self, |sort| 8 * sort.indices);
        let unique = buffer(self, |_| 8);
        let dummy = buffer(self, |sort| 8 * sort.indices);
        drop(buffer(self, |_| 1279));
        drop(dummy);
        let per_segment = buffer(self, |sort| 8 * sort.segments());
        let segment_offsets = buffer(self, |sort| 8 * sort.segments());
        drop(buffer(self, |sort| {
            if sort.segments() > 10_240 { 1535 } else { 1279 }
        }));
        let partial_count = buffer(self, |_| 8);
        let partial_offsets = buffer(self, |sort| 8 * sort.partials());
        let partials = buffer(self, |sort| {
            if sort.rows <= 100 {
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

/// The radix sort's buffer for so many int64 keys and values, interpolated between measured points (it
/// grows by about 16 bytes an element).
pub(super) fn radix_bytes(count: u64) -> u64 {
    const MEASURED: [(u64, u64); 13] = [
        (3_073, 67_583),
        (4_096, 83_455),
        (6_144, 117_247),
        (8_192, 150_015),
        (9_216, 166_399),
        (10_240, 183_807),
        (16_384, 283_135),
        (20_480, 349_695),
        (27_136, 457_215),
        (32_768, 549_375),
        (65_536, 1_080_831),
        (131_072, 2_143_743),
        (262_144, 4_269_567),
    ];
    let after = MEASURED.iter().position(|(n, _)| *n >= count);
    let (from, to) = match after {
        Some(0) => return MEASURED[0].1,
        Some(i) => (MEASURED[i - 1], MEASURED[i]),
        None => (MEASURED[11], MEASURED[12]),
    };
    from.1 + (to.1 - from.1) * (count - from.0) / (to.0 - from.0)
}
