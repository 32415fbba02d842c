//! Fourier transforms through cuFFT.
#![doc = include_str!("NOTES.md")]

mod run;
mod scratch;

use super::call::like_first;
use crate::ops::prelude::*;

/// Between which types a transform goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Complex to complex, in either sense: `fft`, `ifft`, `fftn`.
    Complex,
    /// Real to the half of a complex result that is not redundant: `rfft`, `rfft2`.
    FromReal,
    /// Its inverse: `irfft`, `irfft2`.
    ToReal,
}

/// `fft_fft`, `fft_rfft2` and the like.
#[derive(Debug)]
pub(super) struct Transform {
    /// Between which types.
    direction: Direction,
    /// Whether a real operand is transformed as it is (`fft`), not made complex first (`fft2`, `fftn`).
    takes_real: bool,
    /// Along which dimensions, the halved one last.
    dims: Vec<usize>,
    /// What the operand is padded or cut to along each of them, where that is another length.
    lengths: Vec<u64>,
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    (
        "aten.fft_fft.default aten.fft_ifft.default aten.fft_rfft.default aten.fft_irfft.default",
        one,
    ),
    (
        "aten.fft_fft2.default aten.fft_ifft2.default aten.fft_fftn.default aten.fft_ifftn.default aten.fft_rfft2.default \
         aten.fft_rfftn.default aten.fft_irfft2.default aten.fft_irfftn.default",
        many,
    ),
    // What composite operators call.
    (
        "aten._fft_r2c.default aten._fft_c2r.default aten._fft_c2c.default",
        inner,
    ),
    (
        "aten.fft_fftshift.default aten.fft_ifftshift.default",
        shift,
    ),
    ("aten.stft.default aten.stft.center", stft),
];

/// Between which types an operator of this name transforms.
fn direction(args: &Arguments<'_>) -> Direction {
    let is_one_of = |names: [&str; 2]| names.iter().any(|name| args.target.contains(name));
    if is_one_of(["_rfft", "_r2c"]) {
        Direction::FromReal
    } else if is_one_of(["_irfft", "_c2r"]) {
        Direction::ToReal
    } else {
        Direction::Complex
    }
}

fn one(args: &Arguments<'_>) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let shape = args.shape(x);
    let dim = args.dim("dim", Some(-1), shape.len())?;
    let given = args.if_given("n", |name| args.count(name, None))?;
    let given = given.map(|length| [Some(length)]);
    let given = given.as_ref().map(<[_; 1]>::as_slice);
    transform(x, &shape, direction(args), true, vec![dim], given)
}

fn inner(args: &Arguments<'_>) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let shape = args.shape(x);
    let dims = args.dims("dim", shape.len())?;
    let direction = match direction(args) {
        Direction::FromReal if !args.flag("onesided", true)? => Direction::Complex,
        direction => direction,
    };
    if direction != Direction::ToReal {
        return transform(x, &shape, direction, true, dims, None);
    }
    let last = Some(args.count("last_dim_size", None)?);
    let mut lengths = vec![None; dims.len()];
    if let Some(length) = lengths.last_mut() {
        *length = last;
    }
    transform(x, &shape, direction, true, dims, Some(&lengths))
}

fn many(args: &Arguments<'_>) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let shape = args.shape(x);
    let sizes = if args.has("s") {
        let lengths = args.lengths("s")?.into_iter();
        let fixed = |length: Option<Extent>| match length {
            None => Ok(None),
            Some(length) => length
                .as_fixed()
                .map(Some)
                .ok_or_else(|| format!("its argument \"s\" contains {length}")),
        };
        Some(lengths.map(fixed).collect::<Result<Vec<_>, _>>()?)
    } else {
        None
    };
    let dims = if args.has("dim") {
        args.dims("dim", shape.len())?
    } else if args.target.contains("fft2") {
        shape
            .len()
            .checked_sub(2)
            .map_or(Vec::new(), |first| vec![first, first + 1])
    } else {
        let count = sizes.as_ref().map_or(shape.len(), Vec::len);
        (shape.len().saturating_sub(count)..shape.len()).collect()
    };
    transform(x, &shape, direction(args), false, dims, sizes.as_deref())
}

fn transform(
    x: ValueId,
    shape: &[Extent],
    direction: Direction,
    takes_real: bool,
    dims: Vec<usize>,
    given: Option<&[Option<u64>]>,
) -> Result<Read, String> {
    if dims.is_empty() || given.is_some_and(|given| given.len() != dims.len()) {
        return Err(format!("it transforms {dims:?} of {shape:?}"));
    }
    let last = dims.len() - 1;
    let length = |(i, dim): (usize, &usize)| {
        let wanted = given.and_then(|given| given[i]);
        let halved = direction == Direction::ToReal && i == last;
        let own = || shape.get(*dim).and_then(|length| length.as_fixed());
        let length = match wanted {
            Some(wanted) => Some(wanted),
            // Of the real result: twice what there is, but for the ends.
            None if halved => own().and_then(|own| own.checked_sub(1)).map(|own| 2 * own),
            None => own(),
        };
        let length = length.filter(|length| (1..1 << 31).contains(length));
        length.ok_or_else(|| format!("it transforms a length of {:?}", shape.get(*dim)))
    };
    let lengths = dims
        .iter()
        .enumerate()
        .map(length)
        .collect::<Result<Vec<_>, _>>()?;
    let fourier = Function {
        name: "fft",
        arguments: Transform {
            direction,
            takes_real,
            dims,
            lengths,
        },
        infer: |transform, x| Ok(vec![transform.result(&x[0])?]),
        run: |transform, eager, x, _| Ok(vec![eager.fourier(transform, &x[0])?]),
    };
    Ok(fourier.on(vec![x]))
}

