//! A piece of work at one batch: its class, its sizes, and what the ceilings say of it.

use crate::device::sim::Ceilings;
use crate::program::{ConvolutionShape, Mask, Moving, Operation, Updating, Work};
use crate::shape::{DType, Extent};

use super::table::{MOST_FEATURES, measured};

/// What even the shortest kernel takes between two others: see `ceilings` in the table.
const LATENCY: f64 = 2e-6;

/// A piece of work with everything that a batch decides.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Job {
    /// The class of kernels that it is one of.
    pub(super) class: String,
    features: [f64; MOST_FEATURES],
    count: usize,
    /// Floating-point operations.
    pub(super) flops: f64,
    /// Bytes read and written.
    pub(super) bytes: f64,
    unit: Unit,
}

/// What does the arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Fp32,
    Tf32,
    Fp16,
    Bf16,
    /// Nothing that would count.
    None,
}

impl Unit {
    fn of(dtype: DType) -> Unit {
        match dtype {
            DType::Float16 => Unit::Fp16,
            DType::BFloat16 => Unit::Bf16,
            _ => Unit::Fp32,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Unit::Fp32 | Unit::None => "fp32",
            Unit::Tf32 => "tf32",
            Unit::Fp16 | Unit::Bf16 => "half",
        }
    }

    /// The same, where kernels for the two half types differ.
    fn exact_name(self) -> &'static str {
        match self {
            Unit::Fp16 => "fp16",
            Unit::Bf16 => "bf16",
            Unit::Fp32 | Unit::Tf32 | Unit::None => self.name(),
        }
    }

    fn throughput(self, ceilings: &Ceilings) -> f64 {
        match self {
            Unit::Fp32 => ceilings.fp32,
            Unit::Tf32 => ceilings.tf32,
            Unit::Fp16 => ceilings.fp16,
            Unit::Bf16 => ceilings.bf16,
            Unit::None => f64::INFINITY,
        }
    }
}

impl Job {
    fn new(class: String, features: &[f64], (flops, bytes, unit): (f64, f64, Unit)) -> Job {
        let mut all = [1.0; MOST_FEATURES];
        all[..features.len()].copy_from_slice(features);
        Job {
            class,
            features: all,
            count: features.len(),
            flops,
            bytes,
            unit,
        }
    }

    /// A piece of work at a batch.
    pub(super) fn of(work: &Work, batch: u64) -> Job {
        let at = |length: &Extent| length.at(batch) as f64;
        match work {
            Work::Product {
                dtype,
                turned,
                lengths,
            } => product(*dtype, *turned, lengths.each_ref().map(at)),
            Work::Convolution(shape) => convolution(shape, batch),
            Work::Attention {
                dtype,
                backward,
                mask,
                lengths,
                moved,
            } => {
                let features = lengths.each_ref().map(at);
                let [heads, positions, keys, width] = features;
                let unit = Unit::of(*dtype);
                let (kind, share) = match mask {
                    Mask::Full => ("full", 1.0),
                    Mask::Causal => ("causal", 0.5),
                    Mask::Masked => ("masked", 1.0),
                };
                let (pass, times) = if *backward {
                    ("bwd", 2.5)
                } else {
                    ("fwd", 1.0)
                };
                let flops = 4.0 * heads * positions * keys * width * share * times;
                let class = format!("attention {pass} {} {kind}", unit.name());
                Job::new(class, &features, (flops, at(moved), unit))
            }
            Work::Moving {
                kind,
                dtype,
                lengths,
                moved,
            } => moving(*kind, *dtype, lengths.each_ref().map(at), at(moved)),
        }
    }

    /// Seconds on a card.
    pub(super) fn seconds(&self, ceilings: &Ceilings) -> f64 {
        if self.bytes == 0.0 && self.flops == 0.0 {
            return 0.0;
        }
        let moving = self.bytes / ceilings.bandwidth;
        let computing = self.flops / self.unit.throughput(ceilings);
        let features = &self.features[..self.count];
        let ratio = measured().ratio(&self.class, features).unwrap_or(1.5);
        ratio * (moving.max(computing) + LATENCY)
    }
}

/// A stack of products: how many, rows, columns, and what is summed over.
fn product(dtype: DType, turned: [bool; 2], lengths: [f64; 4]) -> Job {
    let [stack, rows, columns, inner] = lengths;
    let unit = Unit::of(dtype);
    // Both turned is none of the recorded layouts, and rare.
    let layout = match turned {
        [false, false] => "nn",
        [false, true] => "nt",
        [true, _] => "tn",
    };
    let size = dtype.size() as f64;
    // Rows of which 16 bytes are no part keep the fastest kernels away.
    let runs = [
        if turned[0] { rows } else { inner },
        if turned[1] { inner } else { columns },
        columns,
    ];
    let is_even = runs.iter().all(|run| run * size % 16.0 == 0.0);
    let even = if is_even { "" } else { " uneven" };
    let elements = rows * inner + inner * columns + rows * columns;
    let flops = 2.0 * stack * rows * columns * inner;
    let class = format!("product {} {layout}{even}", unit.name());
    Job::new(class, &lengths, (flops, size * stack * elements, unit))
}

