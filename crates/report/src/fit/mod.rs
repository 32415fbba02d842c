//! The answer to a fit.

mod lengths;
mod setup;
mod suggestions;
mod variants;

pub(crate) use lengths::{figure, micro_batch, peak};
pub use setup::ShownRequest;
pub(crate) use setup::given_options;

use std::fmt::Write as _;

use super::probe::verdict;
use super::style::{Style, facts, lines, paragraph, sized};
use super::why::category;
use batchfit_card::probe::{CategoryBytes, Evidence, SpeedFrom};
use batchfit_fit::model::Mode;
use batchfit_fit::{
    AcrossRanks, Exactly, FitResult, GpuWork, LimitKind, Recommendation, VariantResult, Why,
};
use batchfit_step::units::Bytes;

/// Writes what to train with, how the variants compare, and with detail which probes stand behind it.
///
/// Variants have one number everywhere, their rank.
pub fn fit(model: &str, result: &FitResult, request: &ShownRequest, style: &Style) -> String {
    let best = &result.recommendation;
    let environment = &result.environment;
    let model = shown_name(model);
    let title = match request.cards().as_slice() {
        [] => format!("{model} on {} ({})", environment.gpu, environment.device),
        cards => format!(
            "{model} on {}, as much as fits the one with the least memory: {} ({})",
            cards.join(" and "),
            environment.gpu,
            environment.device
        ),
    };
    let mut report = paragraph("", &title, style.width);
    report += &style.quiet(&paragraph("", &setup::line(result, request), style.width));
    report += "\n";
    report += &style.strong(&paragraph("", &recommendation(result), style.width));
    report += "\n";
    report += &facts(&figures(result, style), style);
    if let Some(next) = best.next_batch {
        report += "\n";
        let further =
            format!("Record batch {next} as well, and ask again: it is nearer to the answer.");
        report += &paragraph("", &further, style.width);
    }
    if let Some(table) = &result.lengths {
        report += "\n";
        report += &lengths::table(table, style);
    }
    if let Some(soaked) = &result.soak {
        let steps = soaked.report.steps;
        let _ = writeln!(
            report,
            "\nBatch {} over {steps} steps of all shapes",
            soaked.batch
        );
        report += &super::soak::figures(soaked, style);
    }
    let is_listed = result.lengths.as_ref().is_some_and(|table| {
        let mut rows = table.rows.iter();
        rows.any(|row| !row.variants.is_empty())
    });
    // Rows are of each length alone, and not what lasts.
    if result.variants.len() > 1 && (!is_listed || result.soak.is_some()) {
        report += "\n";
        report += &variants::table(&result.variants, style);
    }
    if let Some(wanted) = result.suggested_for {
        report += "\n";
        report += &suggestions::table(result, wanted, style);
    }
    if style.verbose && !result.probes.is_empty() {
        report += "\nProbes\n";
        report += &probes(result, style);
    }
    if let (Some(work), true) = (&result.gpu_work, style.verbose) {
        report += "\nOn the GPU\n";
        report += &facts(&on_the_gpu(work), style);
    }
    let notes = setup::notes(result, request, style);
    if !notes.is_empty() {
        report += "\n";
        report += &notes;
    }
    report
}

/// A model's name without the digest that tells it from others of its class.
pub(crate) fn shown_name(model: &str) -> &str {
    let is_digest = |end: &str| end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = model.rsplit_once('-').filter(|(_, end)| is_digest(end));
    parts.map_or(model, |(name, _)| name)
}

fn recommendation(result: &FitResult) -> String {
    let best = &result.recommendation;
    if best.micro_batch == 0 {
        let of_host = |why: &Why| why.limit.kind == LimitKind::Host;
        if best.why.as_ref().is_some_and(of_host) {
            return "Nothing fits: the host's memory is too small for what is offloaded."
                .to_owned();
        }
        if let Some(failing) = result
            .soak
            .as_ref()
            .and_then(|soaked| soaked.fails.as_ref())
        {
            return format!("Nothing lasts, because of {failing}.");
        }
        let missing = best.missing_bytes.map_or_else(String::new, |missing| {
            let who = if best.max_batch > 0 {
                "it"
            } else {
                "one sample"
            };
            format!(": {who} needs {} more", Bytes(missing))
        });
        let what = match (best.max_batch_steady, best.max_batch) {
            (1.., _) => {
                "One sample runs, but without the safety margin (`--headroom 0` asks for none)"
            }
            (0, 1..) => "One sample runs, but the allocator frees its cache in every step",
            (0, 0) => "Nothing fits",
        };
        let is_asked = result.suggested_for.is_some()
            || best
                .notes
                .iter()
                .any(|note| note.contains("no changes are suggested"));
        let is_training = |one: &VariantResult| one.training.mode == Mode::Train;
        let is_changeable = result.environment.device.starts_with("sim:")
            && result.variants.first().is_some_and(is_training);
        let way = if is_changeable && !is_asked {
            " `--suggest` (over HTTP `\"suggest\": true`) finds changes that would."
        } else {
            ""
        };
        return format!("{what}{missing}.{way}");
    }
    let is_training = |variant: &VariantResult| variant.training.mode == Mode::Train;
    if result.variants.first().is_none_or(is_training) {
        let advice = in_steps(
            best.micro_batch,
            best.accumulation_steps,
            best.global_batch,
            best.shortfall,
        );
        advice
            + &best
                .exactly
                .map_or_else(String::new, |exactly| exact(best, &exactly))
    } else {
        in_passes(best)
    }
}

