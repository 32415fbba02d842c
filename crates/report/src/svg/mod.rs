//! Drawings for people: what a replay or a probe found, as one SVG file.
//!
//! Written by hand, so that the same document always gives the same bytes. No scripts, no fonts of its
//! own; a browser shows sizes on hovering.

mod map;
mod probe;
mod timeline;

pub use probe::probe_svg;

use std::fmt::Write as _;

use super::probe::verdict;
use batchfit_card::replay::ReplayReport;
use batchfit_step::units::Bytes;

/// All drawings are this wide.
const WIDTH: f64 = 1200.0;
/// Where panels begin and end.
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 36.0;

/// Colours of the page that differ in brightness too, so that they survive a black and white printer: none of them is a category's but
/// that of tensors.
mod colour {
    pub(super) const INK: &str = "#1f2933";
    pub(super) const QUIET: &str = "#66727f";
    pub(super) const GRID: &str = "#e4e8ec";
    pub(super) const ALLOCATED: &str = "#3a7bd5";
    pub(super) const RESERVED: &str = "#24292f";
    pub(super) const FREE: &str = "#d0d7de";
    pub(super) const PENDING: &str = "#8c959f";
    pub(super) const ROUNDING: &str = "#123a63";
    pub(super) const LIMIT: &str = "#b3261e";
}

/// How high letters are, and their colour.
type Font = (f64, &'static str);

const TITLE: Font = (22.0, colour::INK);
const SUBTITLE: Font = (14.0, colour::QUIET);
const HEADING: Font = (16.0, colour::INK);
const TEXT: Font = (13.0, colour::INK);
const NOTE: Font = (13.0, colour::QUIET);
const TICK: Font = (12.0, colour::QUIET);

/// Draws memory over time, and the segments and blocks at the peak.
pub fn replay_svg(report: &ReplayReport) -> String {
    let mut svg = Svg::default();
    let title = match &report.recording.case {
        Some(case) => case.clone(),
        None => "Recorded allocator events".to_owned(),
    };
    svg.text(Anchor::Start, [36.0, 40.0], TITLE, &title);
    svg.text(Anchor::Start, [36.0, 64.0], SUBTITLE, &subtitle(report));
    let bottom = timeline::draw(&mut svg, report, 96.0);
    let bottom = map::draw(&mut svg, report, bottom + 44.0);
    svg.finish(bottom + 28.0, &title)
}

fn subtitle(report: &ReplayReport) -> String {
    let allocator = match report.allocator.as_str() {
        "" => "default allocator settings",
        text => text,
    };
    let limit = match report.limit_bytes {
        Some(limit) => format!("limit {}", Bytes(limit)),
        None => "no limit".to_owned(),
    };
    let retries = match report.retries {
        1 => "1 retry".to_owned(),
        other => format!("{other} retries"),
    };
    format!(
        "{}, {retries}; {limit}; {allocator}",
        verdict(report.verdict)
    )
}

/// Which end of a text is at its place.
#[derive(Debug, Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing in the making.
#[derive(Debug, Default)]
struct Svg {
    body: String,
}

impl Svg {
    fn rectangle(&mut self, place: [f64; 4], fill: &str) {
        let [x, y, width, height] = place.map(number);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>"#
        );
    }

    /// A rectangle that says something on hovering.
    fn named_rectangle(&mut self, place: [f64; 4], fill: &str, name: &str) {
        let [x, y, width, height] = place.map(number);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"><title>{}</title></rect>"#,
            escaped(name)
        );
    }

    fn line(&mut self, ends: [f64; 4], stroke: &str, width: f64) {
        self.stroke(
            ends,
            stroke,
            &format!(r#"stroke-width="{}""#, number(width)),
        );
    }

    fn dashed_line(&mut self, ends: [f64; 4], stroke: &str) {
        self.stroke(ends, stroke, r#"stroke-width="1.5" stroke-dasharray="7 4""#);
    }

    fn stroke(&mut self, ends: [f64; 4], stroke: &str, how: &str) {
        let [x1, y1, x2, y2] = ends.map(number);
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" {how}/>"#
        );
    }

    /// A filled shape through these points.
    fn area(&mut self, points: &[(f64, f64)], fill: &str) {
        let _ = writeln!(self.body, r#"<path d="{}Z" fill="{fill}"/>"#, path(points));
    }

    fn curve(&mut self, points: &[(f64, f64)], stroke: &str) {
        let _ = writeln!(
            self.body,
            r#"<path d="{}" fill="none" stroke="{stroke}" stroke-width="1.8" stroke-linejoin="round"/>"#,
            path(points)
        );
    }

    /// A dot with a white rim.
    fn dot(&mut self, x: f64, y: f64, fill: &str) {
        let [x, y] = [x, y].map(number);
        let _ = writeln!(
            self.body,
            r##"<circle cx="{x}" cy="{y}" r="5" fill="{fill}" stroke="#ffffff" stroke-width="2"/>"##
        );
    }

    fn text(&mut self, anchor: Anchor, place: [f64; 2], (size, fill): Font, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let [x, y, size] = [place[0], place[1], size].map(number);
        let _ = writeln!(
            self.body,
            r#"<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }

    /// A text with a white rim, readable on anything.
    fn label(&mut self, anchor: Anchor, x: f64, y: f64, text: &str) {
        let from = self.body.len();
        self.text(anchor, [x, y], (13.0, "#ffffff"), text);
        let rim = self.body.split_off(from);
        let stroked = "<text stroke=\"#ffffff\" stroke-width=\"4\" stroke-linejoin=\"round\"";
        self.body.push_str(&rim.replacen("<text", stroked, 1));
        self.text(anchor, [x, y], TEXT, text);
    }

    /// A coloured square and what it stands for; gives where the next one can begin.
    fn legend(&mut self, x: f64, y: f64, fill: &str, name: &str) -> f64 {
        self.rectangle([x, y - 11.0, 12.0, 12.0], fill);
        self.text(Anchor::Start, [x + 18.0, y], TEXT, name);
        // Letters are about half as wide as they are high.
        x + 18.0 + 6.7 * name.chars().count() as f64 + 22.0
    }

    fn finish(self, height: f64, title: &str) -> String {
        let (width, height) = (number(WIDTH), number(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
             <title>{}</title>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            escaped(title),
            self.body
        )
    }
}

fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{} {}", number(*x), number(*y));
    }
    path
}

/// Two decimals at most: a hundredth of a pixel, and the same bytes everywhere.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Not allowed in XML, whatever a case is called.
            control if control.is_control() => out.push('\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_more_digits_than_they_need() {
        assert_eq!(
            [0.0, -0.001, 1.5, 12.345, 100.0].map(number),
            ["0", "0", "1.5", "12.35", "100"]
        );
    }

    #[test]
    fn texts_cannot_end_their_element() {
        assert_eq!(
            escaped("<a & \"b\">\u{1}"),
            "&lt;a &amp; &quot;b&quot;&gt;\u{fffd}"
        );
    }
}
