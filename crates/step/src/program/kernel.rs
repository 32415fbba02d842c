//! What the operations of a step compute, precisely enough to run them.
//!
//! The compiler emits one [`Call`] for each launch that eager PyTorch would make. A simulated device
//! ignores them; a GPU runs them.

use super::unary::Unary;
use crate::shape::{DType, Extent, Sizes, Window, contiguous_strides};

use super::TensorId;
use super::convolution::ConvolutionShape;
use super::generated::Generated;

/// Part of a tensor's memory, seen under a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Whose memory.
    pub tensor: TensorId,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements before the first one.
    pub offset: Extent,
    /// Sizes of the dimensions.
    pub shape: Sizes,
    /// Elements between neighbours in each dimension; zero where one element is seen many times.
    pub strides: Sizes,
}

impl View {
    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let one = Extent::ONE;
        let expected = contiguous_strides(&self.shape);
        self.shape
            .iter()
            .zip(&self.strides)
            .zip(&expected)
            .all(|((length, stride), expected)| *length == one || stride == expected)
    }
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// What it computes.
    pub kernel: Kernel,
    /// What it reads, in the order [`Kernel`] documents.
    pub inputs: Vec<View>,
    /// What it writes (or updates), likewise.
    pub outputs: Vec<View>,
    /// Scratch memory, for a convolution that wants some and for attention's backward pass.
    pub workspace: Option<TensorId>,
}

/// How a parameter or buffer starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// All elements alike.
    Constant(f64),
    /// Uniform in `±bound`.
    Uniform {
        /// Largest magnitude.
        bound: f64,
    },
}

/// Operations with two operands, broadcast by their views' strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binary {
    /// Sum.
    Add,
    /// Product.
    Mul,
}

/// How the values of all ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum over the number of ranks.
    Mean,
}

/// What all ranks do together, each with memory of its own: `torch.distributed`'s collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collective {
    /// `in -> out`: one rank's values; `out` may be `in`.
    Broadcast {
        /// Whose.
        root: u64,
    },
    /// `in -> out`: the values of all ranks become one; `out` may be `in`.
    AllReduce(Reduction),
    /// `in -> out`: the values of all ranks, one rank's behind the other's.
    AllGather,
    /// `in -> out`: of the values of all ranks that became one, this rank's part: the first is the first rank's.
    ReduceScatter(Reduction),
}