/// How the target itself is made.
fn exact(best: &Recommendation, exactly: &Exactly) -> String {
    let Exactly {
        micro_batch,
        accumulation_steps,
        times_slower,
        last_micro_batch,
        above_micro_batch,
        above_steps,
    } = *exactly;
    let target = best.global_batch + best.shortfall;
    let (micro, steps) = (best.micro_batch, best.accumulation_steps);
    let ranks = best.global_batch / (micro * steps).max(1);
    let slower =
        times_slower.map_or_else(String::new, |times| format!(", {times:.1} times slower"));
    let above = above_micro_batch * above_steps * ranks;
    let on_each = if ranks > 1 { " on each GPU" } else { "" };
    let fewer = best.shortfall - last_micro_batch * ranks;
    let last = match last_micro_batch {
        0 => String::new(),
        last => format!(
            ", or a last micro-batch of {last}{on_each} after these {steps}, where each loss is scaled by its samples / {} (a plain mean \
             would count the last ones more)",
            target - fewer
        ),
    };
    format!(
        " Exactly {} takes {accumulation_steps} steps of {micro_batch}{slower}{last}. The next total above is {above}: {above_steps} steps of \
         {above_micro_batch}.",
        target - fewer
    )
}

/// What to run without training, in a sentence.
fn in_passes(best: &Recommendation) -> String {
    let mut advice = match best.micro_batch {
        1 => "Run one sample at a time".to_owned(),
        samples => format!("Run {samples} samples at a time"),
    };
    if best.global_batch != best.micro_batch {
        let times = match best.accumulation_steps {
            1 => String::new(),
            steps => format!("{steps} times, "),
        };
        let _ = write!(advice, ", {times}{} in all", best.global_batch);
    }
    if best.shortfall > 0 {
        let _ = write!(advice, ", {} fewer than asked for", best.shortfall);
    }
    advice + "."
}

/// What to train with, in a sentence.
pub fn in_steps(micro_batch: u64, steps: u64, global_batch: u64, shortfall: u64) -> String {
    let mut advice = format!("Train with a micro-batch of {micro_batch}");
    if steps > 1 {
        let _ = write!(advice, " and {steps} accumulation steps");
    }
    if global_batch != micro_batch {
        let _ = write!(advice, ": {global_batch} samples per optimizer step");
    }
    if shortfall > 0 {
        let _ = write!(advice, ", {shortfall} fewer than asked for");
    }
    advice + "."
}

fn figures(result: &FitResult, style: &Style) -> Vec<(&'static str, String)> {
    let best = &result.recommendation;
    let mut figures = Vec::new();
    let parts = best
        .why
        .iter()
        .flat_map(|why| &why.at_peak)
        .filter(|part| part.bytes > 0);
    let parts: Vec<_> = parts.filter(|_| best.micro_batch == 0).collect();
    if parts.is_empty() {
        let (peak, limit) = (Bytes(best.peak_reserved_bytes), Bytes(best.limit_bytes));
        figures.push(("peak reserved", format!("{peak}; the limit is {limit}")));
    } else {
        let held: u64 = parts.iter().map(|part| part.bytes).sum();
        let named =
            |part: &&CategoryBytes| format!("{} {}", category(part.category), Bytes(part.bytes));
        let mut said: Vec<String> = parts.iter().map(named).collect();
        // What the allocator keeps of freed blocks, and the margin: what is missing counts them.
        let is_host = best
            .why
            .as_ref()
            .is_some_and(|why| why.limit.kind == LimitKind::Host);
        let missing = best.missing_bytes.filter(|_| !is_host);
        let needed = missing.map_or(0, |missing| best.limit_bytes + missing);
        let total = Bytes(held.max(needed));
        let rest = total.saturating_sub(Bytes(held));
        said.extend((rest.0 > 0).then(|| format!("fragmentation and safety margin {rest}")));
        figures.push(("one sample takes", format!("{total}: {}", said.join(", "))));
        figures.push(sized("the limit is", best.limit_bytes));
    }
    if style.verbose {
        figures.extend([
            sized("peak allocated", best.peak_allocated_bytes),
            sized("headroom", best.headroom_bytes),
        ]);
    }
    figures.extend(best.parallel.iter().flat_map(|ranks| across(best, ranks)));
    figures.push(("largest batch", largest(best)));
    figures.push(("limited by", best.limited_by.clone()));
    figures.push(("evidence", evidence(result)));
    figures.extend(time(best).map(|time| ("time", time)));
    figures
}

