//! What launches ask of a card and of the host, from which the time of a step follows.
//!
//! Launches are nine tenths of a program and most simulations leave them out. This is what is left of them
//! then: each different piece of work once, and an order in which they are asked for.

use crate::shape::{DType, Extent, numel};

use super::convolution::ConvolutionShape;
use super::generated::Form;
use super::kernel::Kernel;
use super::operand::Operand;

/// Names a piece of work of one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkId(pub u32);

/// What a launch asks of the card. Lengths are functions of the batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Work {
    /// Products of matrices.
    Product {
        /// Type of the factors.
        dtype: DType,
        /// Whether the first factor, and the second, lie by columns.
        turned: [bool; 2],
        /// How many products, rows of the first, columns of the second, and what is summed over.
        lengths: [Extent; 4],
    },
    /// A convolution.
    Convolution(ConvolutionShape),
    /// Scaled dot product attention in one kernel, or its gradient.
    Attention {
        /// Type of the operands.
        dtype: DType,
        /// Whether it is the gradient.
        backward: bool,
        /// What is hidden.
        mask: Mask,
        /// Samples times heads, positions, keys, width of a head.
        lengths: [Extent; 4],
        /// Bytes read and written.
        moved: Extent,
    },
    /// What mostly moves memory.
    Moving {
        /// Which kind of kernel does.
        kind: Moving,
        /// Type of the main operand.
        dtype: DType,
        /// What its speed depends on, by kind.
        lengths: [Extent; 3],
        /// Bytes read and written.
        moved: Extent,
    },
}

/// What attention hides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Nothing.
    Full,
    /// Later positions.
    Causal,
    /// What an operand says.
    Masked,
}

/// Kernels that mostly move memory, by what their speed depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moving {
    /// Element by element; also whatever is not described further. Of elements.
    Map,
    /// The same where an operand is seen many times, or lies otherwise than the result. Of elements.
    Broadcast,
    /// A copy of rows into columns: how often, rows, and columns.
    Transpose,
    /// A copy of rows as they are, in another order. Of rows and their width.
    Reorder,
    /// One value everywhere. Of elements.
    Fill,
    /// Random values. Of elements.
    Random,
    /// Zeros among elements. Of elements.
    Dropout,
    /// Sums of neighbours. Of results, and of all summands.
    SumInner,
    /// Sums along a dimension with others inside. Likewise.
    SumOuter,
    /// Sums along dimensions inside and outside of those that stay. Likewise.
    SumChannels,
    /// Of elements and the width of rows.
    Softmax,
    /// Likewise.
    SoftmaxGrad,
    /// Of elements and the width of rows.
    LayerNorm,
    /// Likewise.
    LayerNormGrad,
    /// Of samples, channels, and elements of a plane.
    BatchNorm,
    /// Likewise.
    BatchNormGrad,
    /// Of elements before and after.
    MaxPool,
    /// Likewise.
    MaxPoolGrad,
    /// Values between others along the last dimensions. Of planes, and elements of one before and after.
    Interpolate(Nearest),
    /// Likewise.
    InterpolateGrad(Nearest),
    /// Windows as columns. Of samples, and elements of one before and after.
    Unfold,
    /// Columns added up in windows. Likewise.
    Fold,
    /// Averages over windows. Of elements before and after.
    AvgPool,
    /// Likewise.
    AvgPoolGrad,
    /// Of elements of the rows, and their width.
    Embedding,
    /// Likewise.
    EmbeddingGrad,
    /// Unscaling gradients. Of tensors and elements.
    Unscale,
    /// An optimizer's update of all parameters. Of tensors and elements.
    Update(Updating),
}

/// Whether values between others are the nearest of them.
pub type Nearest = bool;

/// Which optimizer, as its kernels go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Updating {
    /// SGD, all parameters at once.
    Sgd,
    /// SGD with momentum, all parameters at once.
    SgdMomentum,
    /// Adam, all parameters at once.
    Adam,
    /// Adam in one kernel.
    AdamFused,
    /// `AdamW`, all parameters at once.
    Adamw,
    /// `AdamW` in one kernel.
    AdamwFused,
}

