//! The forward operations, at the level a PyTorch user thinks in.

use crate::program::Placement;
use crate::shape::Window;
use serde::Serialize;

use crate::ops::Create;
use crate::ops::Einsum;
use crate::ops::Indexed;
use crate::ops::Loss;
use crate::ops::Normalize;
use crate::ops::Pointwise;
use crate::ops::Resample;
use crate::program::Unary;
use crate::shape::DType;
use crate::shape::Extent;

/// One forward operation, by the name of the ATen operator it stands for.
///
/// Operands are given by the node, in the order each variant documents; attributes are here. Layers,
/// presets and exported graphs all lower to these.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Op {
    /// `linear(input, weight[, bias])`; `weight` is `[out, in]`.
    Linear,
    /// `addmm(bias, mat1, mat2)`; `mat2` is `[in, out]`.
    Addmm,
    /// `conv2d(input, weight[, bias])`.
    Conv2d(Window),
    /// `conv_transpose2d(input, weight[, bias])`; `weight` is `[in, out / groups, height, width]`.
    ConvTranspose2d(Window),
    /// `matmul(a, b)` of vectors, matrices or stacks of them, which broadcast.
    Matmul,
    /// `bmm(a, b)` of equally many matrices.
    Bmm,
    /// `baddbmm(c, a, b)`.
    Baddbmm {
        /// Whether `c` and the product are multiplied by numbers other than one.
        scaled: [bool; 2],
    },
    /// `batch_norm(input, weight, bias, running_mean, running_var)`.
    BatchNorm {
        /// Whether batch statistics are used and running ones updated.
        training: bool,
        /// Share of the new statistics in the running ones.
        momentum: f64,
        /// Added to the variance.
        eps: f64,
    },
    /// `layer_norm(input[, weight[, bias]])` over the last `dims` dimensions.
    LayerNorm {
        /// How many trailing dimensions are normalized.
        dims: usize,
        /// Added to the variance.
        eps: f64,
    },
    /// `rms_norm(input[, weight])` over the last `dims` dimensions.
    RmsNorm {
        /// How many trailing dimensions are normalized.
        dims: usize,
    },
    /// `grouped_mm(input, weights, offsets)`: rows of the input times one matrix each; `weights` is
    /// `[groups, in, out]`.
    GroupedMatmul,
    /// Something that is not known, taken to be elementwise: what it makes, as PyTorch recorded it.
    Opaque(Vec<(DType, Vec<Extent>)>),
    /// `loss(input, target)` of another kind than [`Op::CrossEntropy`].
    Loss(Loss),
    /// An elementwise function of one tensor.
    Unary {
        /// Which function.
        function: Unary,
        /// Whether the result replaces the operand (`relu_`).
        in_place: Placement,
    },
    /// Any other elementwise function of tensors and numbers.
    Pointwise(Pointwise),
    /// A look-up, a sort or a choice among elements.
    Indexed(Indexed),
    /// A tensor made out of nothing; the operand, if there is one, gives its type.
    Create(Create),
    /// `softmax(input, dim, dtype)`, or its logarithm.
    Softmax {
        /// Along which dimension.
        dim: usize,
        /// Whether its logarithm is taken.
        log: bool,
        /// The type to compute in, where the model's code says.
        dtype: Option<DType>,
    },
    /// `addcmul(self, tensor1, tensor2)`.
    Addcmul,
    /// `prelu(input, weight)`.
    Prelu,
    /// `einsum` of two tensors.
    Einsum(Einsum),
    /// `linalg_vector_norm(input)`, Euclidean.
    VectorNorm {
        /// Which dimensions.
        dims: Vec<usize>,
        /// Whether they stay, with a length of one.
        keep: bool,
    },
    /// `self + other`, broadcast.
    Add(Placement),
    /// `self * other`, broadcast.
    Mul,
    /// `self + scalar`, or `self += scalar`.
    AddScalar(f64, Placement),
    /// `self * scalar`.
    MulScalar(f64),
    /// `self ** exponent`.
    PowScalar(f64),
    /// `dropout(input, p, train)`.
    Dropout {
        /// Share of elements dropped.
        p: f64,
        /// Whether it does anything.
        train: bool,
    },
    /// Dropout by a product with noise: of whole features, or in place.
    NoiseDropout {
        /// Share of elements dropped.
        p: f64,
        /// Whether it does anything.
        train: bool,
        /// Whether the result replaces the operand.
        in_place: Placement,
        /// Whether whole channels are dropped.
        features: bool,
    },
    /// Normalizations other than the usual two.
    Normalize(Normalize),
    /// `max_pool2d(input)`.
    MaxPool2d(Window),
    /// `adaptive_avg_pool2d(input, output)`.
    AdaptiveAvgPool2d {
        /// Height and width of the result.
        output: [u64; 2],
    },
    /// A pool along the last of three dimensions: that of planes one high.
    Pool1d(Pool1d),
    /// `embedding(weight, indices)`.
    Embedding {
        /// The row that gets no gradient.
        padding: Option<u64>,
    },
    /// `view`, `reshape`, `flatten`: the same elements under another shape, copied where they must be.
    Reshape(Vec<Extent>),
    /// `permute(order)`, and the other names of exchanged dimensions: which of the operand's dimensions
    /// each of the result's is.
    Permute(Vec<usize>),
    /// `unsqueeze(dim)`.
    Unsqueeze(usize),
    /// `expand(shape)`.
    Expand(Vec<Extent>),
    /// `slice(dim, start, end, step)`.
    Slice {
        /// Which dimension.
        dim: usize,
        /// First index.
        start: u64,
        /// Past the last index; already clamped to the length.
        end: Extent,
        /// Distance between the elements taken. Not one only where the length is fixed.
        step: u64,
    },
    /// `select(dim, index)`: one slice, without its dimension.
    Select {
        /// Which dimension.
        dim: usize,
        /// Which element of it.
        index: u64,
    },
    /// `unfold(dim, size, step)`: windows along a dimension, as a new last one.
    Windows {
        /// Which dimension.
        dim: usize,
        /// Length of a window.
        size: u64,
        /// Distance between windows.
        step: u64,
    },
    /// `gather(input, index)` along a dimension.
    Gather {
        /// Which dimension.
        dim: usize,
    },
    /// `sum(dims)` or `mean(dims)`.
    Reduce {
        /// Which of the two.
        function: Reduction,
        /// Which dimensions, ascending.
        dims: Vec<usize>,
        /// Whether they stay, with a length of one.
        keep: bool,
    },
    /// `split(lengths, dim)`: several results.
    Split {
        /// Length of each part.
        lengths: Vec<u64>,
        /// Which dimension.
        dim: usize,
    },
    /// `unbind(dim)`: every element along a dimension, without it.
    Unbind {
        /// Which dimension.
        dim: usize,
    },
    /// `cat(tensors, dim)`.
    Cat {
        /// Which dimension.
        dim: usize,
    },
    /// `stack(tensors, dim)`: joined along a new dimension.
    Stack {
        /// Which dimension of the result.
        dim: usize,
    },
    /// `roll` along so many dimensions, one after the other.
    Roll {
        /// How many.
        dims: usize,
    },
    /// `flip`.
    Flip,
    /// `repeat(times)`: copies side by side along each dimension of the result.
    Repeat(Vec<Extent>),
    /// `contiguous()`.
    Contiguous,
    /// `clone()`.
    Clone,
    /// `alias`: the same tensor under another name.
    Alias,
    /// `detach()`: the same memory, without history.
    Detach,
    /// `to(dtype)`.
    Cast(DType),
    /// Pools, interpolation and padding.
    Resample(Resample),
    /// `arange(end)` of int64.
    Arange(Extent),
    /// `scaled_dot_product_attention(query, key, value[, mask])`.
    Attention {
        /// Whether later positions are hidden.
        causal: bool,
        /// Share of attention weights dropped.
        dropout: f64,
        /// Whether fewer key and value heads than query heads are allowed.
        grouped: bool,
        /// What scores are multiplied by, where the model's code says.
        scale: Option<f64>,
    },
    /// `cross_entropy(input, target)`, mean over all targets; class indices along dimension 1.
    CrossEntropy,
}

