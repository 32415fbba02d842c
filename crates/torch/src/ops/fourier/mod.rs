//! Fourier transforms through cuFFT.
#![doc = include_str!("NOTES.md")]

mod run;
mod scratch;

use serde::Serialize;

use super::{Context, Operator, Read, Reader};
use crate::aten::{Arguments, ValueId};
use crate::eager::{Eager, Outputs, Tensor};
use crate::shape::{DType, Extent, Mismatch, Type};

/// Between which types a transform goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Direction {
    /// Complex to complex, in either sense: `fft`, `ifft`, `fftn`.
    Complex,
    /// Real to the half of a complex result that is not redundant: `rfft`, `rfft2`.
    FromReal,
    /// Its inverse: `irfft`, `irfft2`.
    ToReal,
}

/// See the variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Fourier {
    /// `fft_fft`, `fft_rfft2` and the like.
    Transform {
        /// Between which types.
        direction: Direction,
        /// Whether a real operand is transformed as it is (`fft`), not made complex first (`fft2`, `fftn`).
        takes_real: bool,
        /// Along which dimensions, the halved one last.
        dims: Vec<usize>,
        /// What the operand is padded or cut to along each of them, where that is another length.
        lengths: Vec<u64>,
    },
    /// `stft(input[, window])`.
    ShortTime {
        /// Length of a frame.
        n_fft: u64,
        /// Steps between frames.
        hop: u64,
        /// Whether only the half that is not redundant is made.
        onesided: bool,
    },
    /// `fft_fftshift`, `fft_ifftshift`: a roll along these dimensions.
    Shift {
        /// Which.
        dims: Vec<usize>,
        /// Whether it undoes the other.
        inverse: bool,
    },
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    ("aten.fft_fft.default aten.fft_ifft.default", |args| {
        one(args, Direction::Complex)
    }),
    ("aten.fft_rfft.default", |args| {
        one(args, Direction::FromReal)
    }),
    ("aten.fft_irfft.default", |args| {
        one(args, Direction::ToReal)
    }),
    (
        "aten.fft_fft2.default aten.fft_ifft2.default aten.fft_fftn.default aten.fft_ifftn.default",
        |args| many(args, Direction::Complex),
    ),
    ("aten.fft_rfft2.default aten.fft_rfftn.default", |args| {
        many(args, Direction::FromReal)
    }),
    ("aten.fft_irfft2.default aten.fft_irfftn.default", |args| {
        many(args, Direction::ToReal)
    }),
    // What composite operators call.
    ("aten._fft_r2c.default", |args| {
        inner(args, Direction::FromReal)
    }),
    ("aten._fft_c2r.default", |args| {
        inner(args, Direction::ToReal)
    }),
    ("aten._fft_c2c.default", |args| {
        inner(args, Direction::Complex)
    }),
    (
        "aten.fft_fftshift.default aten.fft_ifftshift.default",
        shift,
    ),
    ("aten.stft.default aten.stft.center", stft),
];

fn one(args: &Arguments<'_>, direction: Direction) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let shape = args.shape(x);
    let dim = args.dim("dim", Some(-1), shape.len())?;
    let given = args.has("n").then(|| args.count("n", None)).transpose()?;
    transform(
        x,
        &shape,
        direction,
        true,
        vec![dim],
        given.map(|n| [Some(n)]).as_ref().map(<[_; 1]>::as_slice),
    )
}

fn inner(args: &Arguments<'_>, direction: Direction) -> Result<Read, String> {
    let x = args.tensor("self")?;
    let shape = args.shape(x);
    let dims = args.dims("dim", shape.len())?;
    let direction = match direction {
        Direction::FromReal if !args.flag("onesided", true)? => Direction::Complex,
        Direction::FromReal | Direction::ToReal | Direction::Complex => direction,
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

fn many(args: &Arguments<'_>, direction: Direction) -> Result<Read, String> {
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
    transform(x, &shape, direction, false, dims, sizes.as_deref())
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
    let fourier = Fourier::Transform {
        direction,
        takes_real,
        dims,
        lengths,
    };
    Ok((fourier.into(), vec![x]))
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
    Ok((Fourier::Shift { dims, inverse }.into(), vec![x]))
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
    Ok((
        Fourier::ShortTime {
            n_fft,
            hop,
            onesided,
        }
        .into(),
        operands,
    ))
}

/// How many elements of a real signal's transform are not redundant.
pub(super) fn half(length: u64) -> u64 {
    length / 2 + 1
}

impl Operator for Fourier {
    fn name(&self) -> &'static str {
        match self {
            Fourier::Transform { .. } => "fft",
            Fourier::ShortTime { .. } => "stft",
            Fourier::Shift { .. } => "fftshift",
        }
    }

    fn arity(&self) -> (usize, usize) {
        match self {
            Fourier::Transform { .. } | Fourier::Shift { .. } => (1, 1),
            Fourier::ShortTime { .. } => (1, 2),
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (dtype, x) = &operands[0];
        let complex = |dtype: DType| match dtype {
            DType::Float64 | DType::Complex128 => Ok(DType::Complex128),
            DType::Float16 | DType::BFloat16 => Err(
                "transforms of half precision are not supported; convert to float32 first"
                    .to_owned(),
            ),
            DType::Float32
            | DType::Complex64
            | DType::Int64
            | DType::Int32
            | DType::UInt8
            | DType::Bool => Ok(DType::Complex64),
        };
        let (dtype, shape) = match self {
            Fourier::Transform {
                direction,
                dims,
                lengths,
                ..
            } => {
                let mut shape = x.clone();
                for (dim, length) in dims.iter().zip(lengths) {
                    let side = shape
                        .get_mut(*dim)
                        .ok_or_else(|| format!("no dimension {dim}"))?;
                    *side = Extent::fixed(*length);
                }
                let dtype = complex(*dtype)?;
                match (direction, dims.last(), lengths.last()) {
                    (Direction::FromReal, Some(dim), Some(length)) => {
                        shape[*dim] = Extent::fixed(half(*length));
                        (dtype, shape)
                    }
                    (Direction::ToReal, ..) => (dtype.real(), shape),
                    (Direction::FromReal | Direction::Complex, ..) => (dtype, shape),
                }
            }
            Fourier::ShortTime {
                n_fft,
                hop,
                onesided,
            } => {
                let frames = frames(x, *n_fft, *hop)?;
                let bins = if *onesided { half(*n_fft) } else { *n_fft };
                let lead = &x[..x.len() - 1];
                let shape = [lead, &[bins.into(), frames.into()]].concat();
                (complex(*dtype)?, shape)
            }
            Fourier::Shift { .. } => (*dtype, x.clone()),
        };
        Ok(vec![(dtype, shape)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], _: &Context<'_>) -> Outputs {
        let x = &operands[0];
        Ok(vec![match self {
            Fourier::Transform {
                direction,
                takes_real,
                dims,
                lengths,
            } => eager.fourier(*direction, *takes_real, dims, lengths, x)?,
            Fourier::ShortTime {
                n_fft,
                hop,
                onesided,
            } => eager.stft([*n_fft, *hop], *onesided, x, operands.get(1))?,
            Fourier::Shift { dims, inverse } => {
                let by = |dim: &usize| {
                    let length = x.shape[*dim].as_fixed().unwrap_or(0);
                    let half = if *inverse {
                        length.div_ceil(2)
                    } else {
                        length / 2
                    };
                    (half.cast_signed(), Some(*dim))
                };
                eager.roll(x, &dims.iter().map(by).collect::<Vec<_>>())
            }
        }])
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