listed! {
    /// What the host does for a step, by what it costs. What always comes along with one of these is in its cost: views, casts, allocations,
    /// launches going forward.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Host {
        /// A call of a module.
        Module,
        /// A call of an operator by the model's code.
        Operator,
        /// A launch by autograd's thread.
        BackwardLaunch,
        /// A parameter's gradient kept or added to.
        Leaf,
        /// A parameter updated with others, by an optimizer that keeps nothing or little, or in one kernel.
        Update,
        /// A parameter updated with others by Adam or `AdamW` in several kernels.
        AdamUpdate,
        /// A parameter updated on its own.
        LoneUpdate,
        /// A checkpoint run again.
        Checkpoint,
        /// A micro-step: a batch, a loss, a start of the autograd engine.
        MicroStep,
        /// A step: the optimizer's and `zero_grad`'s own.
        Step,
    }
}

/// What happens next in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// The host does something, so many times.
    Host(Host, u32),
    /// A piece of work is queued on the card.
    Queue(WorkId),
    /// The host waits for all that is queued.
    Wait,
}

/// Everything a later step does, from which its time follows. Empty where that is unknown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// Each different piece of work once; [`WorkId`] is an index.
    pub works: Vec<Work>,
    /// In order, and how often each runs.
    pub sections: Vec<(Vec<Tick>, u32)>,
    /// Which of them every further micro-step repeats; `None` where there is but one, or they are not all alike.
    pub repeated: Option<usize>,
}

impl Timeline {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.sections.iter().all(|(ticks, _)| ticks.is_empty())
    }
}

