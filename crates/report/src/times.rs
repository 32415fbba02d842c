//! How long a step takes, by what takes it.

use std::fmt::Write as _;

use batchfit_card::device::sim::Ceilings;
use batchfit_card::timing;
use batchfit_step::program::Program;

/// How long a later step takes on a card at a batch: its kernels by class, longest first, and what the host does. `None` where it
/// is unknown what the program launches.
pub fn times(program: &Program, ceilings: &Ceilings, batch: u64, pace: f64) -> Option<String> {
    let step = timing::step(&program.timeline, ceilings, batch, pace)?;
    let (pieces, hosts) = timing::pieces(&program.timeline, ceilings, batch);
    let ms = |seconds: f64| format!("{:.3}", 1e3 * seconds);
    let mut text = format!(
        "a step of batch {batch} takes {} ms: {} ms of kernels beside {} ms of the host\n\n",
        ms(step.seconds),
        ms(step.busy_seconds),
        ms(step.host_seconds)
    );
    let mut sorted: Vec<_> = pieces.iter().collect();
    sorted.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
    let mut rows = vec![["kernels", "launches", "ms", "GFLOP", "MB"].map(String::from)];
    rows.extend(sorted.iter().map(|(class, piece)| {
        [
            (*class).clone(),
            piece.count.to_string(),
            ms(piece.seconds),
            format!("{:.2}", piece.flops / 1e9),
            format!("{:.2}", piece.bytes / 1e6),
        ]
    }));
    text += &lined_up(&rows);
    text.push('\n');
    let mut rows = vec![["the host's work", "times", "ms", "", ""].map(String::from)];
    rows.extend(
        hosts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(host, count)| {
                let spent = pace * timing::host_seconds(*host) * *count as f64;
                [
                    format!("{host:?}"),
                    count.to_string(),
                    ms(spent),
                    String::new(),
                    String::new(),
                ]
            }),
    );
    text += &lined_up(&rows);
    Some(text)
}

fn lined_up(rows: &[[String; 5]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:<w$}", row[0], w = widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
