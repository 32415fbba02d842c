//! What `ctc_loss` and its gradient compute: sums over the paths that are read as the labels (`LossCTC.cu`).
//!
//! A row of threads for each sample: states (labels with blanks around) are shared out, time goes step by step. Tensors are
//! seen at a sample's first time, first class and first label.

use crate::ops::prelude::*;

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
pub(super) fn longest(labels: Extent) -> Generated {
    Generated::map("ctc_loss", [], "result = (T)n;").with("n", labels)
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
const READ: &str = include_str!("paths/read.cu");

const LOG_SUM: &str = "
    const T most = maximum(a, maximum(b, c)), top = most == -INFINITY ? (T)0 : most;";

impl Paths {
    fn finished(self, kernel: Generated, classes: Extent) -> Generated {
        let [time_step, class_step, label_step] = self.steps;
        kernel
            .with("blank", self.blank.cast_signed())
            .with("zero_infinity", self.zero_infinity)
            .with("times", self.lengths[0])
            .with("longest", self.lengths[1])
            .with("classes", classes)
            .with("time_step", time_step)
            .with("class_step", class_step)
            .with("label_step", label_step)
            .with("joined", self.joined)
    }

    /// `x, targets (, lengths, lengths) -> loss, table` of sums over beginnings (`ctc_loss_log_alpha_gpu_kernel`).
    pub(super) fn forward(self, classes: Extent, stride: Extent) -> Generated {
        let lengths = if self.with_lengths { GIVEN } else { TOLD };
        let body = filled!("paths/forward.cu", SAMPLE, lengths, EMPTY, LOG_SUM);
        let mut inputs = vec!["x", "targets"];
        if self.with_lengths {
            inputs.extend(["of_inputs", "of_labels"]);
        }
        let kernel = Generated::rows("ctc_loss", inputs, ["loss", "table"], [1], body)
            .with("labels_stride", stride)
            .with("told_time", self.told[0])
            .with("told_count", self.told[1]);
        self.finished(kernel, classes)
    }

    /// `x, targets, grad, loss, table -> grad_x, ends`: sums over ends as well
    /// (`ctc_loss_backward_log_beta_gpu_kernel`), and both together by classes (`ctc_loss_backward_collect_gpu_kernel`).
    pub(super) fn backward(self, classes: Extent, steps: [Extent; 2]) -> Generated {
        let body = filled!("paths/backward.cu", SAMPLE, READ, LOG_SUM);
        let inputs = ["x", "targets", "grad", "loss", "table"];
        let kernel = Generated::rows("ctc_loss", inputs, ["grad_x", "ends"], [1], body)
            .with("grad_time", steps[0])
            .with("grad_class", steps[1]);
        self.finished(kernel, classes)
    }
}
