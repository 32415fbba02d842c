//! What margin losses and their gradients compute: a thread goes along the classes of an example.

use super::{LossFunction, Summary};
use crate::ops::prelude::*;

/// The coordinates of an example, and those of a class of it.
fn places(rank: usize) -> (&'static str, &'static str, &'static str) {
    // Examples are a batch, or one.
    if rank == 0 {
        ("0", "j", "")
    } else {
        ("i[0]", "i[0], j", "i[0]")
    }
}

fn along_classes(
    name: &'static str,
    inputs: Vec<&'static str>,
    outputs: Vec<&'static str>,
    rank: usize,
    (over, body): (usize, String),
) -> Generated {
    let form = Form::Each {
        over,
        without: vec![rank],
        body: body.into(),
    };
    Generated::of(name, inputs, outputs, form)
}

fn with_margin(kernel: Generated, function: LossFunction) -> Generated {
    match function {
        LossFunction::MultiMargin { power, margin } => {
            kernel.with("power", power).with("margin", margin)
        }
        _ => kernel,
    }
}

/// `x, t (, weight) -> loss (, is_target)`, where examples have so many dimensions.
pub(super) fn losses(function: LossFunction, rank: usize, weighted: bool) -> Kernel {
    let (example, class, loss) = places(rank);
    let loss = if loss.is_empty() { "" } else { ", i[0]" };
    let of = |class_index: &str| class.replace('j', class_index);
    if let LossFunction::MultilabelMargin = function {
        // `multilabel_margin_loss_forward_kernel`: targets end at the first negative one.
        let body = format!(
            "const I n = (I)x.size({rank}); T sum = 0;
    for (I j = 0; j < n; ++j) is_target.set((T)0, {class});
    for (I k = 0; k < n && t({k}) >= 0; ++k) is_target.set((T)1, {of_label});
    for (I k = 0; k < n && t({k}) >= 0; ++k) {{
        const T own = (T)x({of_label});
        for (I j = 0; j < n; ++j) if (is_target({class}) == 0) sum += maximum((T)1 - own + (T)x({class}), (T)0);
    }}
    loss.set(sum / (T)n{loss});",
            k = of("k"),
            of_label = of(&format!("wrapped(t({}), n)", of("k"))),
        );
        let outputs = vec!["loss", "is_target"];
        let kernel = along_classes(function.name(), vec!["x", "t"], outputs, rank, (0, body));
        return kernel.into();
    }
    let _ = example;
    let weight = if weighted { " * (T)weight(label)" } else { "" };
    let label = if rank == 0 { "t.flat(0)" } else { "t(i[0])" };
    let body = format!(
        "const I n = (I)x.size({rank}); const i64 label = wrapped({label}, n); const T own = (T)x({own}); T sum = 0;
    for (I j = 0; j < n; ++j) {{
        const T z = (T)margin - own + (T)x({class});
        if (j != label && z > 0) sum += power == 1 ? z : z * z;
    }}
    loss.set(sum{weight} / (T)n{loss});",
        own = of("label"),
    );
    let mut inputs = vec!["x", "t"];
    inputs.extend(weighted.then_some("weight"));
    let kernel = along_classes(function.name(), inputs, vec!["loss"], rank, (0, body));
    with_margin(kernel, function).into()
}

/// The sum or the mean of all examples' losses.
pub(super) fn total(rank: usize, is_mean: bool) -> Generated {
    let finish = if is_mean {
        "y = s / (T)count;"
    } else {
        "y = s;"
    };
    let dims: Vec<usize> = (0..rank).collect();
    let texts = ["T", "s = 0;", "s += (T)x;", "s += o;", finish];
    Generated::reduce("multi_margin_loss", ["x"], ["y"], dims, texts)
}

/// `grad, x, t (, weight or is_target) -> grad_x`.
pub(super) fn gradient(
    (function, summary): (LossFunction, Summary),
    rank: usize,
    weighted: bool,
    examples: Extent,
) -> Generated {
    let (_, class, _) = places(rank);
    let of = |class_index: &str| class.replace('j', class_index);
    let incoming = match summary {
        Summary::None if rank > 0 => "(T)grad(i[0])",
        Summary::None | Summary::Sum => "(T)grad.flat(0)",
        Summary::Mean => "(T)grad.flat(0) / (T)examples",
    };
    let kernel = if let LossFunction::MultilabelMargin = function {
        let body = format!(
            "const I n = (I)x.size({rank}); const T g = {incoming} / (T)n;
    for (I j = 0; j < n; ++j) {{
        T sum = 0;
        if (is_target({class}) != 0) {{
            I times = 0; T others = 0;
            for (I k = 0; k < n && t({k}) >= 0; ++k) times += wrapped(t({k}), n) == j;
            for (I k = 0; k < n; ++k) if (is_target({k}) == 0 && (T)1 - (T)x({class}) + (T)x({k}) > 0) others += 1;
            sum = -others * (T)times;
        }} else
            for (I k = 0; k < n && t({k}) >= 0; ++k)
                if ((T)1 - (T)x({label}) + (T)x({class}) > 0) sum += 1;
        grad_x.set(sum * g, {class});
    }}",
            k = of("k"),
            label = of(&format!("wrapped(t({}), n)", of("k"))),
        );
        let inputs = vec!["grad", "x", "t", "is_target"];
        along_classes(function.name(), inputs, vec!["grad_x"], rank, (1, body))
    } else {
        let weight = if weighted { " * (T)weight(label)" } else { "" };
        let label = if rank == 0 { "t.flat(0)" } else { "t(i[0])" };
        let body = format!(
            "const I n = (I)x.size({rank}); const i64 label = wrapped({label}, n); const T own = (T)x({own}), g = {incoming} / (T)n{weight};
    T sum = 0;
    for (I j = 0; j < n; ++j) {{
        const T z = (T)margin - own + (T)x({class});
        const T h = j != label && z > 0 ? (power == 1 ? g : 2 * g * z) : (T)0;
        if (j != label) grad_x.set(h, {class});
        sum -= h;
    }}
    grad_x.set(sum, {own});",
            own = of("label"),
        );
        let mut inputs = vec!["grad", "x", "t"];
        inputs.extend(weighted.then_some("weight"));
        along_classes(function.name(), inputs, vec!["grad_x"], rank, (1, body))
    };
    with_margin(kernel, function).with("examples", examples)
}