fn shift(args: &Arguments<'_>) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let rank = args.shape(x).len();
    let dims = if args.has("dim") {
        args.dims("dim", rank)?
    } else {
        (0..rank).collect()
    };
    let inverse = args.target.contains("ifftshift");
    // A roll along these dimensions, there or back.
    let shift = Function {
        name: "fftshift",
        arguments: (dims, inverse),
        infer: like_first,
        run: |(dims, inverse), eager, x, _| {
            let by = |dim: &usize| {
                let length = x[0].shape[*dim].as_fixed().unwrap_or(0);
                let half = if *inverse {
                    length.div_ceil(2)
                } else {
                    length / 2
                };
                (half.cast_signed(), Some(*dim))
            };
            Ok(vec![
                eager.roll(&x[0], &dims.iter().map(by).collect::<Vec<_>>()),
            ])
        },
    };
    Ok(shift.on(vec![x]))
}

fn stft(args: &Arguments<'_>) -> Result<Read, String> {
    if args.flag("center", false)? {
        return Err(
            "it pads its input; call torch.nn.functional.pad before it and pass center=False"
                .into(),
        );
    }
    if !args.flag("return_complex", true)? {
        return Err("it returns real numbers; pass return_complex=True".into());
    }
    args.absent("normalized")?;
    let n_fft = args.count("n_fft", None)?;
    let hop = if args.has("hop_length") {
        args.count("hop_length", None)?
    } else {
        n_fft / 4
    };
    if n_fft == 0 || hop == 0 {
        return Err(format!("its frames are {n_fft} long, {hop} apart"));
    }
    if args.has("win_length") && args.count("win_length", None)? != n_fft {
        return Err(
            "its window is shorter than a frame, which is padded first; pad it in the model".into(),
        );
    }
    let onesided = args.flag("onesided", true)?;
    let operands = args.all_and(&["self"], &["window"])?;
    let stft = Function {
        name: "stft",
        arguments: ([n_fft, hop], onesided),
        infer: |&([n_fft, hop], onesided), x| {
            let (dtype, x) = &x[0];
            let frames = frames(x, n_fft, hop)?;
            let bins = if onesided { half(n_fft) } else { n_fft };
            let shape = [&x[..x.len() - 1], &[bins.into(), frames.into()]].concat();
            Ok(vec![(complex(*dtype)?, shape)])
        },
        run: |&(frames, onesided), eager, x, _| {
            Ok(vec![eager.stft(frames, onesided, &x[0], x.get(1))?])
        },
    };
    Ok(stft.on(operands))
}

/// How many elements of a real signal's transform are not redundant.
pub(super) fn half(length: u64) -> u64 {
    length / 2 + 1
}

/// The type of a transform of this type.
fn complex(dtype: DType) -> Result<DType, Mismatch> {
    match dtype {
        DType::Float64 | DType::Complex128 => Ok(DType::Complex128),
        DType::Float16 | DType::BFloat16 => Err(
            "transforms of half precision are not supported; convert to float32 first".to_owned(),
        ),
        DType::Float32
        | DType::Complex64
        | DType::Int64
        | DType::Int32
        | DType::UInt8
        | DType::Bool => Ok(DType::Complex64),
    }
}

impl Transform {
    fn result(&self, (dtype, x): &Type) -> Result<Type, Mismatch> {
        let mut shape = x.clone();
        for (dim, length) in self.dims.iter().zip(&self.lengths) {
            let side = shape
                .get_mut(*dim)
                .ok_or_else(|| format!("no dimension {dim}"))?;
            *side = Extent::fixed(*length);
        }
        let dtype = complex(*dtype)?;
        Ok(
            match (self.direction, self.dims.last(), self.lengths.last()) {
                (Direction::FromReal, Some(dim), Some(length)) => {
                    shape[*dim] = Extent::fixed(half(*length));
                    (dtype, shape)
                }
                (Direction::ToReal, ..) => (dtype.real(), shape),
                (Direction::FromReal | Direction::Complex, ..) => (dtype, shape),
            },
        )
    }
}

/// How many frames a signal has.
fn frames(x: &[Extent], n_fft: u64, hop: u64) -> Result<u64, Mismatch> {
    let length = match x {
        [length] | [_, length] => length.as_fixed(),
        _ => None,
    };
    let room = length.and_then(|length| length.checked_sub(n_fft));
    let frames = room.and_then(|room| (room / hop).checked_add(1));
    frames.ok_or_else(|| format!("the input {x:?} has no frames of {n_fft}"))
}
