//! Segments and blocks at the peak, as one long strip of memory cut into rows.

use super::{Anchor, HEADING, LEFT, NOTE, RIGHT, Svg, TEXT, colour};
use batchfit_card::replay::{BlockReport, ReplayReport, SegmentReport};
use batchfit_step::units::Bytes;

const ROW: f64 = 20.0;
const GAP: f64 = 7.0;

/// The pools, and about how many rows each is cut into.
const POOLS: [(&str, &str, u64); 2] = [("large", "large pool", 14), ("small", "small pool", 6)];

/// What a stretch of memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Allocated,
    Rounding,
    Pending,
    Free,
}

impl Kind {
    fn colour(self) -> &'static str {
        match self {
            Kind::Allocated => colour::ALLOCATED,
            Kind::Rounding => colour::ROUNDING,
            Kind::Pending => colour::PENDING,
            Kind::Free => colour::FREE,
        }
    }
}

/// Draws below `top`, and gives where it ends.
pub(super) fn draw(svg: &mut Svg, report: &ReplayReport, top: f64) -> f64 {
    let peak = &report.peak;
    let heading = format!(
        "Segments and blocks at the peak of reserved memory, event {}",
        peak.event
    );
    svg.text(Anchor::Start, [36.0, top], HEADING, &heading);
    let summary = summary(report);
    svg.text(Anchor::Start, [36.0, top + 22.0], NOTE, &summary);
    let mut x = 36.0;
    for (fill, name) in [
        (colour::ALLOCATED, "allocated"),
        (colour::ROUNDING, "rounding and unsplit rest"),
        (colour::FREE, "free, cached"),
        (colour::PENDING, "freed, another stream may use it"),
        (colour::INK, "start of a segment"),
    ] {
        x = svg.legend(x, top + 48.0, fill, name);
    }

    let mut y = top + 70.0;
    for (pool, name, rows) in POOLS {
        let segments = peak.segments.iter().filter(|segment| segment.pool == pool);
        let segments: Vec<&SegmentReport> = segments.collect();
        if segments.is_empty() {
            continue;
        }
        let total: u64 = segments.iter().map(|segment| segment.size_bytes).sum();
        let many = if segments.len() == 1 { "" } else { "s" };
        let heading = format!("{name}: {} segment{many}, {}", segments.len(), Bytes(total));
        svg.text(Anchor::Start, [36.0, y + 14.0], TEXT, &heading);
        let row = (total / rows).max(1).next_power_of_two();
        y = strip(svg, &segments, row, y + 26.0) + 10.0;
    }
    y
}

fn summary(report: &ReplayReport) -> String {
    let blocks = report
        .peak
        .segments
        .iter()
        .flat_map(|segment| &segment.blocks);
    let free = blocks.filter(|block| kind(block) == Kind::Free);
    let free: Vec<u64> = free.map(|block| block.size_bytes).collect();
    let Some(largest) = free.iter().max() else {
        return format!(
            "{} reserved, all of it in use",
            Bytes(report.peak.reserved_bytes)
        );
    };
    format!(
        "{} reserved; {} of it free in {} block{}, of which the largest holds {}",
        Bytes(report.peak.reserved_bytes),
        Bytes(free.iter().sum()),
        free.len(),
        if free.len() == 1 { "" } else { "s" },
        Bytes(*largest),
    )
}

/// Draws segments one after the other, and gives where the last row ends.
fn strip(svg: &mut Svg, segments: &[&SegmentReport], row: u64, top: f64) -> f64 {
    let strip = SvgRow { row, top };
    let total: u64 = segments.iter().map(|segment| segment.size_bytes).sum();
    let rows = total.div_ceil(row);
    for index in 0..rows {
        let label = Bytes(index * row).to_string();
        let y = strip.y(index) + 14.0;
        svg.text(Anchor::End, [LEFT - 8.0, y], (11.0, colour::QUIET), &label);
    }
    let mut at = 0;
    for segment in segments {
        let start = at;
        for (kind, size, name) in stretches(segment, row) {
            strip.fill(svg, at, size, kind, &name);
            at += size;
        }
        strip.mark(svg, start);
        at = start + segment.size_bytes;
    }
    strip.y(rows - 1) + ROW
}

struct SvgRow {
    /// Bytes of a row.
    row: u64,
    top: f64,
}

impl SvgRow {
    fn y(&self, row: u64) -> f64 {
        self.top + row as f64 * (ROW + GAP)
    }

    fn x(&self, within: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * within as f64 / self.row as f64
    }

    fn fill(&self, svg: &mut Svg, at: u64, size: u64, kind: Kind, name: &str) {
        let (mut at, end) = (at, at + size);
        while at < end {
            let row = at / self.row;
            let stop = end.min((row + 1) * self.row);
            let x = self.x(at - row * self.row);
            let width = self.x(stop - row * self.row) - x;
            let place = [x, self.y(row), width, ROW];
            if width < 2.0 || name.is_empty() {
                svg.rectangle(place, kind.colour());
            } else {
                svg.named_rectangle(place, kind.colour(), name);
                if kind != Kind::Rounding {
                    // So that neighbours of the same kind can be told apart.
                    svg.rectangle([x, self.y(row), 0.5, ROW], "#ffffff");
                }
            }
            at = stop;
        }
    }

    fn mark(&self, svg: &mut Svg, at: u64) {
        let row = at / self.row;
        let x = self.x(at - row * self.row);
        svg.rectangle([x, self.y(row) - 2.0, 1.0, ROW + 4.0], colour::INK);
    }
}

/// The blocks of a segment from its start to its end. Neighbours of a kind that would be too thin to see
/// become one.
fn stretches(segment: &SegmentReport, row: u64) -> Vec<(Kind, u64, String)> {
    // About a pixel.
    let thin = row / 1024;
    let mut out: Vec<(Kind, u64, String)> = Vec::new();
    let mut push = |kind: Kind, size: u64, name: String| match out.last_mut() {
        Some((last, sum, names)) if *last == kind && (size < thin || *sum < thin) => {
            *sum += size;
            names.clear();
        }
        _ => out.push((kind, size, name)),
    };
    for block in &segment.blocks {
        let size = Bytes(block.size_bytes);
        let requested = block.requested_bytes.unwrap_or(0).min(block.size_bytes);
        let rest = block.size_bytes - requested;
        match kind(block) {
            Kind::Allocated if rest >= thin.max(1) => {
                push(Kind::Allocated, requested, format!("{size} allocated"));
                let name = format!("{} more than asked for", Bytes(rest));
                push(Kind::Rounding, rest, name);
            }
            Kind::Free => push(Kind::Free, block.size_bytes, format!("{size} free")),
            Kind::Pending => push(Kind::Pending, block.size_bytes, format!("{size} freed")),
            Kind::Allocated | Kind::Rounding => {
                push(
                    Kind::Allocated,
                    block.size_bytes,
                    format!("{size} allocated"),
                );
            }
        }
    }
    out
}

fn kind(block: &BlockReport) -> Kind {
    match block.state.as_str() {
        "active_allocated" => Kind::Allocated,
        "active_pending_free" => Kind::Pending,
        _free => Kind::Free,
    }
}
