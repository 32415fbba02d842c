//! Interpolation, padding and shuffling: one rule for all, and what is particular to each in a table.
//!
//! Every row was read off the allocator's history of PyTorch 2.11, forward and backward, for operands in
//! row-major order, in channels-last order and in neither.

use std::rc::Rc;

use crate::eager::{Draft, Eager, Stop, Tensor, TensorBody};
use crate::ops::Resample;
use crate::ops::join::part;
use crate::program::Kernel;
use crate::shape::{Extent, MemoryFormat, contiguous_strides, numel};

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
    match resample {
        Resample::PadCopied { reflect, .. } => Rule {
            saves_operand: true,
            copies: *reflect,
            row_major: false,
        },
        Resample::Glu(_) => Rule {
            saves_operand: true,
            copies: false,
            row_major: false,
        },
        Resample::Interpolate { nearest, .. } => Rule {
            saves_operand: false,
            copies: *nearest,
            row_major: false,
        },
        Resample::PixelShuffle(_) | Resample::PixelUnshuffle(_) | Resample::ChannelShuffle(_) => {
            Rule {
                saves_operand: false,
                copies: false,
                row_major: true,
            }
        }
        Resample::Unfold(_) | Resample::Fold { .. } | Resample::PadConstant(_) => Rule {
            saves_operand: false,
            copies: false,
            row_major: false,
        },
    }
}

impl Eager {
    /// An operation on planes. Autocast interpolates in float32.
    pub(crate) fn resample(
        &mut self,
        resample: &Resample,
        x: &Tensor,
        shape: &[Extent],
    ) -> Result<Vec<Tensor>, Stop> {
        if let Resample::Unfold(_) | Resample::Fold { .. } = resample {
            return Ok(vec![self.columns(resample.aten_name(), x, shape)]);
        }
        let rule = rule(resample);
        let x = match resample {
            Resample::Interpolate { .. } => self.high(x),
            _ => Tensor::clone(x),
        };
        let mut draft = Draft::new(self, &[Some(&x)]);
        if rule.saves_operand {
            draft.save(self, "self", &x)?;
        }
        let format = match resample {
            // Pads with what is there are row-major.
            Resample::PadCopied { .. } => MemoryFormat::Contiguous,
            _ if rule.row_major => MemoryFormat::Contiguous,
            _ => x.suggested_format(),
        };
        let y = self.empty_strided(shape, format.strides(shape), x.dtype);
        // Volumes are interpolated row-major: channels-last ones in copies of operand and result, where the
        // kernel minds.
        let volumes = shape.len() == 5 && matches!(resample, Resample::Interpolate { .. });
        let indirect = volumes && format == MemoryFormat::ChannelsLast;
        let row_major = (indirect && rule.copies).then(|| self.empty(shape, x.dtype));
        let dense = match (rule.copies, indirect) {
            (true, true) => self.dense_copy(&x),
            (true, false) => self.copy_in(&x, format),
            (false, _) => Tensor::clone(&x),
        };
        match resample {
            Resample::PadConstant(amounts) if !x.dtype.is_float() => self.pad(&x, &y, amounts),
            _ => self.launch(Kernel::MemoryOnly(resample.aten_name()), &[&dense], &[&y]),
        }
        drop(dense);
        drop(row_major);
        let (whole, name) = (x.shape.clone(), resample.aten_name());
        let y = draft.finish_one(self, y, move |eager, gradient, _| {
            let format = if rule.saves_operand || rule.row_major {
                format
            } else {
                gradient.suggested_format()
            };
            let strides = format.strides(&whole);
            let grad_x = eager.empty_strided(&whole, strides, gradient.dtype);
            let dense = match (volumes, rule.copies) {
                (true, _) => eager.dense_copy(gradient),
                (false, true) => eager.copy_in(gradient, format),
                (false, false) => Tensor::clone(gradient),
            };
            let row_major = (volumes && format == MemoryFormat::ChannelsLast)
                .then(|| eager.empty(&whole, gradient.dtype));
            eager.launch(Kernel::MemoryOnly(name), &[&dense], &[&grad_x]);
            drop(row_major);
            drop(dense);
            Rc::new(grad_x)
        });
        Ok(vec![y])
    }

    /// `im2col` or `col2im`. Both make their result as large as their operand and resize it, which takes
    /// new memory only to grow; so does the other one in the backward pass.
    fn columns(&mut self, name: &'static str, x: &Tensor, shape: &[Extent]) -> Tensor {
        let draft = Draft::new(self, &[Some(x)]);
        let y = self.resized(name, x, shape);
        let whole = x.shape.clone();
        let [y] = draft.finish(self, [y], move |eager, gradients, _| {
            let gradient = gradients[0].as_ref();
            vec![gradient.map(|gradient| Rc::new(eager.resized(name, gradient, &whole)))]
        });
        y
    }

    fn resized(&mut self, name: &'static str, x: &Tensor, shape: &[Extent]) -> TensorBody {
        let first = self.empty(&x.shape, x.dtype);
        let dense = self.dense_copy(x);
        let fits = numel(shape).at(1) <= x.numel().at(1);
        let y = if fits {
            first.alias(shape.to_vec(), contiguous_strides(shape))
        } else {
            self.empty(shape, x.dtype)
        };
        drop(first);
        self.launch(Kernel::MemoryOnly(name), &[&dense], &[&y]);
        drop(dense);
        y
    }

    /// Targets are padded with what `cross_entropy` ignores.
    fn pad(&mut self, x: &Tensor, y: &TensorBody, amounts: &[[i64; 2]]) {
        let removes = amounts.as_flattened().iter().any(|amount| *amount < 0);
        if removes {
            self.launch(Kernel::MemoryOnly("pad"), &[x], &[y]);
            return;
        }
        self.launch(Kernel::Fill(-100.0), &[], &[y]);
        let mut inside = y.alias(y.shape.clone(), y.strides.clone());
        for (dim, [before, _]) in (0..x.shape.len()).rev().zip(amounts) {
            let before = Extent::fixed(before.unsigned_abs());
            inside = part(&inside, dim, before, x.shape[dim]);
        }
        self.launch(Kernel::Copy, &[x], &[&inside]);
    }

    /// The tensor in a memory format: itself, or a copy without history.
    pub(crate) fn copy_in(&mut self, x: &Tensor, format: MemoryFormat) -> Tensor {
        if x.is_in(format) {
            return Rc::clone(x);
        }
        let copy = self.empty_strided(&x.shape, format.strides(&x.shape), x.dtype);
        self.launch(Kernel::Copy, &[x], &[&copy]);
        Rc::new(copy)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::ops::calls::H200;
    use crate::shape::DType;

    /// Recorded with `SwinIR` on an H200: the convolution after the shuffle runs row-major, the one before it channels-last.
    #[test]
    fn shuffled_pixels_are_row_major() {
        let mut eager = Eager::new(H200, &Arc::new(AtomicBool::new(false)));
        let sizes = |lengths: [u64; 4]| lengths.map(Extent::fixed);
        let x_shape = sizes([2, 256, 32, 32]);
        let strides = MemoryFormat::ChannelsLast.strides(&x_shape);
        let x = Tensor::new(eager.empty_strided(&x_shape, strides, DType::Float32));
        let shape = sizes([2, 64, 64, 64]);

        let y = eager.resample(&Resample::PixelShuffle(2), &x, &shape);

        assert!(y.unwrap()[0].is_contiguous());
    }
}
