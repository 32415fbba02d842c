//! `embedding_bag`: rows of a table that are summed bag by bag.

use std::rc::Rc;

use crate::ops::placing::{self, Combine, Places, Written};
use crate::ops::prelude::*;

/// `embedding_bag(weight, indices, offsets[, per_sample_weights])`.
#[derive(Debug, Clone, Copy)]
struct EmbeddingBag {
    /// What becomes of the rows of a bag.
    mode: Mode,
    /// Whether the last offset is the end of the last bag.
    include_last: bool,
    /// The row that counts for nothing.
    padding: Option<i64>,
}

/// What becomes of the rows of a bag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest element of each column.
    Max,
}

pub(in crate::ops) const ATEN: &[(&str, Reader)] = &[(
    "aten.embedding_bag.default aten.embedding_bag.padding_idx aten._embedding_bag.default",
    read,
)];

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
    let rows = args.shape(operands[0]).first().and_then(|n| n.as_fixed());
    let padding = match args.int("padding_idx", Some(-1))? {
        // Left out, it is -1; said, it may count from the end.
        index if index < 0 && args.target != "aten.embedding_bag.padding_idx" => None,
        index if index < 0 => rows.map(|rows| index.saturating_add_unsigned(rows)),
        index => Some(index),
    };
    let bag = EmbeddingBag {
        mode,
        include_last,
        padding: padding.filter(|_| args.has("padding_idx")),
    };
    let call = Function {
        name: "embedding_bag",
        arguments: bag,
        infer: results,
        run: |bag, eager, x, context| eager.embedding_bag(*bag, x, context.results),
    };
    // Where bags begin ascends from zero: bags that all begin there are valid.
    Ok(call.on_positions(operands, |_, x| vec![(1, x[0].1[0]), (2, Extent::ONE)]))
}

