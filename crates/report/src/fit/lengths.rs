//! What is safe at each length, and what follows for batches of all of them.

use crate::style::Style;
use crate::style::paragraph;
use crate::table::{text, with_header};
use batchfit_fit::model::LengthOf;
use batchfit_fit::{Bucket, LengthRow, LengthTable, VariantResult};
use batchfit_step::units::Bytes;

/// Columns of numbers; of buckets, all but the first two.
const NUMBERS: [&str; 11] = [
    "length",
    "size",
    "samples",
    "micro-batch",
    "steps",
    "tokens",
    "pixels",
    "samples in budget",
    "peak reserved",
    "batches",
    "padding",
];

/// Which columns there are.
struct Columns {
    counts: bool,
    steps: bool,
    /// Several rows for each length, without what is known of one variant alone.
    variants: bool,
}

/// A row for each length, or each of its variants; the budget, and the buckets.
pub(super) fn table(table: &LengthTable, style: &Style) -> String {
    let name = match table.of {
        LengthOf::SeqLen => "length",
        LengthOf::ImageSize => "size",
    };
    let mut all = table.rows.iter();
    let columns = Columns {
        counts: table.rows.iter().any(|row| row.count != 1),
        steps: table
            .rows
            .iter()
            .any(|row| row.recommendation.accumulation_steps > 1),
        variants: all.any(|row| !row.variants.is_empty()),
    };
    let mut header = vec![name];
    header.extend(columns.counts.then_some("samples"));
    header.extend(columns.variants.then_some("variant"));
    header.push("micro-batch");
    header.extend(columns.steps.then_some("steps"));
    if !columns.variants {
        header.extend([table.of.units(), "samples in budget"]);
    }
    header.push("peak reserved");
    header.extend(columns.variants.then_some("cost"));
    let mut rows = with_header(&header, &NUMBERS);
    for row in &table.rows {
        if columns.variants {
            for variant in &row.variants {
                rows.add_row(cells(row, Some(variant), &columns));
            }
        } else {
            rows.add_row(cells(row, None, &columns));
        }
    }
    let mut out = format!("Largest safe batch if all samples had one {name}\n");
    out += &text(&rows, style);
    out.push('\n');
    out += &paragraph("", &budget(table, name), style.width);
    if table.buckets.len() > 1 || columns.counts {
        out.push('\n');
        out += &buckets(table, name, columns.counts, style);
    }
    out
}

fn cells(row: &LengthRow, variant: Option<&VariantResult>, columns: &Columns) -> Vec<String> {
    let best = variant.map_or(&row.recommendation, |variant| &variant.recommendation);
    let fits = best.micro_batch > 0;
    let shown = |figure: u64| {
        if fits {
            figure.to_string()
        } else {
            "-".to_owned()
        }
    };
    let mut cells = vec![row.length.to_string()];
    cells.extend(columns.counts.then(|| row.count.to_string()));
    cells.extend(variant.map(|variant| variant.training.to_string()));
    cells.push(if fits {
        best.micro_batch.to_string()
    } else {
        let lacks = best.missing_bytes.map_or_else(String::new, |missing| {
            format!(" (lacks {})", Bytes(missing))
        });
        format!("none{lacks}")
    });
    cells.extend(columns.steps.then(|| shown(best.accumulation_steps)));
    if variant.is_none() {
        let within = row.within_budget.filter(|_| fits);
        cells.extend([
            shown(row.batch_units),
            within.map_or_else(|| "-".to_owned(), |samples| samples.to_string()),
        ]);
    }
    cells.push(if fits {
        Bytes(best.peak_reserved_bytes).to_string()
    } else {
        "-".to_owned()
    });
    cells.extend(variant.map(|variant| variant.cost.clone().unwrap_or_default()));
    cells
}

fn budget(table: &LengthTable, name: &str) -> String {
    let units = table.of.units();
    match table.budget {
        Some(budget) => format!(
            "Batches of up to {budget} {units} are safe at every {name}: as many whole samples as they hold."
        ),
        None => match table
            .rows
            .iter()
            .rev()
            .find(|row| row.recommendation.micro_batch > 0)
        {
            Some(row) => format!(
                "No number of {units} is safe at every {name}; {} is the longest of which a sample fits.",
                row.length
            ),
            None => format!("No number of {units} is safe at any {name}."),
        },
    }
}

fn buckets(table: &LengthTable, name: &str, has_counts: bool, style: &Style) -> String {
    let mut header = vec![name];
    header.extend(has_counts.then_some("samples"));
    header.push("micro-batch");
    header.extend(has_counts.then_some("batches"));
    header.push("padding");
    let mut rows = with_header(&header, &NUMBERS[2..]);
    for bucket in &table.buckets {
        let Bucket {
            lengths: [first, last],
            count,
            micro_batch,
            batches,
            padding,
        } = bucket;
        let mut cells = vec![if first == last {
            first.to_string()
        } else {
            format!("{first} to {last}")
        }];
        cells.extend(has_counts.then(|| count.to_string()));
        cells.push(micro_batch.to_string());
        cells.extend(
            has_counts
                .then(|| batches.map_or_else(|| "-".to_owned(), |batches| batches.to_string())),
        );
        cells.push(percent(*padding));
        rows.add_row(cells);
    }
    let of_one = table
        .padding_of_one_bucket
        .map_or_else(String::new, |padding| {
            let units = table.of.units();
            format!(
                "; without buckets {} of the {units} are padding",
                percent(padding)
            )
        });
    format!(
        "Buckets, each padded to its longest{of_one}\n{}",
        text(&rows, style)
    )
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
