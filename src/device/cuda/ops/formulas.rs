//! Formulas of operations that have tuned kernels or a library too: for what those do not take.

use crate::device::LaunchError;
use crate::device::cuda::generate::{self, GeneratedLaunch, Resources};
use crate::device::cuda::layout::{Operand, Operands};
use crate::program::{
    Binary, Convolution, ConvolutionPass, Form, Generated, Initial, Kernel, Number, Text, Unary,
};

/// A formula and its operands, seen as it wants them.
struct Written {
    generated: Generated,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
}

/// The launches of generated kernels that compute a call.
pub(in crate::device::cuda) fn launches(
    operands: &Operands<'_>,
    resources: Resources,
) -> Result<Vec<GeneratedLaunch>, LaunchError> {
    let misuse = |error: generate::NoKernel| operands.failed(error.to_string());
    if let Kernel::Generated(generated) = operands.kernel() {
        return generate::launches(generated, operands.inputs(), operands.outputs(), resources)
            .map_err(misuse);
    }
    let Some(written) = written(operands, resources)? else {
        return Err(operands.no_kernel());
    };
    generate::launches(
        &written.generated,
        &written.inputs,
        &written.outputs,
        resources,
    )
    .map_err(misuse)
}

fn written(operands: &Operands<'_>, resources: Resources) -> Result<Option<Written>, LaunchError> {
    let plain = |generated: Generated| Written {
        generated,
        inputs: operands.inputs().to_vec(),
        outputs: operands.outputs().to_vec(),
    };
    if let Some(generated) = elementwise(operands.kernel()) {
        return Ok(Some(plain(generated)));
    }
    let out = || operands.output(0);
    Ok(Some(match operands.kernel() {
        Kernel::Sum { scale } => {
            let x = operands.input(0)?;
            let kept = super::reduce::kept_dimensions(x, out()?).ok_or_else(|| {
                operands.failed(format!(
                    "{:?} is no sum of {:?}",
                    operands.outputs()[0].shape,
                    x.shape
                ))
            })?;
            let dims = (0..kept.len()).filter(|d| kept[*d].is_none()).collect();
            let seen = Operand {
                shape: (0..kept.len())
                    .map(|d| kept[d].map_or(1, |_| x.shape[d]))
                    .collect(),
                strides: kept.iter().map(|stride| stride.unwrap_or(0)).collect(),
                ..out()?.clone()
            };
            Written {
                generated: sum(dims).with("scale", Number::Real(*scale)),
                inputs: vec![x.clone()],
                outputs: vec![seen],
            }
        }
        Kernel::MatMul => product(operands)?,
        Kernel::Convolution(shape) => Written {
            generated: convolution(&shape.at(resources.batch), operands.input(0)?.shape.len()),
            inputs: operands.inputs().to_vec(),
            outputs: operands.outputs().to_vec(),
        },
        Kernel::Softmax { dim, log } => {
            let body = if *log { LOG_SOFTMAX } else { SOFTMAX };
            plain(rows("softmax", &["x"], &["y"], *dim, body))
        }
        Kernel::SoftmaxGrad { dim, log } => {
            let body = if *log { LOG_SOFTMAX_GRAD } else { SOFTMAX_GRAD };
            plain(rows("softmax", &["grad", "y"], &["grad_x"], *dim, body))
        }
        _ => return Ok(None),
    }))
}