/// A convolution by the roles that its tensors have in the library's call.
fn convolution(shape: &ConvolutionShape, batch: u64) -> Job {
    let call = shape.at(batch);
    let operands = call.operands();
    let (x, w, y) = (operands.x, operands.w, operands.y);
    let product = |dims: &[u64]| dims.iter().map(|length| *length as f64).product::<f64>();
    let groups = call.groups.max(1) as f64;
    let (inner, outer) = (w[1] as f64, w[0] as f64 / groups);
    let unit = match shape.dtype {
        DType::Float32 => Unit::Tf32,
        other => Unit::of(other),
    };
    let pass = match operands.operation {
        Operation::Forward => "fwd",
        Operation::BackwardData => "dgrad",
        Operation::BackwardFilter => "wgrad",
    };
    let is_depthwise = groups > 1.0 && inner <= 1.0;
    let kind = if is_depthwise {
        "depthwise"
    } else {
        "convolution"
    };
    let features = [
        x[0] as f64,
        inner,
        outer,
        groups,
        product(&x[2..]),
        product(&w[2..]),
        product(&call.stride),
    ];
    let flops = 2.0 * y[0] as f64 * product(&y[2..]) * product(&w);
    let bytes = shape.dtype.size() as f64 * (product(&x) + product(&w) + product(&y));
    let is_line = !call.volumes && call.kernel[1] == 1 && x[3] == 1 && x[4] > 1;
    // What was not measured in a type or layout is taken to go as the nearest that was.
    let layouts: &[&str] = match (is_line, call.channels_last) {
        (true, _) => &["line", "nchw"],
        (false, true) => &["nhwc", "nchw"],
        (false, false) => &["nchw"],
    };
    let units = match unit {
        Unit::Bf16 => ["bf16", "fp16"],
        Unit::Fp16 => ["fp16", "bf16"],
        Unit::Fp32 | Unit::Tf32 | Unit::None => ["tf32", "tf32"],
    };
    let names = layouts
        .iter()
        .flat_map(|layout| units.map(|unit| format!("{kind} {pass} {unit} {layout}")));
    let measured = names.into_iter().find(|name| measured().knows(name));
    let class = measured.unwrap_or_else(|| format!("{kind} {pass} {} nchw", unit.exact_name()));
    Job::new(class, &features, (flops, bytes, unit))
}

fn moving(kind: Moving, dtype: DType, lengths: [f64; 3], moved: f64) -> Job {
    let [first, second, third] = lengths;
    let typed = |name: &str| {
        let size = if dtype.is_half() { "half" } else { "fp32" };
        format!("{name} {size}")
    };
    let any = |name: &str| (format!("{name} any"), vec![first, moved]);
    // Of elements and the width of rows.
    let rows = |name: &str| (typed(name), vec![first / second.max(1.0), second]);
    // Of samples, channels and elements of a plane. cuDNN's kernels run in float16, PyTorch's own in bfloat16.
    let planes = |name: &str| {
        let class = format!("{name} {}", Unit::of(dtype).exact_name());
        (class, vec![first, second, third])
    };
    let resampled = |pass: &str, nearest: bool| {
        let mode = if nearest { "nearest" } else { "bilinear" };
        (typed(&format!("{mode} {pass}")), vec![first, second, third])
    };
    // Of results and all summands.
    let sums = |name: &str| (typed(name), vec![first, second / first.max(1.0)]);
    let (class, features) = match kind {
        Moving::Map => any("map"),
        Moving::Broadcast => any("broadcast"),
        Moving::Transpose => (typed("turned"), vec![first, second, third]),
        Moving::Reorder => rows("reordered"),
        Moving::Fill => any("fill"),
        Moving::Random => any("random"),
        Moving::Dropout => any("dropout"),
        Moving::SumInner => sums("sum inner"),
        Moving::SumOuter => sums("sum outer"),
        Moving::SumChannels => sums("sum channels"),
        Moving::Softmax => rows("softmax fwd"),
        Moving::SoftmaxGrad => rows("softmax bwd"),
        Moving::LayerNorm => {
            let (class, features) = rows("layer_norm fwd");
            // Rows of whole fours are read four at a time (layer_norm_kernel.cu).
            let even = if second % 4.0 == 0.0 { "" } else { " uneven" };
            (class + even, features)
        }
        Moving::LayerNormGrad => rows("layer_norm bwd"),
        Moving::BatchNorm => planes("batch_norm fwd"),
        Moving::BatchNormGrad => planes("batch_norm bwd"),
        Moving::AvgPool => (typed("avg_pool fwd"), vec![first, second]),
        Moving::AvgPoolGrad => (typed("avg_pool bwd"), vec![first, second]),
        Moving::MaxPool => (typed("max_pool fwd"), vec![first, second]),
        Moving::MaxPoolGrad => (typed("max_pool bwd"), vec![first, second]),
        Moving::Interpolate(nearest) => resampled("fwd", nearest),
        Moving::InterpolateGrad(nearest) => resampled("bwd", nearest),
        Moving::Unfold => (typed("unfold"), vec![first, second, third]),
        Moving::Fold => (typed("fold"), vec![first, second, third]),
        Moving::Embedding => rows("embedding fwd"),
        Moving::EmbeddingGrad => rows("embedding bwd"),
        Moving::Unscale => (String::from("unscale fp32"), vec![first, second]),
        Moving::Update(how) => {
            let name = match how {
                Updating::Sgd => "optimizer sgd foreach",
                Updating::SgdMomentum => "optimizer sgd_momentum foreach",
                Updating::Adam => "optimizer adam foreach",
                Updating::AdamFused => "optimizer adam fused",
                Updating::Adamw => "optimizer adamw foreach",
                Updating::AdamwFused => "optimizer adamw fused",
            };
            (typed(name), vec![first, second])
        }
    };
    Job::new(class, &features, (0.0, moved, Unit::None))
}
