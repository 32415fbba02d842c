//! Why a batch is not larger: what the peak is made of, when it is, and what limits it.

use super::style::{Style, facts, lines};
use batchfit_card::probe::{CategoryBytes, Peak};
use batchfit_fit::{FitResult, LimitKind};
use batchfit_step::program::Category;
use batchfit_step::units::Bytes;

/// Writes the moment of the peak, the limit that binds, and who holds the memory.
pub fn why(result: &FitResult, style: &Style) -> String {
    let Some(why) = &result.recommendation.why else {
        return String::new();
    };
    let mut lines = Vec::new();
    if let Some(peak) = &why.peak {
        lines.push(("peak at", peak.moment.clone()));
        lines.push(("held then", held(peak)));
    }
    lines.push((
        "limit",
        format!("{}: {}", limit(why.limit.kind), why.limit.explanation),
    ));
    let mut out = format!("\nWhy\n{}", facts(&lines, style));
    if !why.at_peak.is_empty() {
        out += "\n";
        out += &categories(&why.at_peak, style);
    }
    if let Some(peak) = &why.peak {
        out += "\n";
        out += &modules(peak, style);
    }
    out
}

/// What is allocated at a peak, and what is kept beside it.
pub(super) fn held(peak: &Peak) -> String {
    format!(
        "{} of tensors, and {} that the allocator keeps of freed ones",
        Bytes(peak.allocated_bytes),
        Bytes(peak.cached_bytes)
    )
}

/// What memory is for at a peak.
pub(super) fn categories(at_peak: &[CategoryBytes], style: &Style) -> String {
    let total: u64 = at_peak.iter().map(|part| part.bytes).sum();
    let parts: Vec<_> = at_peak.iter().filter(|part| part.bytes > 0).collect();
    lines(&parts, style)
        .words("what for", |part| category(part.category).to_owned())
        .size("bytes", |part| part.bytes)
        .number("share", move |part| share(part.bytes, total))
        .text()
}

/// Who holds it.
pub(super) fn modules(peak: &Peak, style: &Style) -> String {
    let total = peak.allocated_bytes;
    let name = |module: &str| {
        if module.is_empty() {
            "(no module)"
        } else {
            module
        }
        .to_owned()
    };
    let named = peak.modules.iter();
    let mut rows: Vec<(String, u64)> =
        (named.map(|held| (name(&held.module), held.bytes))).collect();
    if peak.other_modules > 0 {
        let others = format!("{} others", peak.other_modules);
        rows.push((others, peak.other_modules_bytes));
    }
    lines(&rows, style)
        .words("module", |(name, _)| name.clone())
        .size("bytes", |(_, bytes)| *bytes)
        .number("share", |(_, bytes)| share(*bytes, total))
        .text()
}

fn share(bytes: u64, total: u64) -> String {
    format!("{:.1}%", bytes as f64 * 100.0 / total.max(1) as f64)
}

/// The name of a limit in a sentence.
fn limit(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::MemoryLimit => "the memory limit that was asked for",
        LimitKind::Device => "the device's memory",
        LimitKind::OtherProcesses => "other processes on the GPU",
        LimitKind::Fragmentation => "fragmentation",
        LimitKind::Headroom => "headroom",
        LimitKind::Objective => "the objective",
        LimitKind::TargetBatch => "the target",
        LimitKind::Host => "the memory of the host",
        LimitKind::LargestTried => "the largest batch that is tried",
    }
}

/// The name of a purpose.
pub(super) fn category(category: Category) -> &'static str {
    match category {
        Category::Parameters => "parameters",
        Category::Gradients => "gradients",
        Category::OptimizerState => "optimizer state",
        Category::OptimizerScratch => "optimizer scratch",
        Category::Batch => "batch",
        Category::Activations => "activations",
        Category::ActivationGradients => "activation gradients",
        Category::Workspace => "workspace",
        Category::Communication => "communication",
    }
}
