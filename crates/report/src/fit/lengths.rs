//! What is safe at each length, and what follows for batches of all of them.

use crate::style::{Style, lines, or_dash, paragraph};
use batchfit_fit::model::LengthOf;
use batchfit_fit::{Bucket, LengthRow, LengthTable, Recommendation, VariantResult};
use batchfit_step::units::Bytes;

/// A length, and one of its variants where there are several.
type Line<'a> = (&'a LengthRow, Option<&'a VariantResult>);

/// A row for each length, or each of its variants; the budget, and the buckets.
pub(super) fn table(table: &LengthTable, style: &Style) -> String {
    let name = match table.of {
        LengthOf::SeqLen => "length",
        LengthOf::ImageSize => "size",
    };
    let any = |is: &dyn Fn(&LengthRow) -> bool| table.rows.iter().any(is);
    let counts = any(&|row| row.count != 1);
    let steps = any(&|row| row.recommendation.accumulation_steps > 1);
    let variants = any(&|row| !row.variants.is_empty());
    let rows = table.rows.iter().flat_map(|row| {
        let of_each = row.variants.iter().map(move |variant| (row, Some(variant)));
        let alone = (!variants).then_some((row, None));
        alone.into_iter().chain(of_each)
    });
    let rows: Vec<Line<'_>> = rows.collect();
    let within = |line: &Line<'_>| line.0.within_budget.filter(|_| best(line).micro_batch > 0);
    let mut out = format!("Largest safe batch if all samples had one {name}\n");
    out += &lines(&rows, style)
        .number(name, |(row, _)| row.length.to_string())
        .number("samples", |(row, _)| row.count.to_string())
        .only_if(counts)
        .words("variant", |line| {
            of_variant(line, |it| it.training.to_string())
        })
        .only_if(variants)
        .number("micro-batch", |line| micro_batch(best(line)))
        .number("steps", |line| {
            figure(best(line), best(line).accumulation_steps)
        })
        .only_if(steps)
        .number(table.of.units(), |line| {
            figure(best(line), line.0.batch_units)
        })
        .only_if(!variants)
        .number("samples in budget", |line| or_dash(within(line)))
        .only_if(!variants)
        .number("peak reserved", |line| peak(best(line)))
        .words("cost", |line| {
            of_variant(line, |it| it.cost.clone().unwrap_or_default())
        })
        .only_if(variants)
        .text();
    out.push('\n');
    out += &paragraph("", &budget(table, name), style.width);
    if table.buckets.len() > 1 || counts {
        out.push('\n');
        out += &buckets(table, name, counts, style);
    }
    out
}

fn best<'a>((row, variant): &Line<'a>) -> &'a Recommendation {
    variant.map_or(&row.recommendation, |variant| &variant.recommendation)
}

fn of_variant((_, variant): &Line<'_>, text: fn(&VariantResult) -> String) -> String {
    variant.map(text).unwrap_or_default()
}

/// What is known of a batch that fits.
pub(crate) fn figure(best: &Recommendation, figure: impl ToString) -> String {
    or_dash((best.micro_batch > 0).then_some(figure))
}

/// What a batch reserves, where it fits.
pub(crate) fn peak(best: &Recommendation) -> String {
    figure(best, Bytes(best.peak_reserved_bytes))
}

/// The batch, or what one sample lacks.
pub(crate) fn micro_batch(best: &Recommendation) -> String {
    if best.micro_batch > 0 {
        return best.micro_batch.to_string();
    }
    let lacks = best.missing_bytes;
    let lacks = lacks.map(|missing| format!(" (lacks {})", Bytes(missing)));
    format!("none{}", lacks.unwrap_or_default())
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
    let lengths = |bucket: &Bucket| match &bucket.lengths {
        [first, last] if first == last => first.to_string(),
        [first, last] => format!("{first} to {last}"),
    };
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
        lines(&table.buckets, style)
            .words(name, lengths)
            .number("samples", |it| it.count.to_string())
            .only_if(has_counts)
            .number("micro-batch", |it| it.micro_batch.to_string())
            .number("batches", |it| or_dash(it.batches))
            .only_if(has_counts)
            .number("padding", |it| percent(it.padding))
            .text()
    )
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
