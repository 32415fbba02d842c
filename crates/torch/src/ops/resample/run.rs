//! Interpolation, padding and shuffling: one rule for all, and what is particular to each in a table.
//!
//! Every row was read off the allocator's history of PyTorch 2.11, forward and backward, for operands in
//! row-major order, in channels-last order and in neither.

use std::rc::Rc;

use super::{Interpolation, kernel};
use crate::ops::Resample;
use crate::ops::prelude::*;
use crate::shape::MemoryFormat;

/// What is particular to an operation.
#[derive(Debug, Clone, Copy)]
struct Rule {
    /// Whether the backward pass needs the operand and lays its gradient out like it, or needs only its
    /// shape and does as the incoming gradient does.
    saves_operand: bool,
    /// Whether operands in no simple order are copied for the kernel, after the result exists.
    copies: bool,
    /// Whether the result and the gradient are row-major, whatever the operand is (`math_pixel_shuffle` clones into that).
    row_major: bool,
}

fn rule(resample: &Resample) -> Rule {
    const PLAIN: Rule = Rule {
        saves_operand: false,
        copies: false,
        row_major: false,
    };
    match resample {
        Resample::PadCopied { reflect, .. } => Rule {
            saves_operand: true,
            copies: *reflect,
            ..PLAIN
        },
        Resample::Glu(_) => Rule {
            saves_operand: true,
            ..PLAIN
        },
        Resample::Interpolate(Interpolation { mode, .. }) => Rule {
            copies: mode.is_nearest(),
            ..PLAIN
        },
        Resample::PixelShuffle(_) | Resample::PixelUnshuffle(_) | Resample::ChannelShuffle(_) => {
            Rule {
                row_major: true,
                ..PLAIN
            }
        }
        Resample::Unfold(_) | Resample::Fold { .. } | Resample::PadConstant { .. } => PLAIN,
    }
}

/// What computes an operation on a tensor of so many dimensions, and its gradient.
fn kernels(resample: &Resample, rank: usize) -> [Generated; 2] {
    match resample {
        Resample::Interpolate(of) => {
            [false, true].map(|backward| kernel::interpolate(of, rank, backward))
        }
        Resample::Unfold(window) => [
            kernel::columns(window, rank - 1),
            kernel::planes(window, rank),
        ],
        Resample::Fold { window, .. } => [
            kernel::planes(window, rank + 1),
            kernel::columns(window, rank),
        ],
        Resample::Glu(dim) => [kernel::glu(*dim, rank), kernel::glu_backward(*dim, rank)],
        Resample::PixelShuffle(by) => [true, false].map(|out| kernel::shuffle(*by, out, rank)),
        Resample::PixelUnshuffle(by) => [false, true].map(|out| kernel::shuffle(*by, out, rank)),
        Resample::ChannelShuffle(groups) => {
            [false, true].map(|backward| kernel::channel_shuffle(*groups, rank, backward))
        }
        Resample::PadConstant { amounts, value } => [
            kernel::pad_constant(amounts, *value, rank, false),
            kernel::pad_constant(amounts, 0.0, rank, true),
        ],
        Resample::PadCopied { amounts, reflect } => [
            kernel::pad_copied(amounts, *reflect, rank),
            kernel::pad_copied_backward(amounts, *reflect, rank),
        ],
    }
}

impl Eager {
    /// An operation on planes. Autocast interpolates in float32.
    pub fn resample(&mut self, resample: &Resample, x: &Tensor, shape: &[Extent]) -> Outputs {
        if let Resample::Unfold(_) | Resample::Fold { .. } = resample {
            return Ok(vec![self.columns(resample, x, shape)]);
        }
        let rule = rule(resample);
        let x = match resample {
            Resample::Interpolate(_) => self.high(x),
            _ => Tensor::clone(x),
        };
        let mut draft = OpRecord::new(self, &[Some(&x)]);
        if rule.saves_operand {
            draft.save(self, "self", &x)?;
        }
        let format = match resample {
            // Pads with what is there are row-major.
            Resample::PadCopied { .. } => MemoryFormat::Contiguous,
            _ if rule.row_major => MemoryFormat::Contiguous,
            _ => x.suggested_format(),
        };
        // `constant_pad_nd` that adds nothing is the `clone` of a part, and so is the gradient of one that
        // takes nothing away.
        let [cloned, gradient_cloned] = match resample {
            Resample::PadConstant { amounts, .. } => {
                let amounts = amounts.as_flattened();
                [
                    amounts.iter().all(|by| *by <= 0),
                    amounts.iter().all(|by| *by >= 0),
                ]
            }
            _ => [false; 2],
        };
        let strides = if cloned {
            strides_like(shape, &x.strides)
        } else {
            format.strides(shape).into()
        };
        let y = self.empty_strided(shape, strides, x.dtype);
        // Volumes are interpolated row-major: channels-last ones in copies of operand and result, where the
        // kernel minds.
        let volumes = shape.len() == 5 && matches!(resample, Resample::Interpolate(_));
        let indirect = volumes && format == MemoryFormat::ChannelsLast;
        let row_major = (indirect && rule.copies).then(|| self.empty(shape, x.dtype));
        let dense = match (rule.copies, indirect) {
            (true, true) => self.dense_copy(&x),
            (true, false) => self.copy_in(&x, format),
            (false, _) => Tensor::clone(&x),
        };
        let [forward, backward] = kernels(resample, x.shape.len());
        self.launch(forward, &[&dense], &[&y]);
        drop((dense, row_major));
        let whole = x.shape.clone();
        let y = draft.finish_one(self, y, move |eager, gradient, saved| {
            let format = if rule.saves_operand || rule.row_major {
                format
            } else {
                gradient.suggested_format()
            };
            let strides = if gradient_cloned {
                strides_like(&whole, &gradient.strides)
            } else {
                format.strides(&whole).into()
            };
            let grad_x = eager.empty_strided(&whole, strides, gradient.dtype);
            let dense = match (volumes, rule.copies) {
                (true, _) => eager.dense_copy(gradient),
                (false, true) => eager.copy_in(gradient, format),
                (false, false) => Tensor::clone(gradient),
            };
            let _row_major = (volumes && format == MemoryFormat::ChannelsLast)
                .then(|| eager.empty(&whole, gradient.dtype));
            let mut inputs = vec![&*dense];
            // Only the gradient of `glu` depends on its operand.
            inputs.extend(saved.find("self").map(|x| &**x));
            eager.computed(grad_x, backward, &inputs)
        });
        Ok(vec![y])
    }