/// What a launch computes. Half types are computed in float32 and rounded once.
#[derive(Debug, Clone, PartialEq)]
pub enum Kernel {
    /// `() -> out`: a parameter's first values. The tensor's label is its path.
    Initialize(Initial),
    /// `() -> out`: standard normal values.
    RandomNormal,
    /// `() -> out`: int64 values below the bound.
    RandomBelow(u64),
    /// `() -> out`: the same value everywhere.
    Fill(f64),
    /// `() -> out`: 0, 1, 2, …
    Arange,
    /// `in -> out`: the same elements in another type or layout.
    Copy,
    /// `in -> out`: times a number.
    Scale(f64),
    /// `in -> out`: plus a number.
    Shift(f64),
    /// `in -> out`: to a power.
    Power(f64),
    /// `grad, in -> grad_in`.
    PowerGrad(f64),
    /// `a, b -> out`; `out` may be `a`.
    Binary(Binary),
    /// `in -> out`; `out` may be `in`.
    Unary(Unary),
    /// `grad, saved -> grad_in`; saved is the output for relu, tanh and sigmoid, else the input.
    UnaryGrad(Unary),
    /// `in -> out`: the sum over the dimensions that `out` lacks or has with length one, times a number.
    Sum {
        /// Factor, for a mean.
        scale: f64,
    },
    /// `a[..,m,k], b[..,k,n] (, bias[n]) -> out[..,m,n]`. Operands may be transposed views.
    MatMul,
    /// `input, weight -> output`, `grad, weight -> grad_input` or `grad, input -> grad_weight`, by pass.
    Convolution(ConvolutionShape),
    /// `x, weight, bias -> y, mean, inverse_std, running_mean, running_var`, with batch statistics.
    BatchNorm {
        /// Share of the new statistics in the running ones.
        momentum: f64,
        /// Added to the variance.
        eps: f64,
    },
    /// `x, weight, bias, running_mean, running_var -> y`.
    BatchNormInference {
        /// Added to the variance.
        eps: f64,
    },
    /// `grad, x, weight, mean, inverse_std -> grad_x, grad_weight, grad_bias`.
    BatchNormGrad,
    /// `grad, x, weight, running_mean, running_var -> grad_x, grad_weight, grad_bias`: the statistics are
    /// constants.
    BatchNormInferenceGrad {
        /// Added to the variance.
        eps: f64,
    },
    /// `x, weight, bias -> y, mean, inverse_std` over rows.
    LayerNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// `grad, x, weight, mean, inverse_std -> grad_x, grad_weight, grad_bias`.
    LayerNormGrad,
    /// `x -> y, indices` (int64, positions within a plane).
    MaxPool(Window),
    /// `grad, indices -> grad_x`.
    MaxPoolGrad(Window),
    /// `x -> y`: averages over regions.
    AdaptiveAvgPool,
    /// `grad -> grad_x`.
    AdaptiveAvgPoolGrad,
    /// `x -> y, mask` (bool).
    Dropout {
        /// Share of elements dropped.
        p: f64,
    },
    /// `grad, mask -> grad_x`.
    DropoutGrad {
        /// Share of elements dropped.
        p: f64,
    },
    /// `x, indices -> y` along a dimension.
    Gather {
        /// Which dimension.
        dim: usize,
    },
    /// `grad, indices -> grad_x`, zero elsewhere.
    GatherGrad {
        /// Which dimension.
        dim: usize,
    },
    /// `weight, indices -> y`.
    Embedding,
    /// `grad, indices -> grad_weight`.
    EmbeddingGrad {
        /// The row that gets none.
        padding: Option<u64>,
    },
    /// `query, key, value (, bias) -> out (, log_sum_exp)`: the bias is added to scaled scores, and broadcasts.
    Attention {
        /// Whether later positions are hidden.
        causal: bool,
        /// Share of attention weights dropped.
        dropout: f64,
        /// What scores are multiplied by.
        scale: f64,
    },
    /// `grad, query, key, value, out, log_sum_exp (, bias) -> grad_query, grad_key, grad_value (, grad_bias)`.
    AttentionGrad {
        /// Whether later positions are hidden.
        causal: bool,
        /// Share of attention weights dropped.
        dropout: f64,
        /// What scores are multiplied by.
        scale: f64,
    },
    /// `x -> y`: softmax, or its logarithm.
    Softmax {
        /// Along which dimension.
        dim: usize,
        /// Whether its logarithm is taken.
        log: bool,
    },
    /// `grad, y -> grad_x`.
    SoftmaxGrad {
        /// Along which dimension.
        dim: usize,
        /// Whether the logarithm was taken.
        log: bool,
    },
    /// `in -> out`: zero above the diagonal of each matrix.
    Tril,
    /// `in -> out`: zero where a truth value is true, else minus infinity.
    MaskBias,
    /// `x, y -> hidden, rows, y`: which elements of `x` are minus infinity, and in which rows all are; `y`
    /// becomes zero in those.
    HiddenRows,
    /// `log_probabilities, target -> loss, total_weight`: the mean over targets (`-100` ignored).
    NllLoss,
    /// `grad, target, total_weight -> grad_x`, zero elsewhere.
    NllLossGrad,
    /// `in.. -> out..`: what formulas say, by kernels made from them.
    Generated(Box<Generated>),
    /// `in.. -> out..`: an operation whose memory is followed and whose values are not. A GPU refuses it by
    /// its name.
    MemoryOnly(&'static str),
    /// `loss -> ()`: where a probe reads the loss.
    ObserveLoss,
    /// `gradient.. -> found_inf`, every gradient multiplied by `1 / scale`; inputs are `scale`, then
    /// gradients, which are outputs after `found_inf` as well.
    Unscale,
    /// `norm, gradient.. -> gradient..`, every gradient multiplied by `max_norm / norm` where that is less than one.
    ClipGradNorm {
        /// The largest norm of all gradients together.
        max_norm: f64,
    },
    /// What all ranks do together, in the same order on each.
    Collective(Collective),
    /// `found_inf -> scale, growth_tracker`.
    ScalerUpdate,
    /// `gradient (, found_inf) -> parameter, momentum`. The first step stores the gradient itself.
    SgdMomentum {
        /// Whether the momentum was made in this very step.
        first: bool,
    },
    /// `gradient (, found_inf) -> parameter`.
    Sgd,
    /// `gradient (, found_inf) -> parameter, exp_avg, exp_avg_sq`. The step number is the device's to count.
    Adam {
        /// Whether weight decay is decoupled (`AdamW`, 0.01) or absent (Adam, 0).
        decoupled: bool,
    },
}
