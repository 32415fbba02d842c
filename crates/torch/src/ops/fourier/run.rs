//! Transforms (`SpectralOps.cpp` of PyTorch's native and cuda code), as recorded on an H200.

use super::scratch::tenths;
use super::{Direction, Transform, half};
use crate::ops::Resample;
use crate::ops::prelude::*;
use crate::ops::view::gradient_view;
use crate::shape::view_strides;

impl Eager {
    /// A transform; autocast runs it in float32. The operand is padded or cut to the lengths first.
    pub(super) fn fourier(&mut self, transform: &Transform, x: &Tensor) -> Output {
        let Transform {
            direction,
            takes_real,
            dims,
            lengths,
        } = transform;
        let direction = *direction;
        let x = self.high(x);
        let x = match (direction, x.dtype.is_complex()) {
            (Direction::Complex, false) if !*takes_real => self.cast(&x, x.dtype.complex()),
            (Direction::ToReal, false) => self.cast(&x, x.dtype.complex()),
            _ => x,
        };
        let x = self.resized_for(direction, dims, lengths, &x)?;
        Ok(match direction {
            Direction::Complex if x.dtype.is_complex() => self.complex_to_complex(&x, dims),
            Direction::Complex => self.real_to_complex(&x, dims, false)?,
            Direction::FromReal => self.real_to_complex(&x, dims, true)?,
            Direction::ToReal => self.complex_to_real(&x, dims, lengths),
        })
    }

    /// `resize_fft_input`: a slice or a pad for each dimension of another length.
    fn resized_for(
        &mut self,
        direction: Direction,
        dims: &[usize],
        lengths: &[u64],
        x: &Tensor,
    ) -> Output {
        let mut shape = x.shape.clone();
        let mut pads = vec![[0, 0]; x.shape.len()];
        let mut y = Tensor::clone(x);
        for (i, (dim, length)) in dims.iter().zip(lengths).enumerate() {
            let halved = direction == Direction::ToReal && i + 1 == dims.len();
            let wanted = if halved { half(*length) } else { *length };
            let own = x.shape[*dim].at(1);
            if wanted < own {
                y = self.slice(&y, *dim, (Extent::ZERO, wanted.into(), 1));
            }
            pads[x.shape.len() - 1 - dim][1] = wanted.saturating_sub(own).cast_signed();
            shape[*dim] = wanted.into();
        }
        if pads.iter().any(|pad| *pad != [0, 0]) {
            let padded = self.resample(&Resample::constant(pads), &y, &shape)?;
            y = padded.into_iter().next().expect("a pad has a result");
        }
        Ok(y)
    }

    /// The result of a transform, and scratch memory while it runs.
    ///
    /// Dimensions that are not transformed come first in memory, in the order in which they lie; those that
    /// are not evenly apart are copied.
    fn transformed(
        &mut self,
        direction: Direction,
        x: &TensorBody,
        dims: &[usize],
        shape: &[Extent],
        dtype: DType,
    ) -> TensorBody {
        let apart = |dim: usize| std::cmp::Reverse(x.strides[dim].at(1 << 20));
        let mut order: Vec<usize> = (0..shape.len()).filter(|dim| !dims.contains(dim)).collect();
        crate::order::by_key(&mut order, |dim| apart(*dim));
        let batched = order.len();
        order.extend(dims);
        let lay =
            |lengths: &[Extent]| -> Vec<Extent> { order.iter().map(|dim| lengths[*dim]).collect() };
        let (ordered, strides) = (lay(shape), contiguous_strides(&lay(shape)));
        let mut out = vec![Extent::ONE; shape.len()];
        for (dim, stride) in order.iter().zip(strides) {
            out[*dim] = stride;
        }
        let y = self.empty_strided(shape, out, dtype);
        let _cloned = (direction == Direction::ToReal)
            .then(|| self.empty_strided(&x.shape, x.strides.clone(), x.dtype));
        let from = lay(&x.shape);
        let flat = [&[numel(&from[..batched])], &from[batched..]].concat();
        let even = view_strides(&from, &lay(&x.strides), &flat).is_some();
        let _copied = (!even).then(|| self.empty(&from, x.dtype));
        let signal = match direction {
            Direction::ToReal => &ordered,
            Direction::Complex | Direction::FromReal => &from,
        };
        let lengths: Vec<u64> = signal[batched..]
            .iter()
            .map(|length| length.at(1))
            .collect();
        let complex = x.dtype.complex();
        let taken = tenths(direction, complex, &lengths);
        let elements = numel(signal);
        let of = (elements, complex, taken);
        let _scratch = self.scratch_by(
            "cuFFT's scratch memory",
            of,
            |&(elements, complex, taken), batch| {
                let whole = elements.at(batch).saturating_mul(complex.size());
                (whole / 10).saturating_mul(taken)
            },
        );
        self.launch(Kernel::MemoryOnly("fft"), &[x], &[&y]);
        y
    }

