//! `ctc_loss`, as PyTorch's own kernels run it (`LossCTC.cu`).

use super::Summary;
use super::paths::{self, Paths};
use crate::ops::Reduction;
use crate::ops::prelude::*;

/// What a `ctc_loss` is told beside its tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ctc {
    /// The class of no label.
    pub(super) blank: u64,
    /// Whether infinite losses become zero.
    pub(super) zero_infinity: bool,
    /// How long all inputs and all labels are, where the model's code says.
    pub(super) lengths: Option<[u64; 2]>,
}

/// A value of each sample, as it broadcasts to the sample's classes.
fn by_sample(tensor: &TensorBody) -> TensorBody {
    let (length, stride) = match (tensor.shape.first(), tensor.strides.first()) {
        (Some(length), Some(stride)) => (*length, *stride),
        _ => (Extent::ONE, Extent::ZERO),
    };
    tensor.alias(&[length, Extent::ONE], &[stride, Extent::ZERO])
}

/// The first label of each sample, or of all.
fn first_label_of(targets: &TensorBody, joined: bool) -> TensorBody {
    if joined {
        targets.alias(&[Extent::ONE], &[Extent::ZERO])
    } else {
        by_sample(targets)
    }
}

/// The first time of every sample.
fn first_time(x: &TensorBody) -> TensorBody {
    match x.shape.len() {
        3 => x.alias(&x.shape[1..], &x.strides[1..]),
        _ => x.alias(&[Extent::ONE, x.shape[1]], &[Extent::ZERO, x.strides[1]]),
    }
}

impl Eager {
    #[expect(clippy::too_many_lines, reason = "the statements of both passes")]
    /// The loss of labels of up to the length that `targets` has room for: how long the longest really is, which the
    /// table of partial sums depends on, is known only with data.
    pub(super) fn ctc_loss(&mut self, operands: &[Tensor], of: Ctc, summary: Summary) -> Output {
        let (x, targets) = (&operands[0], &operands[1]);
        let given = operands.get(2).zip(operands.get(3));
        let (time, batch) = match x.shape[..] {
            [time, batch, _] => (time, batch),
            _ => (x.shape[0], Extent::ONE),
        };
        let (joined, labels) = if let [_, labels] = targets.shape[..] {
            (false, labels)
        } else {
            let all = targets.numel();
            (true, all.checked_div(batch).unwrap_or(all))
        };
        // A blank before, between and behind labels.
        let states = labels + labels + Extent::ONE;
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "log_probs", x)?;
        draft.save(self, "targets", targets)?;
        let lengths = [0; 3].map(|_| self.empty(&[batch], DType::Int64));
        let forward = Tensor::new(self.empty(&[batch, time, states], x.dtype));
        let losses = self.empty(&[batch], x.dtype);
        let classes = x.shape[x.shape.len() - 1];
        let told = of.lengths.map(|lengths| lengths.map(Extent::fixed));
        let told = told.unwrap_or([time, labels]);
        let paths = Paths {
            blank: of.blank,
            zero_infinity: of.zero_infinity,
            with_lengths: given.is_some(),
            lengths: [time, labels],
            joined,
            steps: [
                x.strides[0],
                x.strides[x.shape.len() - 1],
                targets.strides.last().copied().unwrap_or(Extent::ONE),
            ],
            told,
        };
        let first_label = first_label_of(targets, joined);
        let stride = given.map_or(Extent::ZERO, |(_, labels)| {
            labels.strides.first().copied().unwrap_or(Extent::ZERO)
        });
        {
            let first = first_time(x);
            let lengths = given.map(|(inputs, labels)| [by_sample(inputs), by_sample(labels)]);
            let mut operands = vec![&first, &first_label];
            operands.extend(lengths.iter().flatten());
            let results = [&by_sample(&losses), &by_sample(&forward)];
            self.launch(paths.forward(classes, stride), &operands, &results);
        }
        drop(first_label);
        let [offsets, inputs, labelled] = lengths;
        drop((inputs, offsets, labelled));
        let kept = Tensor::new(losses.same());
        draft.save(self, "result0", &kept)?;
        draft.save(self, "result1", &forward)?;
        drop((kept, forward));
        let losses = draft.finish_single(self, losses, move |eager, gradient, saved| {
            let x = saved.get("log_probs");
            let [offsets, inputs, labelled] = [0; 3].map(|_| eager.empty(&[batch], DType::Int64));
            let backward = eager.empty(&[batch, time, states], x.dtype);
            let grad_x = eager.empty(&x.shape, x.dtype);
            {
                let first = first_time(x);
                let first_label = first_label_of(saved.get("targets"), joined);
                let behind = ["result0", "result1"].map(|name| by_sample(saved.get(name)));
                let operands = [
                    &first,
                    &first_label,
                    &by_sample(gradient),
                    &behind[0],
                    &behind[1],
                ];
                let last = x.shape.len() - 1;
                let steps = [grad_x.strides[0], grad_x.strides[last]];
                let shown = match last {
                    2 => grad_x.alias(&[batch, Extent::ONE], &[grad_x.strides[1], Extent::ZERO]),
                    _ => grad_x.alias(&[Extent::ONE; 2], &[Extent::ZERO; 2]),
                };
                let kernel = paths.backward(classes, steps);
                eager.launch(kernel, &operands, &[&shown, &by_sample(&backward)]);
            }
            drop((backward, inputs, offsets, labelled));
            vec![Some(Tensor::new(grad_x))]
        });
        let losses = if of.zero_infinity {
            let zero = Tensor::new(self.zeros(&[], x.dtype));
            let infinite = self.with_number("aten.eq.Scalar", &losses, "other", f64::INFINITY)?;
            self.apply("aten.where.self", &[&infinite, &zero, &losses])?
        } else {
            losses
        };
        Ok(match summary {
            Summary::None => losses,
            Summary::Sum => self.reduction(Reduction::Sum, &losses, &[0], false),
            Summary::Mean => {
                let lengths = Tensor::new(self.empty(&[batch], x.dtype));
                match (given, of.lengths) {
                    (Some((_, labels)), _) => self.launch(Kernel::Copy, &[labels], &[&lengths]),
                    (None, Some([_, length])) => {
                        self.launch(Kernel::Fill(length as f64), &[], &[&lengths]);
                    }
                    (None, None) => self.launch(paths::longest(labels), &[], &[&lengths]),
                }
                let least = self.with_number("aten.clamp_min.default", &lengths, "min", 1.0)?;
                drop(lengths);
                let shares = self.apply("aten.div.Tensor", &[&losses, &least])?;
                self.reduction(Reduction::Mean, &shares, &[0], false)
            }
        })
    }
}
