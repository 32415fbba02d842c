//! What `ctc_loss` and its gradient compute: sums over the paths that are read as the labels (`LossCTC.cu`).
//!
//! A row of threads for each sample: states (labels with blanks around) are shared out, time goes step by step. Tensors are
//! seen at a sample's first time, first class and first label.

use crate::program::{Generated, Kernel, Number};
use crate::shape::Extent;

/// What both passes need to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paths {
    /// The class of no label.
    pub(super) blank: u64,
    /// Whether infinite losses count for nothing.
    pub(super) zero_infinity: bool,
    /// Whether lengths of inputs and of labels are operands.
    pub(super) with_lengths: bool,
    /// How long inputs and labels are at most.
    pub(super) lengths: [Extent; 2],
    /// How long they are, where those are no operands.
    pub(super) told: [Extent; 2],
    /// Whether the labels of all samples lie behind one another.
    pub(super) joined: bool,
    /// Elements of probabilities between times and between classes, and of labels between those of a sample.
    pub(super) steps: [Extent; 3],
}

/// How many labels there are at most.
pub(super) fn longest(labels: Extent) -> Kernel {
    let none: [&'static str; 0] = [];
    Generated::map("ctc_loss", none, "result = (T)n;")
        .with("n", Number::Length(labels))
        .into()
}

/// What is called alike in both passes: `label(s)` is the class of a state, `start` where the sample's labels begin.
const SAMPLE: &str = "
    const i64 states = 2 * longest + 1;
    i64 start = 0;
#define label(s) ((s) % 2 == 0 ? blank : wrapped(targets.data[(start + (s) / 2) * label_step], classes))
#define score(t, c) ((T)widened(x.data[(t) * time_step + (c) * class_step]))";

/// Lengths as they are given.
const GIVEN: &str = "
    const i64 time = minimum(maximum((i64)of_inputs(0), (i64)0), times), count = minimum(maximum((i64)of_labels(0), (i64)0), longest);
    for (i64 k = 0; joined && k < row; ++k) start += minimum(maximum((i64)widened(of_labels.data[(k - row) * labels_stride]), (i64)0), longest);";

/// Lengths that are the same for all samples.
const TOLD: &str = "
    const i64 time = minimum(told_time, times), count = minimum(told_count, longest);
    if (joined) start = row * count;";

/// Where the table has no sums, which is how the backward pass knows the lengths: `NAN` behind the last time and the last
/// state; where there is no time at all, the first sum is infinite.
const EMPTY: &str = "
    for (i64 at = lane; at < times * states; at += LANES) {
        const i64 t = at / states, s = at % states;
        table.data[at] = s <= 2 * count && t < maximum(time, (i64)1) ? (at == 0 && time == 0 ? INFINITY : -INFINITY) : NAN;
    }
    row_sync();";

/// Lengths as the table tells them.
const READ: &str = "
    i64 time = 0, count = 0;
    for (i64 k = joined ? 0 : row; k <= row; ++k) {
        const auto own = table.data - (row - k) * times * states;
        i64 s = 0;
        while (s + 2 < states && !is_nan(widened(own[s + 2]))) s += 2;
        count = s / 2;
        if (k < row) start += count;
    }
    if (times > 0 && table(0) != INFINITY) time = 1;
    while (time > 0 && time < times && !is_nan(widened(table.data[time * states]))) ++time;";

const LOG_SUM: &str = "
    const T most = maximum(a, maximum(b, c)), top = most == -INFINITY ? (T)0 : most;";

impl Paths {
    fn finished(self, kernel: Generated, classes: Extent) -> Kernel {
        let [time_step, class_step, label_step] = self.steps;
        kernel
            .with("blank", Number::Whole(self.blank.cast_signed()))
            .with("zero_infinity", Number::Truth(self.zero_infinity))
            .with("times", Number::Length(self.lengths[0]))
            .with("longest", Number::Length(self.lengths[1]))
            .with("classes", Number::Length(classes))
            .with("time_step", Number::Length(time_step))
            .with("class_step", Number::Length(class_step))
            .with("label_step", Number::Length(label_step))
            .with("joined", Number::Truth(self.joined))
            .into()
    }

    /// `x, targets (, lengths, lengths) -> loss, table` of sums over beginnings (`ctc_loss_log_alpha_gpu_kernel`).
    pub(super) fn forward(self, classes: Extent, stride: Extent) -> Kernel {
        let lengths = if self.with_lengths { GIVEN } else { TOLD };
        let body = format!(
            "{SAMPLE}{lengths}
    const i64 last = 2 * count;{EMPTY}
    for (i64 t = 0; t < time; ++t) {{
        for (i64 s = lane; s <= last; s += LANES) {{
            T sum;
            if (t == 0) sum = s < 2 ? (T)0 : -INFINITY;
            else {{
                const auto before = table.data + (t - 1) * states;
                const T a = widened(before[s]), b = s > 0 ? (T)widened(before[s - 1]) : -INFINITY;
                const T c = s > 1 && label(s) != label(s - 2) ? (T)widened(before[s - 2]) : -INFINITY;
                {LOG_SUM}
                sum = log(exp(a - top) + exp(b - top) + exp(c - top)) + top;
            }}
            table.data[t * states + s] = sum + score(t, label(s));
        }}
        row_sync();
    }}
    if (is_first) {{
        T a = time == 0 && count == 0 ? (T)0 : -INFINITY, b = -INFINITY;
        const T c = -INFINITY;
        if (time > 0) {{
            a = widened(table.data[(time - 1) * states + last]);
            if (count > 0) b = widened(table.data[(time - 1) * states + last - 1]);
        }}
        {LOG_SUM}
        loss.set(-(log(exp(a - top) + exp(b - top)) + top), 0);
    }}"
        );
        let mut inputs = vec!["x", "targets"];
        if self.with_lengths {
            inputs.extend(["of_inputs", "of_labels"]);
        }
        let kernel = Generated::rows("ctc_loss", inputs, ["loss", "table"], [1], body)
            .with("labels_stride", Number::Length(stride))
            .with("told_time", Number::Length(self.told[0]))
            .with("told_count", Number::Length(self.told[1]));
        self.finished(kernel, classes)
    }

    /// `x, targets, grad, loss, table -> grad_x, ends`: sums over ends as well
    /// (`ctc_loss_backward_log_beta_gpu_kernel`), and both together by classes (`ctc_loss_backward_collect_gpu_kernel`).
    pub(super) fn backward(self, classes: Extent, steps: [Extent; 2]) -> Kernel {
        let body = format!(
            "{SAMPLE}{READ}
    const i64 last = 2 * count;
    for (i64 t = time - 1; t >= 0; --t) {{
        for (i64 s = lane; s <= last; s += LANES) {{
            T sum;
            if (t == time - 1) sum = s + 2 > last ? (T)0 : -INFINITY;
            else {{
                const auto behind = ends.data + (t + 1) * states;
                const T a = widened(behind[s]), b = s < last ? (T)widened(behind[s + 1]) : -INFINITY;
                const T c = s + 1 < last && label(s) != label(s + 2) ? (T)widened(behind[s + 2]) : -INFINITY;
                {LOG_SUM}
                sum = log(exp(a - top) + exp(b - top) + exp(c - top)) + top;
            }}
            ends.data[t * states + s] = sum + score(t, label(s));
        }}
        row_sync();
    }}
    const T g = (T)grad(0), negative = (T)loss(0);
    const bool counts = !(zero_infinity && negative == INFINITY);
    for (i64 t = 0; t < times; ++t)
        for (i64 k = lane; k < classes; k += LANES) {{
            T value = 0;
            if (t < time && counts) {{
                T most = -INFINITY, total = 0;
                for (i64 s = k == blank ? 0 : 1; s <= last; s += 2)
                    if (label(s) == k) {{
                        const T both = (T)widened(table.data[t * states + s]) + (T)widened(ends.data[t * states + s]);
                        if (both > most) {{ total = total * (most == -INFINITY ? (T)0 : exp(most - both)) + 1; most = both; }}
                        else if (both != -INFINITY) total += exp(both - most);
                    }}
                const T own = score(t, k);
                value = (exp(own) - (most == -INFINITY ? (T)0 : exp(most + log(total) + negative - own))) * g;
            }}
            grad_x.data[t * grad_time + k * grad_class] = value;
        }}"
        );
        let inputs = ["x", "targets", "grad", "loss", "table"];
        let kernel = Generated::rows("ctc_loss", inputs, ["grad_x", "ends"], [1], body)
            .with("grad_time", Number::Length(steps[0]))
            .with("grad_class", Number::Length(steps[1]));
        self.finished(kernel, classes)
    }
}
