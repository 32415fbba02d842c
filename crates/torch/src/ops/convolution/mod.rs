//! Convolutions.

mod run;

use crate::ops::prelude::*;
use crate::shape::Window;

/// A convolution along one to three dimensions, as many as the weight has beside its channels. Operands are
/// input, weight and, where there is one, bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Convolution {
    /// `conv1d`, `conv2d`, `conv3d`.
    Plain(Window),
    /// One with `padding="same"` whose kernel spans an odd number of elements more than one: so many zeros
    /// are put after each side, beside those of the window.
    PaddedAfter(Window, [u64; 3]),
    /// `conv_transpose1d`, `conv_transpose2d`, `conv_transpose3d`, which add so many elements to each side of
    /// their output; the weight is `[in, out / groups, ...]`.
    Transposed(Window, [u64; 3]),
}

pub(super) const ATEN: &[(&str, Reader)] = &[
    (
        "aten.conv1d.default aten.conv1d.padding aten.conv2d.default aten.conv2d.padding aten.conv3d.default aten.conv3d.padding",
        plain,
    ),
    ("aten.conv_transpose1d.default", transposed),
    ("aten.conv_transpose2d.input", transposed),
    ("aten.conv_transpose3d.input", transposed),
    ("aten.convolution.default", |args| {
        if args.flag("transposed", false)? {
            transposed(args)
        } else {
            plain(args)
        }
    }),
];

fn plain(args: &Arguments<'_>) -> Result<Read, String> {
    let operands = args.all_and(&["input", "weight"], &["bias"])?;
    let weight = args.shape(operands[1]);
    let (window, rank) = window(args, &weight)?;
    let padding = match args.text("padding", "") {
        Ok("valid") => [0; 3],
        Ok("same") => {
            let span = |axis: usize| {
                let taps = window.kernel[axis].checked_sub(1)?;
                taps.checked_mul(window.dilation[axis])
            };
            let spans = [span(0), span(1), span(2)];
            let [Some(depth), Some(height), Some(width)] = spans else {
                return Err(format!("its weight is {weight:?}"));
            };
            let spans = [depth, height, width];
            let window = Window {
                padding: spans.map(|span| span / 2),
                ..window
            };
            let after = spans.map(|span| span % 2);
            if after != [0; 3] {
                return Ok((Convolution::PaddedAfter(window, after).into(), operands));
            }
            window.padding
        }
        _ => args.sides("padding", rank, 0, Some([0; 3]))?,
    };
    let window = Window { padding, ..window };
    Ok((Convolution::Plain(window).into(), operands))
}

fn transposed(args: &Arguments<'_>) -> Result<Read, String> {
    let operands = args.all_and(&["input", "weight"], &["bias"])?;
    let (window, rank) = window(args, &args.shape(operands[1]))?;
    let window = Window {
        padding: args.sides("padding", rank, 0, Some([0; 3]))?,
        ..window
    };
    let extra = args.sides("output_padding", rank, 0, Some([0; 3]))?;
    // PyTorch runs its own, slower kernels for more (`is_output_padding_big`).
    if (0..3).any(|axis| extra[axis] != 0 && extra[axis] >= window.stride[axis]) {
        return Err("its argument \"output_padding\" is not smaller than its stride".into());
    }
    Ok((Convolution::Transposed(window, extra).into(), operands))
}

/// The window without its padding, and along how many dimensions it goes.
fn window(args: &Arguments<'_>, weight: &[Extent]) -> Result<(Window, usize), String> {
    let taps = match weight {
        [_, _, taps @ ..] if (1..=3).contains(&taps.len()) => taps,
        _ => return Err(format!("its weight is {weight:?}")),
    };
    let rank = taps.len();
    let mut kernel = [1; 3];
    for (side, length) in kernel[3 - rank..].iter_mut().zip(taps) {
        *side = length
            .as_fixed()
            .ok_or_else(|| format!("its weight is {weight:?}"))?;
    }
    let window = Window {
        stride: args.sides("stride", rank, 1, Some([1; 3]))?,
        dilation: args.sides("dilation", rank, 1, Some([1; 3]))?,
        groups: args.count("groups", Some(1))?,
        ..Window::of_volumes(kernel)
    };
    Ok((window, rank))
}