    /// `_fft_c2c`: the gradient is the opposite transform of the incoming one.
    fn complex_to_complex(&mut self, x: &Tensor, dims: &[usize]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let y = self.transformed(Direction::Complex, x, dims, &x.shape, x.dtype);
        let dims = dims.to_vec();
        draft.finish_one(self, y, move |eager, gradient, _| {
            let shape = gradient.shape.clone();
            let (of, dtype) = (Direction::Complex, gradient.dtype);
            Tensor::new(eager.transformed(of, gradient, &dims, &shape, dtype))
        })
    }

    /// `_fft_r2c`: the gradient is the real part of the opposite transform of the incoming one, with zeros for
    /// the half that was not made.
    fn real_to_complex(&mut self, x: &Tensor, dims: &[usize], onesided: bool) -> Output {
        let mut draft = OpRecord::new(self, &[Some(x)]);
        draft.save(self, "self", x)?;
        let mut shape = x.shape.clone();
        let last = dims[dims.len() - 1];
        if onesided {
            shape[last] = half(shape[last].at(1)).into();
        }
        let complex = x.dtype.complex();
        let y = self.transformed(Direction::FromReal, x, dims, &shape, complex);
        let (whole, dims) = (x.shape.clone(), dims.to_vec());
        Ok(draft.finish_one(self, y, move |eager, gradient, _| {
            let padded = (gradient.shape != whole).then(|| eager.empty(&whole, complex));
            let from = padded.as_ref().unwrap_or(gradient);
            let grad = eager.transformed(Direction::Complex, from, &dims, &whole, complex);
            drop(padded);
            let grad = Tensor::new(grad);
            gradient_view(&grad, grad.real_part())
        }))
    }

    /// `_fft_c2r`: the gradient is the transform of the incoming one.
    fn complex_to_real(&mut self, x: &Tensor, dims: &[usize], lengths: &[u64]) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let mut shape = x.shape.clone();
        for (dim, length) in dims.iter().zip(lengths) {
            shape[*dim] = Extent::fixed(*length);
        }
        let y = self.transformed(Direction::ToReal, x, dims, &shape, x.dtype.real());
        let (half, complex, dims) = (x.shape.clone(), x.dtype, dims.to_vec());
        draft.finish_one(self, y, move |eager, gradient, _| {
            let of = Direction::FromReal;
            Tensor::new(eager.transformed(of, gradient, &dims, &half, complex))
        })
    }

    /// `stft` of signals that are padded already: overlapping frames as a view, times the window, transformed
    /// along their elements.
    pub(super) fn stft(
        &mut self,
        [n_fft, hop]: [u64; 2],
        onesided: bool,
        x: &Tensor,
        window: Option<&Tensor>,
    ) -> Output {
        let x = self.high(x);
        let signals = if x.shape.len() == 1 {
            self.unsqueeze(&x, 0)
        } else {
            Tensor::clone(&x)
        };
        let frames = self.frames(&signals, n_fft, hop);
        let windowed = match window {
            Some(window) => self.mul(&frames, window)?,
            None => Tensor::clone(&frames),
        };
        drop(frames);
        let y = self.real_to_complex(&windowed, &[2], onesided)?;
        drop(windowed);
        let y = self.permute(&y, &[0, 2, 1]);
        Ok(if x.shape.len() == 1 {
            let shape = y.shape[1..].to_vec();
            self.reshape(&y, &shape)
        } else {
            y
        })
    }

    /// `as_strided` windows along the last dimension. Their gradient is added up by index where they overlap.
    fn frames(&mut self, x: &Tensor, n_fft: u64, hop: u64) -> Tensor {
        let draft = OpRecord::new(self, &[Some(x)]);
        let room = x.shape[1].at(1).saturating_sub(n_fft);
        let (own, step) = (x.strides[1], x.strides[1] * Extent::fixed(hop));
        let shape = [x.shape[0], (room / hop + 1).into(), n_fft.into()];
        let y = x.alias(&shape, &[x.strides[0], step, own]);
        let whole = x.shape.clone();
        draft.finish_one(self, y, move |eager, gradient, _| {
            let grad_x = eager.empty(&whole, gradient.dtype);
            let _places = eager.empty(&whole, DType::Int64);
            let _taken = eager.empty(&gradient.shape, DType::Int64);
            let kernel = Kernel::MemoryOnly("as_strided_backward");
            eager.computed(grad_x, kernel, &[gradient])
        })
    }
}
