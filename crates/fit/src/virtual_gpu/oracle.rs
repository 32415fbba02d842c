//! What a script's cuDNN would want of a convolution, from the tables that simulations read.

use std::sync::{Mutex, PoisonError};

use crate::device::Launcher as _;
use crate::device::sim::workspaces::{Plans, Source};
use crate::device::sim::{Card, SimulatedLauncher};
use crate::program::{Convolution, ConvolutionLayer, ConvolutionPass};
use crate::shape::DType;

/// Answers questions about one card. Reading a table takes a while, so it is done when something is first asked.
#[derive(Debug)]
pub struct Oracle {
    card: &'static Card,
    launcher: Mutex<Option<SimulatedLauncher>>,
}

/// Fields of a question after its name.
const FIELDS: usize = 15;

/// Largest number that is taken seriously, and most elements of a tensor: what is multiplied later has to fit 64 bits.
const LARGEST: u64 = 1 << 24;
const MOST_ELEMENTS: u64 = 1 << 48;

impl Oracle {
    /// For a card.
    pub fn of(card: &'static Card) -> Oracle {
        Oracle {
            card,
            launcher: Mutex::new(None),
        }
    }

    /// Answers `convolution`'s fields: how it is known, and what each plan allocates in the order in which they are tried. `None` where
    /// that is no question.
    pub fn convolution(&self, fields: &[&str]) -> Option<(&'static str, String)> {
        let call = read(fields)?;
        let mut launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner);
        let launcher = launcher.get_or_insert_with(|| SimulatedLauncher::of(Some(self.card)));
        let mut plans = launcher.plans(&call);
        // The same call of the library is recorded as another layer's, where a network that was recorded has that one.
        if matches!(plans.source, Source::Estimated(_))
            && let Some(other) = other_spelling(&call)
        {
            let others = launcher.plans(&other);
            if !matches!(others.source, Source::Estimated(_) | Source::NotTheLibrary) {
                plans = others;
            }
        }
        let listed = plans.workspaces.len();
        let further = launcher.further_plans(&call, listed).unwrap_or_default();
        plans.workspaces.extend(further);
        let bytes: Vec<String> = plans
            .workspaces
            .iter()
            .map(|one| one.0.to_string())
            .collect();
        let bytes = bytes.join(",");
        Some(match name(&plans) {
            "none" => ("none", String::new()),
            name => (name, bytes),
        })
    }
}

fn name(plans: &Plans) -> &'static str {
    match plans.source {
        Source::Recorded => "recorded",
        Source::Interpolated => "interpolated",
        Source::Asked => "asked",
        Source::Estimated(_) => "estimated",
        // It came to the library all the same: by a version of PyTorch that decides otherwise.
        Source::NotTheLibrary => "none",
    }
}

/// The call of a plain layer that the library cannot tell from one of a transposed layer, and the other way around.
fn other_spelling(call: &Convolution) -> Option<Convolution> {
    let mut other = Convolution {
        pass: match call.pass {
            ConvolutionPass::Forward => ConvolutionPass::GradInput,
            ConvolutionPass::GradInput => ConvolutionPass::Forward,
            ConvolutionPass::GradWeight => ConvolutionPass::GradWeight,
        },
        layer: ConvolutionLayer {
            in_channels: call.out_channels,
            out_channels: call.in_channels,
            input: call.output(),
            transposed: !call.transposed,
            output_padding: [0; 3],
            ..call.layer
        },
        ..*call
    };
    if other.transposed {
        let reached = other.output();
        for (axis, wanted) in call.input.into_iter().enumerate() {
            other.layer.output_padding[axis] = wanted.checked_sub(reached[axis])?;
        }
    }
    (other.operands() == call.operands()).then_some(other)
}

fn read(fields: &[&str]) -> Option<Convolution> {
    if fields.len() != FIELDS {
        return None;
    }
    let number = |at: usize| parse_bounded(fields[at]);
    let sides = |at: usize| {
        let mut sides = fields[at].split(',').map(parse_bounded);
        let three = [sides.next()??, sides.next()??, sides.next()??];
        sides.next().is_none().then_some(three)
    };
    let call = Convolution {
        pass: match fields[0] {
            "forward" => ConvolutionPass::Forward,
            "grad_input" => ConvolutionPass::GradInput,
            "grad_weight" => ConvolutionPass::GradWeight,
            _ => return None,
        },
        dtype: match fields[1] {
            "float32" => DType::Float32,
            "float16" => DType::Float16,
            "bfloat16" => DType::BFloat16,
            _ => return None,
        },
        batch: number(2)?,
        layer: ConvolutionLayer {
            in_channels: number(3)?,
            out_channels: number(4)?,
            groups: number(5)?,
            input: sides(6)?,
            kernel: sides(7)?,
            stride: sides(8)?,
            padding: sides(9)?,
            dilation: sides(10)?,
            transposed: number(11)? == 1,
            output_padding: sides(12)?,
            volumes: number(13)? == 1,
            channels_last: number(14)? == 1,
        },
    };
    let counts = [call.batch, call.in_channels, call.out_channels, call.groups];
    let whole = [call.input, call.kernel, call.stride, call.dilation];
    let is_positive = |number: &u64| *number > 0;
    if !counts.iter().all(is_positive) || !whole.iter().flatten().all(is_positive) {
        return None;
    }
    let operands = call.operands();
    let is_sane = |dims: &[u64; 5]| {
        let product = dims
            .iter()
            .try_fold(1_u64, |all, side| all.checked_mul(*side));
        product.is_some_and(|elements| elements <= MOST_ELEMENTS)
    };
    [operands.x, operands.w, operands.y]
        .iter()
        .all(is_sane)
        .then_some(call)
}

fn parse_bounded(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_layer_and_a_transposed_one_are_the_same_call() {
        let fields = "grad_input\tfloat16\t8\t64\t128\t2\t1,33,32\t1,4,4\t1,2,2\t0,1,1\t1,1,1\t0\t0,0,0\t0\t1";
        let fields: Vec<&str> = fields.split('\t').collect();
        let plain = read(&fields).unwrap();

        let other = other_spelling(&plain).unwrap();

        assert_eq!((other.in_channels, other.out_channels), (128, 64));
        assert_eq!(
            (other.pass, other.transposed),
            (ConvolutionPass::Forward, true)
        );
        assert_eq!(other.output_padding, [0, 1, 0]);
        assert_eq!(other_spelling(&other), Some(plain));
    }
}