impl Work {
    /// What a launch asks of the card; `None` for what asks nothing, or is accounted for elsewhere.
    #[expect(clippy::too_many_lines, reason = "a few lines for each kind of kernel")]
    pub fn of(kernel: &Kernel, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Option<Work> {
        let first = inputs.first().or(outputs.first())?;
        let moved = || {
            let operands = inputs.iter().chain(outputs);
            operands.fold(Extent::ZERO, |sum, operand| sum + operand.bytes())
        };
        let moving = |kind: Moving, lengths: [Extent; 3]| {
            Some(Work::Moving {
                kind,
                dtype: first.dtype,
                lengths,
                moved: moved(),
            })
        };
        let largest = || {
            let all = inputs.iter().chain(outputs).map(Operand::elements);
            all.max_by_key(|elements| elements.at(64))
                .unwrap_or(Extent::ONE)
        };
        let elements = || [largest(), Extent::ONE, Extent::ONE];
        let lying = |(kind, lengths): (Moving, Option<[Extent; 3]>)| {
            moving(kind, lengths.unwrap_or_else(elements))
        };
        let rows = |width: Extent| [first.elements(), width, Extent::ONE];
        let resampled = || match (first.shape, outputs.first()?.shape) {
            ([samples, channels, before @ ..], [_, _, after @ ..]) => {
                Some([*samples * *channels, numel(before), numel(after)])
            }
            _ => None,
        };
        let planes = |of: &Operand<'_>| match of.shape {
            [samples, channels, plane @ ..] => [*samples, *channels, numel(plane)],
            _ => [of.elements(), Extent::ONE, Extent::ONE],
        };
        match kernel {
            Kernel::Initialize(_)
            | Kernel::ObserveLoss
            | Kernel::Sgd
            | Kernel::SgdMomentum { .. }
            | Kernel::Adam { .. }
            | Kernel::Collective(_) => None,
            Kernel::RandomNormal | Kernel::RandomBelow(_) => moving(Moving::Random, elements()),
            Kernel::Fill(_) | Kernel::Arange => moving(Moving::Fill, elements()),
            Kernel::MatMul => {
                let [a, b] = [inputs.first()?, inputs.get(1)?];
                let ([_, rows, inner], [_, _, columns]) = (a.matrices(), b.matrices());
                let [stack, ..] = outputs.first()?.matrices();
                Some(Work::Product {
                    dtype: a.dtype,
                    turned: [a.is_by_columns(), b.is_by_columns()],
                    lengths: [stack, rows, columns, inner],
                })
            }
            Kernel::Convolution(shape) => Some(Work::Convolution(*shape)),
            Kernel::Attention { causal, .. } | Kernel::AttentionGrad { causal, .. } => {
                let backward = matches!(kernel, Kernel::AttentionGrad { .. });
                let operands = inputs.get(usize::from(backward)..)?;
                let [query, key] = [operands.first()?, operands.get(1)?];
                let is_masked = inputs.len() > if backward { 6 } else { 3 };
                let [samples, heads, positions, width] = *query.shape else {
                    return moving(Moving::Map, elements());
                };
                let mask = match (is_masked, causal) {
                    (true, _) => Mask::Masked,
                    (false, true) => Mask::Causal,
                    (false, false) => Mask::Full,
                };
                Some(Work::Attention {
                    dtype: query.dtype,
                    backward,
                    mask,
                    lengths: [samples * heads, positions, key.shape[2], width],
                    moved: moved(),
                })
            }
            Kernel::Sum { .. } => Some(sum(first, outputs.first()?, moved())),
            Kernel::AdaptiveAvgPool => moving(
                Moving::SumInner,
                [outputs.first()?.elements(), first.elements(), Extent::ONE],
            ),
            Kernel::BatchNorm { .. } => moving(Moving::BatchNorm, planes(first)),
            Kernel::BatchNormGrad | Kernel::BatchNormInferenceGrad { .. } => {
                moving(Moving::BatchNormGrad, planes(first))
            }
            Kernel::LayerNorm { .. } => {
                let width = inputs.get(1).map_or(first.last(), Operand::elements);
                moving(Moving::LayerNorm, rows(width))
            }
            Kernel::LayerNormGrad => {
                let width = inputs.get(2).map_or(first.last(), Operand::elements);
                moving(Moving::LayerNormGrad, rows(width))
            }
            Kernel::MaxPool(_) => moving(
                Moving::MaxPool,
                [first.elements(), outputs.first()?.elements(), Extent::ONE],
            ),
            Kernel::MaxPoolGrad(_) => moving(
                Moving::MaxPoolGrad,
                [outputs.first()?.elements(), first.elements(), Extent::ONE],
            ),
            Kernel::Dropout { .. } => moving(Moving::Dropout, elements()),
            Kernel::Embedding => {
                let made = outputs.first()?;
                // Of the table, only rows that are asked for are read.
                Some(Work::Moving {
                    kind: Moving::Embedding,
                    dtype: made.dtype,
                    lengths: [made.elements(), made.last(), Extent::ONE],
                    moved: made.bytes() + made.bytes(),
                })
            }
            Kernel::EmbeddingGrad { .. } => moving(Moving::EmbeddingGrad, rows(first.last())),
            Kernel::Softmax { dim, .. } => moving(Moving::Softmax, rows(first.along(*dim))),
            Kernel::SoftmaxGrad { dim, .. } => moving(Moving::SoftmaxGrad, rows(first.along(*dim))),
            Kernel::Unscale => {
                let count = Extent::fixed(inputs.len().saturating_sub(1) as u64);
                let all = inputs.iter().skip(1).map(Operand::elements);
                let all = all.fold(Extent::ZERO, |sum, elements| sum + elements);
                moving(Moving::Unscale, [count, all, Extent::ONE])
            }
            Kernel::Generated(generated) => match &generated.form {
                Form::Reduce { .. } => Some(sum(first, outputs.first()?, moved())),
                _ if generated.name.starts_with("avg_pool") => {
                    let [before, after] = [first.elements(), outputs.first()?.elements()];
                    let (kind, sides) = if generated.outputs == ["grad_x"] {
                        (Moving::AvgPoolGrad, [after, before, Extent::ONE])
                    } else {
                        (Moving::AvgPool, [before, after, Extent::ONE])
                    };
                    moving(kind, sides)
                }
                Form::Map(_) => lying(elementwise(inputs, outputs)),
                // Of planes that lie one after the other; other kernels run where channels do.
                _ if generated.name.starts_with("interpolate") && !first.is_by_columns() => {
                    let nearest: Nearest = generated.name.ends_with("nearest");
                    let [planes, before, after] = resampled()?;
                    if generated.outputs == ["x"] {
                        moving(Moving::InterpolateGrad(nearest), [planes, after, before])
                    } else {
                        moving(Moving::Interpolate(nearest), [planes, before, after])
                    }
                }
                _ if ["im2col", "col2im"].contains(&generated.name) => {
                    let samples = first.along(0);
                    let of_one = |operand: &Operand<'_>| {
                        operand
                            .elements()
                            .checked_div(samples)
                            .unwrap_or(Extent::ONE)
                    };
                    let sides = [samples, of_one(first), of_one(outputs.first()?)];
                    moving(
                        if generated.name == "im2col" {
                            Moving::Unfold
                        } else {
                            Moving::Fold
                        },
                        sides,
                    )
                }
                // What finds its operands' elements by indices reads as many as it writes at most.
                _ => moving(Moving::Map, elements()),
            },
            Kernel::Copy => {
                let made = outputs.first()?;
                let same = first.shape.len() != made.shape.len()
                    || first.order() == made.order()
                    || first.strides.contains(&Extent::ZERO);
                match (same, first.order().last() == made.order().last()) {
                    (true, _) => moving(Moving::Map, elements()),
                    // Rows stay rows, in another order.
                    (false, true) => {
                        let [_, _, width] = first.turned(made);
                        moving(Moving::Reorder, rows(width))
                    }
                    (false, false) => moving(Moving::Transpose, first.turned(made)),
                }
            }
            Kernel::Gather { .. } | Kernel::NllLoss => {
                // Of the table, as much is read as is written.
                let made = outputs.first()?;
                let indices = inputs.last()?;
                Some(Work::Moving {
                    kind: Moving::Map,
                    dtype: first.dtype,
                    lengths: [indices.elements(), Extent::ONE, Extent::ONE],
                    moved: made.bytes() + made.bytes() + indices.bytes() + indices.bytes(),
                })
            }
            _ => lying(elementwise(inputs, outputs)),
        }
    }
}

