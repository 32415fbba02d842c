//! Reserved and allocated memory over time.

use super::{Anchor, HEADING, LEFT, NOTE, RIGHT, Svg, TICK, colour};
use batchfit_card::replay::{ReplayMoment, ReplayReport};
use batchfit_step::units::Bytes;

const HEIGHT: f64 = 320.0;

/// A limit further up than this many times the peak is named, and not drawn.
const FAR: f64 = 1.6;

/// Maps events and bytes to places.
pub(super) struct Scale {
    events: f64,
    bytes: f64,
    top: f64,
}

impl Scale {
    /// A panel that begins at `top`, for so many events and bytes.
    pub(super) fn below(top: f64, events: usize, ceiling: u64) -> Scale {
        Scale {
            events: events.max(1) as f64,
            bytes: 1.08 * ceiling as f64,
            top,
        }
    }

    pub(super) fn ceiling(&self) -> f64 {
        self.top
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + HEIGHT
    }

    pub(super) fn x(&self, event: usize) -> f64 {
        LEFT + (RIGHT - LEFT) * event as f64 / self.events
    }

    pub(super) fn y(&self, bytes: u64) -> f64 {
        self.top + HEIGHT * (1.0 - bytes as f64 / self.bytes)
    }

    /// Events with bytes as stairs: memory stays as it is until the next event.
    pub(super) fn stairs(&self, moments: impl Iterator<Item = (usize, u64)>) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (event, bytes) in moments {
            let (x, y) = (self.x(event), self.y(bytes));
            if let Some((_, before)) = points.last().copied()
                && (before - y).abs() > f64::EPSILON
            {
                points.push((x, before));
            }
            points.push((x, y));
        }
        points
    }
}

/// Draws below `top`, and gives where it ends.
pub(super) fn draw(svg: &mut Svg, report: &ReplayReport, top: f64) -> f64 {
    let heading = "Memory over time";
    svg.text(Anchor::Start, [36.0, top], HEADING, heading);
    let x = svg.legend(RIGHT - 310.0, top, colour::ALLOCATED, "allocated");
    let x = svg.legend(x, top, colour::RESERVED, "reserved");
    let peak = report.peak_reserved_bytes.max(1);
    let limit = report.limit_bytes;
    let near = limit.filter(|limit| *limit as f64 <= FAR * peak as f64);
    if near.is_some() {
        svg.legend(x, top, colour::LIMIT, "limit");
    }

    let ceiling = peak.max(near.unwrap_or(0));
    let events = report.recording.events;
    let scale = Scale::below(top + 22.0, events, ceiling);
    let bottom = scale.bottom();
    axes(svg, events, &scale, ceiling);
    curves(svg, report, &scale);
    if let Some(limit) = near {
        let y = scale.y(limit);
        svg.dashed_line([LEFT, y, RIGHT, y], colour::LIMIT);
        let label = format!("limit {}", Bytes(limit));
        svg.text(
            Anchor::End,
            [RIGHT - 4.0, y - 6.0],
            (12.0, colour::LIMIT),
            &label,
        );
    }
    peaks(svg, report, &scale);
    svg.text(
        Anchor::Middle,
        [f64::midpoint(LEFT, RIGHT), bottom + 40.0],
        NOTE,
        "events of the recording",
    );
    bottom + 40.0
}

pub(super) fn axes(svg: &mut Svg, events: usize, scale: &Scale, ceiling: u64) {
    let bottom = scale.bottom();
    let step = byte_step(ceiling);
    let mut bytes = 0;
    while bytes as f64 <= scale.bytes {
        let y = scale.y(bytes);
        svg.line([LEFT, y, RIGHT, y], colour::GRID, 1.0);
        let label = tick(bytes, step);
        svg.text(Anchor::End, [LEFT - 8.0, y + 4.0], TICK, &label);
        bytes += step;
    }
    let step = event_step(events);
    let mut event = 0;
    while event <= events {
        let x = scale.x(event);
        svg.line([x, bottom, x, bottom + 5.0], colour::QUIET, 1.0);
        let label = event.to_string();
        svg.text(Anchor::Middle, [x, bottom + 19.0], TICK, &label);
        event += step;
    }
    svg.line([LEFT, bottom, RIGHT, bottom], colour::QUIET, 1.0);
}