/// What several ranks differ in, and what they send.
fn across(best: &Recommendation, ranks: &AcrossRanks) -> Vec<(&'static str, String)> {
    let AcrossRanks {
        world_size,
        binding_rank,
        ..
    } = ranks;
    let mut figures = Vec::new();
    figures.push((
        "ranks",
        if ranks.ranks.len() == 1 {
            format!("{world_size}; no other needs more than rank {binding_rank}")
        } else {
            format!("{world_size}, which differ; rank {binding_rank} needs most and decides")
        },
    ));
    if let Some(without) = ranks.without_overlap
        && without.peak_reserved_bytes != best.peak_reserved_bytes
    {
        let without = Bytes(without.peak_reserved_bytes);
        let text = format!("{without} reserved, where DDP's first buckets are gone in time");
        figures.push(("without overlap", text));
    }
    if let Some(bytes) = ranks.communicated_bytes {
        figures.push(("sent", format!("{} by each rank in a step", Bytes(bytes))));
    }
    figures
}

/// How long steps take, and how that is known.
fn time(best: &Recommendation) -> Option<String> {
    let step_ms = best.step_ms?;
    let mut time = format!("{} for a micro-batch", lasting(step_ms));
    if let (Some(whole), 2..) = (best.optimizer_step_ms, best.accumulation_steps) {
        let _ = write!(time, ", {} for an optimizer step", lasting(whole));
    }
    if let Some(rate) = best.samples_per_second {
        let _ = write!(time, ", {} samples a second", rounded(rate));
    }
    let from = best.speed_from.unwrap_or(SpeedFrom::Measured);
    if from != SpeedFrom::Measured {
        let _ = write!(time, " ({})", from.name());
    }
    Some(time)
}

/// A time as people read it.
pub(crate) fn lasting(ms: f64) -> String {
    match ms {
        ..1000.0 => format!("{ms:.0} ms"),
        ..60_000.0 => format!("{:.2} s", ms / 1000.0),
        _ => format!("{:.1} min", ms / 60_000.0),
    }
}

/// Samples a second with three figures at least.
pub(crate) fn rounded(rate: f64) -> String {
    match rate {
        ..10.0 => format!("{rate:.2}"),
        ..100.0 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

/// The maxima, each that is larger than the one before.
fn largest(best: &Recommendation) -> String {
    let (smooth, finishing) = (best.max_batch_without_retries, best.max_batch);
    if finishing == smooth {
        return smooth.to_string();
    }
    let mut text = format!("{smooth} without retries of the allocator");
    if best.max_batch_steady > smooth {
        let _ = write!(
            text,
            ", {} with retries in the first two steps only",
            best.max_batch_steady
        );
    }
    if finishing > best.max_batch_steady {
        let _ = write!(text, "; up to {finishing} runs, but slower");
    }
    text
}

fn evidence(result: &FitResult) -> String {
    match (result.recommendation.evidence, &result.gpu_work) {
        (Evidence::Simulated, _) => "simulated; nothing ran on a GPU".to_owned(),
        (Evidence::Recorded, _) => {
            "recorded; simulated from recordings of the program at smaller batches".to_owned()
        }
        (Evidence::Trained, _) => "trained; the program itself ran with this batch".to_owned(),
        (Evidence::Probed, None) => "probed on the GPU".to_owned(),
        (Evidence::Probed, Some(work)) => format!(
            "{} training runs on the GPU, {} of them out of memory (in a process of batchfit's own)",
            work.probes, work.out_of_memory
        ),
    }
}

/// How long the work on a GPU took.
fn on_the_gpu(work: &GpuWork) -> Vec<(&'static str, String)> {
    let seconds = |ms: f64| format!("{:.2} s", ms / 1000.0);
    let times: Vec<_> = work.runs.iter().map(|run| seconds(run.wall_ms)).collect();
    let mut lines = vec![("start of the process", seconds(work.worker_start_ms))];
    if !times.is_empty() {
        lines.push(("each probe took", times.join(", ")));
    }
    if work.waited_ms > 0.0 {
        lines.push(("waited for its turn", seconds(work.waited_ms)));
    }
    if work.workers > 1 {
        lines.push(("processes started", work.workers.to_string()));
    }
    lines
}

fn probes(result: &FitResult, style: &Style) -> String {
    let mut probes: Vec<_> = result.probes.iter().collect();
    probes.sort_by_key(|probe| probe.variant);
    lines(&probes, style)
        .number("variant", |probe| (probe.variant + 1).to_string())
        .only_if(result.variants.len() > 1)
        .number("batch", |probe| probe.report.batch.to_string())
        .number("micro-steps", |probe| probe.accumulation.to_string())
        .words("verdict", |probe| verdict(probe.report.verdict).to_owned())
        .size("peak allocated", |probe| probe.report.peak_allocated_bytes)
        .size("peak reserved", |probe| probe.report.peak_reserved_bytes)
        .number("retries", |probe| probe.report.retries.to_string())
        .words("evidence", |probe| probe.report.evidence.name().to_owned())
        .text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use batchfit_card::probe::Verdict;
    use batchfit_fit::GpuRun;

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
        assert_eq!(said, ["1.23 s", "0.61 s, 1.32 s", "0.50 s", "2"]);
    }
}
