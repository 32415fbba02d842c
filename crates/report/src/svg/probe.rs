//! Memory of a probe over time, by what it is for, with its peak.

use super::timeline::{Scale, axes, closed, label_beside};
use super::{Anchor, LEFT, NOTE, RIGHT, SUBTITLE, Svg, TITLE, colour};
use crate::probe::verdict;
use crate::why::category;
use batchfit_card::probe::{ProbeReport, TimelinePoint};
use batchfit_step::program::Category;
use batchfit_step::units::Bytes;

/// The colours of the page (`page.css`, `step.css`).
const COLOURS: [&str; Category::ALL.len()] = [
    "#2a9d8f", "#e9a23b", "#8a63d2", "#b79ae6", "#5fa052", "#3a7bd5", "#d65d7a", "#7a6652",
    "#c2703d",
];

/// Draws memory over time by category, what is reserved, the limit and the peak.
pub fn probe_svg(title: &str, report: &ProbeReport) -> String {
    let mut svg = Svg::default();
    svg.text(Anchor::Start, [36.0, 40.0], TITLE, title);
    let under = format!("batch {} {}", report.batch, verdict(report.verdict));
    let under = match &report.peak {
        Some(peak) => format!("{under}; the peak is in the {}", peak.moment),
        None => under,
    };
    svg.text(Anchor::Start, [36.0, 64.0], SUBTITLE, &under);
    let mut x = 36.0;
    let used = |category: &Category| {
        let index = *category as usize;
        let some = |point: &TimelinePoint| point.by_category.get(index).is_some_and(|it| *it > 0);
        report.timeline.iter().any(some)
    };
    let shown: Vec<Category> = Category::ALL.into_iter().filter(used).collect();
    for kind in &shown {
        x = svg.legend(x, 96.0, COLOURS[*kind as usize], category(*kind));
    }
    svg.legend(x, 96.0, colour::RESERVED, "reserved");

    let last = report.timeline.last().map_or(0, |point| point.event);
    let events = usize::try_from(last).unwrap_or(usize::MAX).max(1);
    let reserved = report.timeline.iter().map(|point| point.reserved_bytes);
    let ceiling = reserved
        .max()
        .unwrap_or(0)
        .max(report.peak_reserved_bytes)
        .max(1);
    let scale = Scale::below(118.0, events, ceiling);
    let bottom = scale.bottom();
    axes(&mut svg, events, &scale, ceiling);
    let stairs = |bytes: &dyn Fn(&TimelinePoint) -> u64| {
        let points = report.timeline.iter();
        scale.stairs(points.map(|point| (event(point), bytes(point))))
    };
    // From the top of the stack down: each covers what is below it.
    for (index, kind) in shown.iter().enumerate().rev() {
        let height = |point: &TimelinePoint| {
            let below = shown[..=index].iter();
            below
                .map(|kind| point.by_category.get(*kind as usize).unwrap_or(&0))
                .sum()
        };
        let points = closed(stairs(&height), bottom);
        svg.area(&points, COLOURS[*kind as usize]);
    }
    let reserved = stairs(&|point| point.reserved_bytes);
    svg.curve(&reserved, colour::RESERVED);
    begins(&mut svg, report, &scale);
    let of_steps = report.timeline.iter().filter(|point| point.step > 0);
    // The first of equals.
    let peak = of_steps
        .rev()
        .max_by_key(|point| point.allocated_bytes)
        .map(|point| (event(point), point.allocated_bytes));
    if let Some((event, bytes)) = peak {
        let (x, y) = (scale.x(event), scale.y(bytes));
        svg.dot(x, y, colour::LIMIT);
        let label = format!("peak {}", Bytes(bytes));
        label_beside(&mut svg, x, y + 20.0, &label);
    }
    svg.text(
        Anchor::Middle,
        [f64::midpoint(LEFT, RIGHT), bottom + 40.0],
        NOTE,
        "allocations and frees",
    );
    svg.finish(bottom + 68.0, title)
}

fn event(point: &TimelinePoint) -> usize {
    usize::try_from(point.event).unwrap_or(usize::MAX)
}

/// Where each step begins.
fn begins(svg: &mut Svg, report: &ProbeReport, scale: &Scale) {
    let mut before = 0;
    for point in &report.timeline {
        if point.step > before {
            before = point.step;
            let x = scale.x(event(point));
            svg.dashed_line([x, scale.y(0), x, scale.ceiling()], colour::QUIET);
            let label = format!("step {before}");
            svg.label(Anchor::Start, x + 4.0, scale.ceiling() + 12.0, &label);
        }
    }
}
