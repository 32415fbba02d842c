//! What a GPU cannot run, as text.

use crate::device::cuda::plan::Gap;
use batchfit_report::style::Style;
use batchfit_report::table::{text, with_header};

/// What of a variant a card cannot run; `generated` kernels are generated for the rest.
pub fn gaps(device: &str, variant: &str, generated: usize, gaps: &[Gap], style: &Style) -> String {
    if gaps.is_empty() {
        return format!("{variant}: runs on {device}, with {generated} generated kernels\n");
    }
    let mut table = with_header(&["operation", "launches", "first result"], &["launches"]);
    for gap in gaps {
        table.add_row([
            gap.operation.clone(),
            gap.launches.to_string(),
            gap.tensor.clone(),
        ]);
    }
    format!(
        "{variant}: does not run on {device}\n{}",
        text(&table, style)
    )
}