    /// `im2col` or `col2im`. Both make their result as large as their operand and resize it, which takes
    /// new memory only to grow; so does the other one in the backward pass.
    fn columns(&mut self, resample: &Resample, x: &Tensor, shape: &[Extent]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let [forward, backward] = kernels(resample, x.shape.len());
        let y = self.resized(forward, x, shape);
        let whole = x.shape.clone();
        draft.finish_one(self, y, move |eager, gradient, _| {
            Rc::new(eager.resized(backward, gradient, &whole))
        })
    }

    fn resized(&mut self, kernel: Generated, x: &Tensor, shape: &[Extent]) -> TensorBody {
        let first = self.empty(&x.shape, x.dtype);
        let dense = self.dense_copy(x);
        let fits = numel(shape).at(1) <= x.numel().at(1);
        let y = if fits {
            first.alias(shape.to_vec(), contiguous_strides(shape))
        } else {
            self.empty(shape, x.dtype)
        };
        drop(first);
        self.launch(kernel, &[&dense], &[&y]);
        y
    }

    /// The tensor in a memory format: itself, or a copy without history.
    pub fn copy_in(&mut self, x: &Tensor, format: MemoryFormat) -> Tensor {
        if x.is_in(format) {
            return Rc::clone(x);
        }
        Rc::new(self.copy_strided(x, format.strides(&x.shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Cancel;
    use crate::ops::calls::H200;
    use crate::shape::{DType, Sizes};

    /// Recorded with `SwinIR` on an H200: the convolution after the shuffle runs row-major, the one before it channels-last.
    #[test]
    fn shuffled_pixels_are_row_major() {
        let mut eager = Eager::new(H200, &Cancel::NEVER);
        let sizes = |lengths: [u64; 4]| lengths.map(Extent::fixed);
        let x_shape = sizes([2, 256, 32, 32]);
        let strides = MemoryFormat::ChannelsLast.strides(&x_shape);
        let x = Tensor::new(eager.empty_strided(&x_shape, strides, DType::Float32));
        let shape = sizes([2, 64, 64, 64]);

        let y = eager.resample(&Resample::PixelShuffle(2), &x, &shape);

        assert!(y.unwrap()[0].is_contiguous());
    }

    /// As PyTorch 2.11 lays out `F.pad(x, ...)` of a transposed operand: a pad of nothing, and one that takes away, are clones.
    #[test]
    fn a_pad_that_adds_nothing_keeps_the_order_of_dimensions() {
        let mut eager = Eager::new(H200, &Cancel::NEVER);
        let sizes = |lengths: [u64; 4]| lengths.map(Extent::fixed).to_vec();
        let x = eager.empty_strided(
            sizes([2, 4, 256, 32]),
            sizes([32768, 32, 128, 1]),
            DType::Float32,
        );
        let x = Tensor::new(x);
        for (amounts, shape, strides) in [
            ([[0, 0], [0, 0]], [2, 4, 256, 32], [32768, 32, 128, 1]),
            ([[0, -1], [0, 0]], [2, 4, 256, 31], [31744, 31, 124, 1]),
            ([[0, 0], [0, 1]], [2, 4, 257, 32], [32896, 8224, 32, 1]),
            ([[0, -1], [0, 1]], [2, 4, 257, 31], [31868, 7967, 31, 1]),
        ] {
            let pad = Resample::PadConstant {
                amounts: amounts.to_vec(),
                value: 0.0,
            };
            let y = eager
                .resample(&pad, &x, &sizes(shape))
                .unwrap_or_else(|_| panic!("stopped"));
            assert_eq!(y[0].strides, Sizes::from(sizes(strides)), "{amounts:?}");
        }
    }
}