/// How the operands of an elementwise function lie: alike, so that they are read as one run; otherwise, with rows for rows; or so that
/// rows of one are columns of another, and of which lengths.
fn elementwise(inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> (Moving, Option<[Extent; 3]>) {
    let Some(made) = outputs.first() else {
        return (Moving::Map, None);
    };
    let lies_alike = |one: &Operand<'_>| {
        let dims = one.shape.iter().zip(one.strides);
        let of_made = made.shape.iter().zip(made.strides);
        one.elements() == Extent::ONE
            || (one.shape == made.shape
                && dims
                    .zip(of_made)
                    .all(|((length, a), (_, b))| *length == Extent::ONE || a == b))
    };
    let crosses = |one: &&Operand<'_>| {
        one.shape == made.shape
            && !one.strides.contains(&Extent::ZERO)
            && one.order().last() != made.order().last()
    };
    if inputs.iter().all(lies_alike) {
        (Moving::Map, None)
    } else if let Some(one) = inputs.iter().find(crosses) {
        (Moving::Transpose, Some(one.turned(made)))
    } else {
        (Moving::Broadcast, None)
    }
}

/// A sum over the dimensions that the result lacks or has with length one.
fn sum(whole: &Operand<'_>, result: &Operand<'_>, moved: Extent) -> Work {
    let kept = kept(whole.shape, result.shape);
    let order = whole.order();
    let mut stays = order.iter().map(|dim| kept[*dim]).rev();
    let innermost_stays = stays.next().unwrap_or(false);
    // Inside those that stay, then those that stay, then perhaps others.
    let mut outside = stays.skip_while(|stays| !stays).skip_while(|stays| *stays);
    let kind = match (innermost_stays, outside.next()) {
        (true, _) => Moving::SumOuter,
        (false, None) => Moving::SumInner,
        (false, Some(_)) => Moving::SumChannels,
    };
    Work::Moving {
        kind,
        dtype: whole.dtype,
        lengths: [result.elements(), whole.elements(), Extent::ONE],
        moved,
    }
}

/// Which dimensions of a whole its sum still has.
fn kept(whole: &[Extent], result: &[Extent]) -> Vec<bool> {
    if whole.len() == result.len() {
        let dims = whole.iter().zip(result);
        return dims
            .map(|(before, after)| before == after && *before != Extent::ONE)
            .collect();
    }
    let mut kept = vec![false; whole.len()];
    let mut end = whole.len();
    for length in result.iter().rev() {
        if let Some(at) = whole[..end].iter().rposition(|one| one == length) {
            kept[at] = true;
            end = at;
        }
    }
    kept
}