/// The bags, which bag each index is in, how many each has, and where each largest element was.
fn results(bag: &EmbeddingBag, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
    let ((dtype, weight), (whole, indices)) = (&operands[0], &operands[1]);
    let ([_, width], [count], [offsets]) = (&weight[..], &indices[..], &operands[2].1[..]) else {
        return Err("the weight is no matrix, or indices and offsets are no vectors".into());
    };
    let bags = if bag.include_last {
        offsets
            .checked_sub(Extent::ONE)
            .ok_or("it has no offsets")?
    } else {
        *offsets
    };
    let largest = match bag.mode {
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

impl Eager {
    /// `_embedding_bag_cuda`. The gradient of the weight sorts indices as that of `embedding` does for many, but
    /// for the largest elements, which are written where they were.
    fn embedding_bag(
        &mut self,
        bag: EmbeddingBag,
        operands: &[Tensor],
        results: &[Vec<Extent>],
    ) -> Outputs {
        let mode = bag.mode;
        let (weight, indices, offsets) = (&operands[0], &operands[1], &operands[2]);
        let scales = operands.get(3);
        let wants = [
            weight.requires_grad(),
            scales.is_some_and(|scales| scales.requires_grad()),
        ];
        let mut draft = OpRecord::new(self, &[Some(weight), scales]);
        draft.save(self, "indices", indices)?;
        draft.save(self, "offsets", offsets)?;
        draft.save(self, "per_sample_weights", scales)?;
        if wants[1] {
            draft.save(self, "weight", weight)?;
        }
        let whole = indices.dtype;
        let sizes = Tensor::new(self.empty(&results[2], whole));
        let bags_of = Tensor::new(self.empty(&results[1], whole));
        let bags = self.empty(&results[0], weight.dtype);
        let largest = Tensor::new(self.empty(&results[3], whole));
        self.launch(bag_of(bag), &[offsets], &[&bags_of]);
        let mut inputs = vec![&**weight, &**indices, &**offsets];
        inputs.extend(scales.map(|scales| &**scales));
        let mut outputs = vec![&bags, &*sizes];
        outputs.extend((mode == Mode::Max).then_some(&*largest));
        self.launch(bagged(bag, scales.is_some()), &inputs, &outputs);
        draft.save(self, "offset2bag", &bags_of)?;
        draft.save(self, "bag_size", &sizes)?;
        draft.save(self, "maximum_indices", &largest)?;
        let table = weight.shape.clone();
        let bags = draft.finish_single(self, bags, move |eager, gradient, saved| {
            let gradient = eager.dense_copy(gradient);
            let indices = saved.get("indices");
            let of_scales = wants[1].then(|| {
                let of_scales = eager.empty(&indices.shape, gradient.dtype);
                let bags = saved.get("offset2bag");
                let inputs = [&*gradient, saved.get("weight"), indices, bags];
                eager.computed(of_scales, of_scales_of(bag), &inputs)
            });
            let of_weight = wants[0].then(|| match mode {
                Mode::Sum | Mode::Mean => {
                    let indices = eager.dense_copy(indices);
                    let written = Written::Bags {
                        mean: mode == Mode::Mean,
                        scaled: mode == Mode::Sum && saved.find("per_sample_weights").is_some(),
                    };
                    let places = Places {
                        rows: vec![0],
                        shared: vec![(1, 1, "values.size(1)".into())],
                        ranks: [1, 2, 2],
                        ..Places::default()
                    };
                    let skipped = bag.padding.unwrap_or(i64::MIN);
                    let kernel = placing::by_owners(
                        "embedding_bag",
                        &places,
                        Combine::Add,
                        written,
                        skipped,
                    );
                    let mut further = vec![saved.get("offset2bag"), saved.get("bag_size")];
                    further.extend(saved.find("per_sample_weights"));
                    eager.embedding_bag_grad(
                        [&gradient, &indices],
                        &further,
                        (kernel.into(), &table),
                    )
                }
                Mode::Max => {
                    let zeros = eager.zeros(&table, gradient.dtype);
                    let added = (Combine::Add, Ok(&*gradient));
                    eager.scatter_along(&zeros, 0, saved.get("maximum_indices"), added);
                    Rc::new(zeros)
                }
            });
            vec![of_weight, of_scales]
        });
        Ok(vec![bags, bags_of, sizes, largest])
    }
}

/// Which bag each index is in: the last that begins at it or before.
fn bag_of(bag: EmbeddingBag) -> Generated {
    let body = "i64 low = 0, high = offsets.count() - includes_last;
    while (low < high) { const i64 middle = (low + high) / 2; if (offsets.flat(middle) <= (i64)i[0]) low = middle + 1; else high = middle; }
    bags.set_at(max_whole(low - 1, 0), i);";
    Generated::each("embedding_bag", ["offsets"], ["bags"], 1, body)
        .with("includes_last", i64::from(bag.include_last))
}

/// The bags, how many indices each has, and for the largest elements which row each is of: `EmbeddingBag_updateOutputKernel`.
fn bagged(bag: EmbeddingBag, scaled: bool) -> Generated {
    let scale = if scaled { " * (T)scales.flat(j)" } else { "" };
    let (take, finish) = match bag.mode {
        Mode::Max => (
            "if (count == 0 || value > sum) { sum = value; row = at; }",
            "largest.set_at(count > 0 ? row : -1, i);",
        ),
        Mode::Sum => ("sum += value;", ""),
        Mode::Mean => ("sum += value;", "if (count > 0) sum /= (T)count;"),
    };
    let body = filled!("bag/bagged.cu", scale, take, finish);
    let mut inputs = vec!["weight", "indices", "offsets"];
    inputs.extend(scaled.then_some("scales"));
    let mut outputs = vec!["bags", "sizes"];
    outputs.extend((bag.mode == Mode::Max).then_some("largest"));
    let over = inputs.len();
    Generated::each("embedding_bag", inputs, outputs, over, body)
        .with("padding", bag.padding.unwrap_or(-1))
}

/// The gradient of what rows are multiplied by.
fn of_scales_of(bag: EmbeddingBag) -> Generated {
    let body = "const i64 at = wrapped(indices.at(i), weight.size(0)), bag = wrapped(bags.flat(i[0]), grad.size(0));
    T sum = 0;
    if (at != padding) for (I c = 0; c < (I)weight.size(1); ++c) sum += (T)grad(bag, c) * (T)weight(at, c);
    scales.set_at(sum, i);";
    let inputs = ["grad", "weight", "indices", "bags"];
    Generated::each("embedding_bag", inputs, ["scales"], 4, body)
        .with("padding", bag.padding.unwrap_or(-1))
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
            padding: None,
        };

        let results = results(&bag, &operands).unwrap();

        assert_eq!(results[0].1, [Extent::BATCH, Extent::fixed(24)]);
        assert_eq!(results[3], (DType::Int64, results[0].1.clone()));
    }
}
