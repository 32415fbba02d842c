//! `embedding_bag`: rows of a table that are summed bag by bag.

use std::rc::Rc;

use serde::Serialize;

use crate::aten::Arguments;
use crate::eager::{Draft, Eager, Stop, Tensor};
use crate::ops::{Context, Operator, Read, Reader};
use crate::program::Kernel;
use crate::shape::{Extent, Mismatch, Type};

/// `embedding_bag(weight, indices, offsets[, per_sample_weights])`. Results: the bags, which bag each index is in,
/// how many each has, and where each largest element was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct EmbeddingBag {
    /// What becomes of the rows of a bag.
    pub mode: Mode,
    /// Whether the last offset is the end of the last bag.
    pub include_last: bool,
}

/// What becomes of the rows of a bag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Mode {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest element of each column.
    Max,
}

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[
    ("aten.embedding_bag.default", read),
    ("aten.embedding_bag.padding_idx", read),
    ("aten._embedding_bag.default", read),
];

fn read(args: &Arguments<'_>) -> Result<Read, String> {
    args.absent("sparse").map_err(
        |_| "its gradient is sparse, whose memory depends on values; leave out sparse=True",
    )?;
    args.absent("scale_grad_by_freq")?;
    let mode = match args.int("mode", Some(0))? {
        0 => Mode::Sum,
        1 => Mode::Mean,
        2 => Mode::Max,
        other => return Err(format!("its mode is {other}")),
    };
    let include_last = args.flag("include_last_offset", false)?;
    let operands = args.all_and(&["weight", "indices", "offsets"], &["per_sample_weights"])?;
    Ok((EmbeddingBag { mode, include_last }.into(), operands))
}

impl Operator for EmbeddingBag {
    fn name(&self) -> &'static str {
        "embedding_bag"
    }

    fn arity(&self) -> (usize, usize) {
        (3, 4)
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let ((dtype, weight), (whole, indices)) = (&operands[0], &operands[1]);
        let ([_, width], [count], [offsets]) = (&weight[..], &indices[..], &operands[2].1[..])
        else {
            return Err("the weight is no matrix, or indices and offsets are no vectors".into());
        };
        let bags = if self.include_last {
            offsets
                .checked_sub(Extent::ONE)
                .ok_or("it has no offsets")?
        } else {
            *offsets
        };
        let largest = match self.mode {
            Mode::Max => vec![bags, *width],
            Mode::Sum | Mode::Mean => vec![Extent::ZERO],
        };
        Ok(vec![
            (*dtype, vec![bags, *width]),
            (*whole, vec![*count]),
            (*whole, vec![bags]),
            (*whole, largest),
        ])
    }

    fn run(
        &self,
        eager: &mut Eager,
        operands: &[Tensor],
        context: &Context<'_>,
    ) -> Result<Vec<Tensor>, Stop> {
        eager.embedding_bag(self.mode, operands, context.results)
    }
}

impl Eager {
    /// `_embedding_bag_cuda`. The gradient of the weight sorts indices as that of `embedding` does for many, but
    /// for the largest elements, which are written where they were.
    fn embedding_bag(
        &mut self,
        mode: Mode,
        operands: &[Tensor],
        results: &[Vec<Extent>],
    ) -> Result<Vec<Tensor>, Stop> {
        let (weight, indices, offsets) = (&operands[0], &operands[1], &operands[2]);
        let scales = operands.get(3);
        let wants = [
            weight.requires_grad(),
            scales.is_some_and(|scales| scales.requires_grad()),
        ];
        let mut draft = Draft::new(self, &[Some(weight), scales]);
        draft.save(self, "indices", indices)?;
        draft.save(self, "offsets", offsets)?;
        if let Some(scales) = scales {
            draft.save(self, "per_sample_weights", scales)?;
        }
        if wants[1] {
            draft.save(self, "weight", weight)?;
        }
        let whole = indices.dtype;
        let sizes = Tensor::new(self.empty(&results[2], whole));
        let bags_of = Tensor::new(self.empty(&results[1], whole));
        let bags = self.empty(&results[0], weight.dtype);
        let largest = Tensor::new(self.empty(&results[3], whole));
        let inputs = [&**weight, &**indices, &**offsets];
        self.launch(Kernel::MemoryOnly("embedding_bag"), &inputs, &[&bags]);
        draft.save(self, "offset2bag", &bags_of)?;
        draft.save(self, "bag_size", &sizes)?;
        draft.save(self, "maximum_indices", &largest)?;
        let table = weight.shape.clone();
        let [bags] = draft.finish(self, [bags], move |eager, gradients, saved| {
            let Some(gradient) = &gradients[0] else {
                return vec![None, None];
            };
            let gradient = eager.dense_copy(gradient);
            let indices = saved.get("indices");
            let of_scales = wants[1].then(|| {
                let of_scales = eager.empty(&indices.shape, gradient.dtype);
                let inputs = [&*gradient, saved.get("weight"), indices];
                eager.launch(Kernel::MemoryOnly("embedding_bag"), &inputs, &[&of_scales]);
                Rc::new(of_scales)
            });
            let of_weight = wants[0].then(|| match mode {
                Mode::Sum | Mode::Mean => {
                    let indices = eager.dense_copy(indices);
                    eager.embedding_bag_grad([&gradient, &indices], &table)
                }
                Mode::Max => {
                    let zeros = eager.empty(&table, gradient.dtype);
                    eager.launch(Kernel::MemoryOnly("embedding_bag"), &[&gradient], &[&zeros]);
                    Rc::new(zeros)
                }
            });
            vec![of_weight, of_scales]
        });
        Ok(vec![bags, bags_of, sizes, largest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::DType;

    #[test]
    fn the_last_offset_may_end_the_last_bag() {
        let operands = [
            (DType::Float32, vec![Extent::fixed(12), Extent::fixed(24)]),
            (DType::Int64, vec![Extent::per_sample(12)]),
            (DType::Int64, vec![Extent::BATCH + Extent::ONE]),
        ];
        let bag = EmbeddingBag {
            mode: Mode::Max,
            include_last: true,
        };

        let results = bag.infer(&operands).unwrap();

        assert_eq!(results[0].1, [Extent::BATCH, Extent::fixed(24)]);
        assert_eq!(results[3], (DType::Int64, results[0].1.clone()));
    }
}