/// Pools along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Pool1d {
    /// `adaptive_avg_pool1d` to this length.
    AdaptiveAverage(u64),
    /// `avg_pool1d`, with a window one high.
    Average(Window),
    /// `max_pool1d`, with a window one high.
    Max(Window),
}

/// What a reduction computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
}

impl Op {
    /// The name a PyTorch user knows it by.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Linear => "linear",
            Op::Addmm => "addmm",
            Op::Conv2d(_) => "conv2d",
            Op::ConvTranspose2d(_) => "conv_transpose2d",
            Op::Matmul => "matmul",
            Op::Bmm => "bmm",
            Op::Baddbmm { .. } => "baddbmm",
            Op::Pointwise(pointwise) => pointwise.name(),
            Op::Indexed(indexed) => indexed.name(),
            Op::Create(create) => create.name,
            Op::Softmax { log: false, .. } => "softmax",
            Op::Softmax { log: true, .. } => "log_softmax",
            Op::BatchNorm { .. } => "batch_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::RmsNorm { .. } => "rms_norm",
            Op::GroupedMatmul => "grouped_mm",
            Op::Opaque(_) => "unknown",
            Op::Loss(loss) => loss.function.name(),
            Op::Unary { function, in_place } => function.name(*in_place),
            Op::Add(Placement::New) | Op::AddScalar(_, Placement::New) => "add",
            Op::Add(Placement::InPlace) | Op::AddScalar(_, Placement::InPlace) => "add_",
            Op::Mul | Op::MulScalar(_) => "mul",
            Op::PowScalar(_) => "pow",
            Op::Dropout { .. } => "dropout",
            Op::NoiseDropout {
                in_place, features, ..
            } => match (in_place, features) {
                (Placement::New, false) => "dropout",
                (Placement::InPlace, false) => "dropout_",
                (Placement::New, true) => "feature_dropout",
                (Placement::InPlace, true) => "feature_dropout_",
            },
            Op::Normalize(normalize) => normalize.name(),
            Op::Addcmul => "addcmul",
            Op::Prelu => "prelu",
            Op::Einsum(_) => "einsum",
            Op::VectorNorm { .. } => "linalg_vector_norm",
            Op::MaxPool2d(_) => "max_pool2d",
            Op::AdaptiveAvgPool2d { .. } => "adaptive_avg_pool2d",
            Op::Pool1d(pool) => match pool {
                Pool1d::AdaptiveAverage(_) => "adaptive_avg_pool1d",
                Pool1d::Average(_) => "avg_pool1d",
                Pool1d::Max(_) => "max_pool1d",
            },
            Op::Embedding { .. } => "embedding",
            Op::Reshape(_) => "reshape",
            Op::Permute(_) => "permute",
            Op::Unsqueeze(_) => "unsqueeze",
            Op::Expand(_) => "expand",
            Op::Slice { .. } => "slice",
            Op::Select { .. } => "select",
            Op::Windows { .. } => "unfold",
            Op::Gather { .. } => "gather",
            Op::Reduce { function, .. } => match function {
                Reduction::Sum => "sum",
                Reduction::Mean => "mean",
            },
            Op::Split { .. } => "split",
            Op::Unbind { .. } => "unbind",
            Op::Cat { .. } => "cat",
            Op::Stack { .. } => "stack",
            Op::Roll { .. } => "roll",
            Op::Flip => "flip",
            Op::Repeat(_) => "repeat",
            Op::Contiguous => "contiguous",
            Op::Clone => "clone",
            Op::Alias => "alias",
            Op::Detach => "detach",
            Op::Cast(_) => "to",
            Op::Resample(resample) => resample.name(),
            Op::Arange(_) => "arange",
            Op::Attention { .. } => "scaled_dot_product_attention",
            Op::CrossEntropy => "cross_entropy",
        }
    }
}
