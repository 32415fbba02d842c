//! What a GPU cannot run, as text.

use crate::device::cuda::plan::Gap;
use batchfit_report::style::{Style, lines};

/// What of a variant a card cannot run; `generated` kernels are generated for the rest.
pub fn gaps(device: &str, variant: &str, generated: usize, gaps: &[Gap], style: &Style) -> String {
    if gaps.is_empty() {
        return format!("{variant}: runs on {device}, with {generated} generated kernels\n");
    }
    format!(
        "{variant}: does not run on {device}\n{}",
        lines(gaps, style)
            .words("operation", |gap| gap.operation.clone())
            .number("launches", |gap| gap.launches.to_string())
            .words("first result", |gap| gap.tensor.clone())
            .text()
    )
}