fn rows(
    name: &'static str,
    inputs: &[&'static str],
    outputs: &[&'static str],
    dim: usize,
    body: &'static str,
) -> Generated {
    let form = Form::Rows {
        dims: vec![dim],
        body: Text::Borrowed(body),
    };
    Generated::of(name, inputs, outputs, form)
}

const SOFTMAX: &str = "
    float top = -INFINITY;
    for_each(j) top = maximum(top, (float)x(j));
    top = row_max(top);
    float total = 0;
    for_each(j) total += exp((float)x(j) - top);
    total = row_sum(total);
    for_each(j) y.set(exp((float)x(j) - top) / total, j);";

const LOG_SOFTMAX: &str = "
    float top = -INFINITY;
    for_each(j) top = maximum(top, (float)x(j));
    top = row_max(top);
    float total = 0;
    for_each(j) total += exp((float)x(j) - top);
    total = log(row_sum(total));
    for_each(j) y.set((float)x(j) - top - total, j);";

const SOFTMAX_GRAD: &str = "
    float total = 0;
    for_each(j) total += (float)grad(j) * (float)y(j);
    total = row_sum(total);
    for_each(j) grad_x.set(((float)grad(j) - total) * (float)y(j), j);";

const LOG_SOFTMAX_GRAD: &str = "
    float total = 0;
    for_each(j) total += (float)grad(j);
    total = row_sum(total);
    for_each(j) grad_x.set((float)grad(j) - exp((float)y(j)) * total, j);";

/// A sum over dimensions, times `scale`.
fn sum(dims: Vec<usize>) -> Generated {
    let form = Form::Reduce {
        dims,
        state: "P".into(),
        start: "s = 0;".into(),
        step: "s += x;".into(),
        merge: "s += o;".into(),
        finish: "y = s * scale;".into(),
    };
    Generated::of("sum", ["x"], ["y"], form)
}

/// A matrix product, with leading dimensions that broadcast.
fn product(operands: &Operands<'_>) -> Result<Written, LaunchError> {
    let (a, b, out) = (operands.input(0)?, operands.input(1)?, operands.output(0)?);
    let rank = out.shape.len();
    let seen = |operand: &Operand| {
        let (own, matrix) = operand.shape.split_at(operand.shape.len().checked_sub(2)?);
        let leading = Operand {
            shape: own.to_vec(),
            strides: operand.strides[..own.len()].to_vec(),
            ..operand.clone()
        };
        let around = out.shape.get(..rank.checked_sub(2)?)?;
        Some(Operand {
            shape: [around, matrix].concat(),
            strides: [
                &leading.strides_under(around)?[..],
                &operand.strides[own.len()..],
            ]
            .concat(),
            ..operand.clone()
        })
    };
    let mismatch = || {
        operands.failed(format!(
            "{:?} times {:?} is not {:?}",
            a.shape, b.shape, out.shape
        ))
    };
    let (a, b) = (seen(a).ok_or_else(mismatch)?, seen(b).ok_or_else(mismatch)?);
    let mut inputs = vec![a, b];
    let mut names = vec!["a", "b"];
    let mut start = "0";
    if let Some(bias) = operands.optional_input(2) {
        names.push("bias");
        inputs.push(bias.clone());
        start = "bias(i[R - 1])";
    }
    let body = format!(
        "const int R = {rank}; T s = 0; I of_a[R], of_b[R];
    for (int d = 0; d < R; ++d) of_a[d] = of_b[d] = i[d];
    for (I k = 0; k < (I)a.size(R - 1); ++k) {{ of_a[R - 1] = of_b[R - 2] = k; s += (T)a.at(of_a) * (T)b.at(of_b); }}
    y.set_at(s + (T){start}, i);"
    );
    let over = names.len();
    let form = Form::Each {
        over,
        without: Vec::new(),
        body: body.into(),
    };
    Ok(Written {
        generated: Generated::of("matmul", names, ["y"], form),
        inputs,
        outputs: vec![out.clone()],
    })
}

/// A convolution of tensors of this rank, tap by tap.
fn convolution(of: &Convolution, rank: usize) -> Generated {
    let (inputs, output, body) = match of.pass {
        ConvolutionPass::Forward => (["x", "w"], "y", CONVOLUTION),
        ConvolutionPass::GradInput => (["y", "w"], "x", CONVOLUTION_GRAD_INPUT),
        ConvolutionPass::GradWeight => (["y", "x"], "w", CONVOLUTION_GRAD_WEIGHT),
    };
    // A transposed layer is an ordinary one run backwards.
    let (inputs, output, body) = match (of.transposed, of.pass) {
        (false, _) => (inputs, output, body),
        (true, ConvolutionPass::Forward) => (["y", "w"], "x", CONVOLUTION_GRAD_INPUT),
        (true, ConvolutionPass::GradInput) => (["x", "w"], "y", CONVOLUTION),
        (true, ConvolutionPass::GradWeight) => (["x", "y"], "w", CONVOLUTION_GRAD_WEIGHT),
    };
    // Lists begin with the depth, which tensors of four dimensions lack.
    let list = |values: [u64; 3]| {
        Number::List(
            values[5 - rank..]
                .iter()
                .map(|value| value.cast_signed())
                .collect(),
        )
    };
    let form = Form::Each {
        over: 2,
        without: Vec::new(),
        body: format!("const int D = {}; {body}", rank - 2).into(),
    };
    Generated::of("convolution", inputs, [output], form)
        .with("stride", list(of.stride))
        .with("padding", list(of.padding))
        .with("dilation", list(of.dilation))
        .with("groups", Number::Whole(of.groups.cast_signed()))
}

// `x[n, c, ...]`, `w[k, c / groups, ...]`, `y[n, k, ...]`, with `D` dimensions behind the channels.

const CONVOLUTION: &str = "
    const I per_group = (I)w.size(1), first = i[1] / (I)(w.size(0) / groups) * per_group;
    I taps = 1, at_x[D + 2], at_w[D + 2];
    for (int d = 0; d < D; ++d) taps *= (I)w.size(2 + d);
    T s = 0;
    at_x[0] = i[0]; at_w[0] = i[1];
    for (I tap = 0; tap < taps; ++tap) {
        I rest = tap; bool is_inside = true;
        for (int d = D - 1; d >= 0; --d) {
            at_w[2 + d] = rest % (I)w.size(2 + d); rest /= (I)w.size(2 + d);
            at_x[2 + d] = i[2 + d] * (I)stride[d] - (I)padding[d] + at_w[2 + d] * (I)dilation[d];
            is_inside = is_inside && at_x[2 + d] >= 0 && at_x[2 + d] < (I)x.size(2 + d);
        }
        for (I c = 0; is_inside && c < per_group; ++c) {
            at_x[1] = first + c; at_w[1] = c;
            s += (T)x.at(at_x) * (T)w.at(at_w);
        }
    }
    y.set_at(s, i);";

const CONVOLUTION_GRAD_INPUT: &str = "
    const I per_group = (I)w.size(1), outputs = (I)(w.size(0) / groups), first = i[1] / per_group * outputs;
    I taps = 1, at_y[D + 2], at_w[D + 2];
    for (int d = 0; d < D; ++d) taps *= (I)w.size(2 + d);
    T s = 0;
    at_y[0] = i[0]; at_w[1] = i[1] % per_group;
    for (I tap = 0; tap < taps; ++tap) {
        I rest = tap; bool is_inside = true;
        for (int d = D - 1; d >= 0; --d) {
            at_w[2 + d] = rest % (I)w.size(2 + d); rest /= (I)w.size(2 + d);
            const I from = i[2 + d] + (I)padding[d] - at_w[2 + d] * (I)dilation[d];
            at_y[2 + d] = from / (I)stride[d];
            is_inside = is_inside && from >= 0 && from % (I)stride[d] == 0 && at_y[2 + d] < (I)y.size(2 + d);
        }
        for (I k = 0; is_inside && k < outputs; ++k) {
            at_y[1] = at_w[0] = first + k;
            s += (T)y.at(at_y) * (T)w.at(at_w);
        }
    }
    x.set_at(s, i);";

const CONVOLUTION_GRAD_WEIGHT: &str = "
    const I per_group = (I)w.size(1), channel = i[0] / (I)(w.size(0) / groups) * per_group + i[1];
    I places = 1, at_x[D + 2], at_y[D + 2];
    for (int d = 0; d < D; ++d) places *= (I)y.size(2 + d);
    T s = 0;
    at_x[1] = channel; at_y[1] = i[0];
    for (I n = 0; n < (I)x.size(0); ++n)
        for (I place = 0; place < places; ++place) {
            I rest = place; bool is_inside = true;
            at_x[0] = at_y[0] = n;
            for (int d = D - 1; d >= 0; --d) {
                at_y[2 + d] = rest % (I)y.size(2 + d); rest /= (I)y.size(2 + d);
                at_x[2 + d] = at_y[2 + d] * (I)stride[d] - (I)padding[d] + i[2 + d] * (I)dilation[d];
                is_inside = is_inside && at_x[2 + d] >= 0 && at_x[2 + d] < (I)x.size(2 + d);
            }
            if (is_inside) s += (T)x.at(at_x) * (T)y.at(at_y);
        }
    w.set_at(s, i);";

/// Kernels that compute each element by itself.
fn elementwise(kernel: &Kernel) -> Option<Generated> {
    let none: [&'static str; 0] = [];
    Some(match kernel {
        Kernel::Initialize(Initial::Constant(value)) | Kernel::Fill(value) => {
            Generated::map("fill", none, "result = value;").with("value", Number::Real(*value))
        }
        Kernel::Initialize(Initial::Uniform { bound }) => Generated::map(
            "uniform",
            none,
            "result = (2 * uniform(seed, index) - 1) * bound;",
        )
        .with("bound", Number::Real(*bound))
        .with("seed", Number::Seed),
        Kernel::RandomNormal => Generated::map("randn", none, "result = normal(seed, index);")
            .with("seed", Number::Seed),
        Kernel::RandomBelow(limit) => Generated::map(
            "randint",
            none,
            "result = whole_between(seed, index, 0, limit);",
        )
        .with("limit", Number::Whole(limit.cast_signed()))
        .with("seed", Number::Seed),
        Kernel::Arange => Generated::map("arange", none, "result = index;"),
        Kernel::Copy => Generated::map("copy", ["x"], "result = x;"),
        Kernel::MaskBias => Generated::map("mask", ["x"], "result = x ? (T)0 : (T)-INFINITY;"),
        Kernel::Scale(factor) => Generated::map("mul", ["x"], "result = (T)x * factor;")
            .with("factor", Number::Real(*factor)),
        Kernel::Shift(summand) => Generated::map("add", ["x"], "result = (T)x + summand;")
            .with("summand", Number::Real(*summand)),
        Kernel::Power(exponent) => Generated::map("pow", ["x"], "result = pow((P)x, exponent);")
            .with("exponent", Number::Real(*exponent)),
        Kernel::PowerGrad(exponent) => Generated::map(
            "pow",
            ["grad", "x"],
            "result = exponent == 0 ? (P)0 : (P)grad * exponent * pow((P)x, exponent - 1);",
        )
        .with("exponent", Number::Real(*exponent)),
        Kernel::Binary(Binary::Add) => Generated::map("add", ["a", "b"], "result = (P)a + (P)b;"),
        Kernel::Binary(Binary::Mul) => Generated::map("mul", ["a", "b"], "result = (P)a * (P)b;"),
        Kernel::Unary(function) => Generated::map(function.name(), ["x"], unary(*function)),
        Kernel::UnaryGrad(function) => {
            Generated::map(function.name(), ["grad", "x"], unary_grad(*function))
        }
        Kernel::Dropout { p } => Generated::of(
            "dropout",
            ["x"],
            ["result", "mask"],
            Form::Map(
                "mask = uniform(seed, index) >= p; result = mask && p < 1 ? x / (1 - p) : (T)0;"
                    .into(),
            ),
        )
        .with("p", Number::Real(*p))
        .with("seed", Number::Seed),
        Kernel::DropoutGrad { p } => Generated::map(
            "dropout",
            ["grad", "mask"],
            "result = mask && p < 1 ? grad / (1 - p) : (T)0;",
        )
        .with("p", Number::Real(*p)),
        _ => return None,
    })
}

fn unary(function: Unary) -> &'static str {
    match function {
        Unary::Relu => "result = maximum(x, (P)0);",
        Unary::Gelu => "result = x * (T)0.5 * ((T)1 + erf(x * (T)0.7071067811865476));",
        Unary::GeluTanh => {
            "const T u = (T)0.7978845608028654 * (x + (T)0.044715 * x * x * x); result = (T)0.5 * x * ((T)1 + tanh(u));"
        }
        Unary::Tanh => "result = tanh((T)x);",
        Unary::Silu => "result = x * sigmoid((T)x);",
        Unary::Sigmoid => "result = sigmoid((T)x);",
        Unary::Relu6 => "result = minimum(maximum(x, (P)0), (P)6);",
        Unary::Rsqrt => "result = rsqrt((T)x);",
        Unary::Cos => "result = cos((T)x);",
        Unary::Sin => "result = sin((T)x);",
    }
}

/// From the gradient and, as `x`, what is saved: the result for relu, tanh, sigmoid and rsqrt.
fn unary_grad(function: Unary) -> &'static str {
    match function {
        Unary::Relu => "result = x > 0 ? grad : (T)0;",
        Unary::Gelu => {
            "const T cdf = (T)0.5 * ((T)1 + erf(x * (T)0.7071067811865476)), pdf = (T)0.3989422804014327 * exp((T)-0.5 * x * x);
    result = grad * (cdf + x * pdf);"
        }
        Unary::GeluTanh => {
            "const T u = (T)0.7978845608028654 * (x + (T)0.044715 * x * x * x), t = tanh(u);
    result = grad * ((T)0.5 * ((T)1 + t) + (T)0.5 * x * ((T)1 - t * t) * (T)0.7978845608028654 * ((T)1 + (T)0.134145 * x * x));"
        }
        Unary::Tanh => "result = grad * ((T)1 - x * x);",
        Unary::Silu => "const T s = sigmoid((T)x); result = grad * s * ((T)1 + x * ((T)1 - s));",
        Unary::Sigmoid => "result = grad * x * ((T)1 - x);",
        Unary::Relu6 => "result = x > 0 && x < 6 ? grad : (T)0;",
        Unary::Rsqrt => "result = (T)-0.5 * grad * x * x * x;",
        Unary::Cos => "result = -grad * sin((T)x);",
        Unary::Sin => "result = grad * cos((T)x);",
    }
}
