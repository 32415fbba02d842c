//! The answer to a fit.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::probe::verdict;
use super::style::Style;
use super::table::{assumptions, facts, notes, text, with_header};
use crate::jobs::{FitResult, GpuWork, Recommendation};
use crate::probe::Evidence;
use crate::units::Bytes;

/// Writes what to train with, how the variants compare, and which probes stand behind it.
pub fn fit(model: &str, result: &FitResult, style: &Style) -> String {
    let best = &result.recommendation;
    let environment = &result.environment;
    let mut report = format!(
        "{model} on {} ({})\n\n{}\n",
        environment.gpu,
        environment.device,
        advice(best)
    );
    report += &facts(&figures(best), style);
    if result.variants.len() > 1 {
        report += "\nVariants, best first\n";
        report += &variants(result, style);
    }
    if !result.probes.is_empty() {
        report += match result.variants.len() {
            1 => "\nProbes\n",
            _ => "\nProbes, variants numbered as in the request\n",
        };
        report += &probes(result, style);
    }
    if let Some(work) = &result.gpu_work {
        report += "\nOn the GPU\n";
        report += &facts(&on_the_gpu(work), style);
    }
    let all: BTreeSet<_> = result
        .variants
        .iter()
        .flat_map(|variant| &variant.recommendation.notes)
        .chain(&best.notes)
        .cloned()
        .collect();
    if !all.is_empty() || !result.assumptions.is_empty() {
        report += "\n";
        report += &assumptions(&result.assumptions, style);
        report += &notes(&all.into_iter().collect::<Vec<_>>(), style);
    }
    report
}

fn advice(best: &Recommendation) -> String {
    if best.micro_batch == 0 {
        let missing = best.missing_bytes.map_or_else(String::new, |missing| {
            format!(": a batch of one needs {} more", Bytes(missing))
        });
        let what = match (best.max_batch_without_retries, best.max_batch) {
            (1.., _) => "Nothing leaves headroom",
            (0, 1..) => "Nothing fits without retries",
            (0, 0) => "Nothing fits",
        };
        return format!("{what}{missing}.\n");
    }
    let mut advice = format!("Train with a micro-batch of {}", best.micro_batch);
    if best.accumulation_steps > 1 {
        let _ = write!(
            advice,
            " and {} accumulation steps",
            best.accumulation_steps
        );
    }
    if best.global_batch != best.micro_batch {
        let _ = write!(advice, ": {} samples per optimizer step", best.global_batch);
    }
    if best.shortfall > 0 {
        let _ = write!(advice, ", {} fewer than asked for", best.shortfall);
    }
    advice + ".\n"
}

fn figures(best: &Recommendation) -> Vec<(&'static str, String)> {
    let evidence = match best.evidence {
        Evidence::Simulated => "simulated",
        Evidence::Probed => "probed on the GPU",
    };
    let mut figures = vec![
        (
            "largest without retries",
            best.max_batch_without_retries.to_string(),
        ),
        ("largest that finishes", best.max_batch.to_string()),
        (
            "peak allocated",
            Bytes(best.peak_allocated_bytes).to_string(),
        ),
        ("peak reserved", Bytes(best.peak_reserved_bytes).to_string()),
        ("limit", Bytes(best.limit_bytes).to_string()),
        ("headroom", Bytes(best.headroom_bytes).to_string()),
        ("limited by", best.limited_by.clone()),
        ("evidence", evidence.to_owned()),
    ];
    if let Some(step_ms) = best.step_ms {
        figures.push(("step time", format!("{step_ms:.1} ms")));
    }
    if let Some(rate) = best.samples_per_second {
        figures.push(("samples per second", format!("{rate:.0}")));
    }
    figures
}

/// How much was tried, and what it took.
fn on_the_gpu(work: &GpuWork) -> Vec<(&'static str, String)> {
    let seconds = |ms: f64| format!("{:.2} s", ms / 1000.0);
    let times: Vec<_> = work.runs.iter().map(|run| seconds(run.wall_ms)).collect();
    let mut lines = vec![
        (
            "probes",
            format!(
                "{}, {} of them out of memory (in batchfit's own process)",
                work.probes, work.out_of_memory
            ),
        ),
        ("start of the process", seconds(work.worker_start_ms)),
    ];
    if !times.is_empty() {
        lines.push(("each took", times.join(", ")));
    }
    if work.waited_ms > 0.0 {
        lines.push(("waited for its turn", seconds(work.waited_ms)));
    }
    if work.workers > 1 {
        lines.push(("processes started", work.workers.to_string()));
    }
    lines
}

fn variants(result: &FitResult, style: &Style) -> String {
    let numbers = [
        "micro-batch",
        "steps",
        "peak reserved",
        "headroom",
        "samples/s",
    ];
    let mut table = with_header(
        &[
            "",
            "variant",
            "micro-batch",
            "steps",
            "peak reserved",
            "headroom",
            "samples/s",
        ],
        &numbers,
    );
    for variant in &result.variants {
        let best = &variant.recommendation;
        table.add_row([
            variant.rank.to_string(),
            variant.training.to_string(),
            best.micro_batch.to_string(),
            best.accumulation_steps.to_string(),
            Bytes(best.peak_reserved_bytes).to_string(),
            Bytes(best.headroom_bytes).to_string(),
            best.samples_per_second
                .map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
        ]);
    }
    text(&table, style)
}

fn probes(result: &FitResult, style: &Style) -> String {
    let numbers = [
        "variant",
        "batch",
        "peak allocated",
        "peak reserved",
        "retries",
    ];
    let mut table = with_header(
        &[
            "variant",
            "batch",
            "verdict",
            "peak allocated",
            "peak reserved",
            "retries",
            "evidence",
        ],
        &numbers,
    );
    for probe in &result.probes {
        let report = &probe.report;
        table.add_row([
            (probe.variant + 1).to_string(),
            report.batch.to_string(),
            verdict(report.verdict).to_owned(),
            Bytes(report.peak_allocated_bytes).to_string(),
            Bytes(report.peak_reserved_bytes).to_string(),
            report.retries.to_string(),
            match report.evidence {
                Evidence::Simulated => "simulated".to_owned(),
                Evidence::Probed => "probed".to_owned(),
            },
        ]);
    }
    text(&table, style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::GpuRun;
    use crate::probe::Verdict;

    #[test]
    fn work_on_a_gpu_is_accounted_for() {
        let run = |verdict, wall_ms| GpuRun {
            batch: 8,
            accumulation: 1,
            verdict,
            wall_ms,
        };
        let work = GpuWork {
            probes: 2,
            out_of_memory: 1,
            workers: 2,
            worker_start_ms: 1234.0,
            waited_ms: 500.0,
            runs: vec![run(Verdict::Fits, 610.0), run(Verdict::OutOfMemory, 1320.0)],
        };

        let lines = on_the_gpu(&work);

        let said: Vec<_> = lines.iter().map(|(_, said)| said.as_str()).collect();
        assert_eq!(
            said,
            [
                "2, 1 of them out of memory (in batchfit's own process)",
                "1.23 s",
                "0.61 s, 1.32 s",
                "0.50 s",
                "2"
            ]
        );
    }
}