/// Points down to the floor at both ends, around what is below them.
pub(super) fn closed(mut points: Vec<(f64, f64)>, floor: f64) -> Vec<(f64, f64)> {
    if let (Some(first), Some(last)) = (points.first().copied(), points.last().copied()) {
        points.push((last.0, floor));
        points.push((first.0, floor));
    }
    points
}

fn curves(svg: &mut Svg, report: &ReplayReport, scale: &Scale) {
    let end = report
        .timeline
        .last()
        .map(|moment| (report.recording.events, moment));
    let stairs = |bytes: fn(&ReplayMoment) -> u64| {
        let moments = report.timeline.iter().map(|moment| (moment.event, moment));
        scale.stairs(
            moments
                .chain(end)
                .map(|(event, moment)| (event, bytes(moment))),
        )
    };
    let reserved = stairs(|moment| moment.reserved_bytes);
    let allocated = stairs(|moment| moment.allocated_bytes);
    let floor = scale.y(0);
    svg.area(&closed(reserved.clone(), floor), colour::FREE);
    svg.area(&closed(allocated, floor), colour::ALLOCATED);
    svg.curve(&reserved, colour::RESERVED);
}

fn peaks(svg: &mut Svg, report: &ReplayReport, scale: &Scale) {
    let peak = &report.peak;
    let reserved = (scale.x(peak.event), scale.y(peak.reserved_bytes));
    let most = &report.allocated_peak;
    let allocated = (scale.x(most.event), scale.y(most.allocated_bytes));
    svg.dot(reserved.0, reserved.1, colour::RESERVED);
    svg.dot(allocated.0, allocated.1, colour::ALLOCATED);

    let label = format!("peak reserved {}", Bytes(report.peak_reserved_bytes));
    let below = reserved.1 + 20.0;
    label_beside(svg, reserved.0, below, &label);
    let label = format!("peak allocated {}", Bytes(report.peak_allocated_bytes));
    // One below the other, where they would touch.
    label_beside(
        svg,
        allocated.0,
        (allocated.1 + 20.0).max(below + 19.0),
        &label,
    );
}

/// A label on the side with room.
pub(super) fn label_beside(svg: &mut Svg, x: f64, y: f64, label: &str) {
    if x > f64::midpoint(LEFT, RIGHT) {
        svg.label(Anchor::End, x - 9.0, y, label);
    } else {
        svg.label(Anchor::Start, x + 9.0, y, label);
    }
}

/// Between four and eight steps, of a power of two.
fn byte_step(ceiling: u64) -> u64 {
    1 << (ceiling / 4).max(1).ilog2()
}

/// A tick in the unit of its step, so that all of an axis have the same.
fn tick(bytes: u64, step: u64) -> String {
    let (unit, name) = match step {
        0x1000_0000.. => (1_073_741_824.0, "GiB"),
        0x4_0000.. => (1_048_576.0, "MiB"),
        0x100.. => (1024.0, "KiB"),
        _ => (1.0, "B"),
    };
    format!("{} {name}", bytes as f64 / unit)
}

/// At most ten steps of 1, 2 or 5 times a power of ten.
fn event_step(events: usize) -> usize {
    let mut power = 1;
    loop {
        for step in [power, 2 * power, 5 * power] {
            if events / step <= 10 {
                return step;
            }
        }
        power *= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_few_round_ticks() {
        assert_eq!(byte_step(16 << 30), 4 << 30);
        assert_eq!(byte_step(15 << 30), 2 << 30);
        assert_eq!(byte_step(1), 1);
        assert_eq!(tick(3 << 29, 1 << 29), "1.5 GiB");
        assert_eq!(
            [1, 236, 14_361, 1_000_000].map(event_step),
            [1, 50, 2000, 100_000]
        );
    }
}