impl Convolution {
    fn window(&self) -> &Window {
        match self {
            Convolution::Plain(window)
            | Convolution::PaddedAfter(window, _)
            | Convolution::Transposed(window, _) => window,
        }
    }
}

impl Operator for Convolution {
    fn name(&self) -> &'static str {
        let [depth, height, _] = self.window().kernel;
        match (self, depth, height) {
            (Convolution::Plain(_) | Convolution::PaddedAfter(..), 1, _) => "conv2d",
            (Convolution::Plain(_) | Convolution::PaddedAfter(..), ..) => "conv3d",
            (Convolution::Transposed(..), 1, _) => "conv_transpose2d",
            (Convolution::Transposed(..), ..) => "conv_transpose3d",
        }
    }

    fn infer(&self, operands: &[Type]) -> Result<Vec<Type>, Mismatch> {
        let (x, weight) = (&operands[0].1, &operands[1].1);
        Ok(vec![(operands[0].0, self.shape(x, weight)?)])
    }

    fn run(&self, eager: &mut Eager, operands: &[Tensor], context: &Context<'_>) -> Outputs {
        let input = [&operands[0], &operands[1]];
        let result = &context.results[0];
        Ok(vec![eager.convolution(
            self,
            input,
            operands.get(2),
            result,
        )?])
    }
}

impl Convolution {
    /// The shape of the result, or what does not fit.
    fn shape(&self, x: &[Extent], weight: &[Extent]) -> Result<Vec<Extent>, Mismatch> {
        let window = self.window();
        let ([n, channels, sides @ ..], [first, second, taps @ ..]) = (x, weight) else {
            return Err(format!(
                "input {x:?} and weight {weight:?} must have channels"
            ));
        };
        if sides.len() != taps.len() || !(1..=3).contains(&sides.len()) {
            return Err(format!(
                "input {x:?} and weight {weight:?} must have as many dimensions, three to five"
            ));
        }
        let all = |per_group: &Extent| per_group.checked_mul(window.groups.into());
        let makes = match self {
            Convolution::Plain(_) | Convolution::PaddedAfter(..) => {
                if all(second) != Some(*channels) {
                    return Err(format!(
                        "the input has {channels} channels, the weight takes {second} in each of {} groups",
                        window.groups
                    ));
                }
                Some(*first)
            }
            Convolution::Transposed(..) => {
                if first != channels {
                    return Err(format!(
                        "the input has {channels} channels, the weight takes {first}"
                    ));
                }
                all(second)
            }
        };
        let first = 3 - sides.len();
        if !taps
            .iter()
            .map(|n| n.as_fixed())
            .eq(window.kernel[first..].iter().copied().map(Some))
        {
            return Err(format!(
                "the weight is {weight:?}, the kernel {:?}",
                window.kernel
            ));
        }
        let makes = makes.ok_or_else(|| format!("the weight {weight:?} is too large"))?;
        let sides = match self {
            Convolution::Plain(_) => window.sides(sides)?,
            Convolution::PaddedAfter(_, after) => {
                let padded = sides.iter().zip(&after[first..]);
                let padded: Vec<Extent> = padded
                    .map(|(side, after)| *side + Extent::fixed(*after))
                    .collect();
                window.sides(&padded)?
            }
            Convolution::Transposed(_, extra) => {
                let side = |(i, length): (usize, &Extent)| {
                    let axis = first + i;
                    let output = length
                        .as_fixed()
                        .and_then(|n| window.transposed_output(axis, n, extra[axis]));
                    output
                        .map(Extent::fixed)
                        .ok_or_else(|| format!("nothing is left of a side of {length}"))
                };
                sides
                    .iter()
                    .enumerate()
                    .map(side)
                    .collect::<Result<_, _>>()?
            }
        };
        Ok([&[*n, makes], sides.as_slice()].concat())
    }
}
