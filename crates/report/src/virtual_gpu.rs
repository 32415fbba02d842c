//! What came of a script on a virtual GPU.

use super::probe::verdict;
use super::replay::findings;
use super::style::{Style, facts, harmless, lines, notes, or_dash, paragraph, sized};
use batchfit_card::probe::Verdict;
use batchfit_card::replay::{Finding, Findings};
use batchfit_fit::virtual_gpu::{Answer, Certainty, Phase, Shortage, UncomputedRead, Versions};
use batchfit_step::units::Bytes;

/// Phases that are shown: at the beginning, and the last.
const FIRST: usize = 6;
const LAST: usize = 2;

/// Names of one kind that are shown; the document has all.
const SHOWN: usize = 5;

/// Writes the verdict, the peaks, the phases, why memory ran out, and how much was guessed.
pub fn virtual_gpu(answer: &Answer, style: &Style) -> String {
    let (command, what) = headline(answer);
    let said = format!("`{command}` {what}");
    let mut out = style.strong(&paragraph("", &said, style.width));
    out += &details(answer, style);
    out
}

/// All but the verdict.
fn details(answer: &Answer, style: &Style) -> String {
    let mut out = String::new();
    if let Some(shortage) = &answer.out_of_memory {
        out += &shortage_text(shortage, answer.peaks.len() > 1, style);
    }
    out += "\n";
    out += &facts(&figures(answer), style);
    if answer.peaks.len() > 1 {
        out += "\nRanks and devices\n";
        out += &peaks(answer, style);
    }
    if !answer.phases.is_empty() {
        out += "\nPhases\n";
        out += &phases(answer, style);
    }
    let is_fatal = |shortage: &Shortage| shortage.is_fatal;
    if let Some(peak) = &answer.at_peak
        && !answer.out_of_memory.as_ref().is_some_and(is_fatal)
    {
        let attempts = match &answer.out_of_memory {
            Some(shortage) if shortage.phase.as_ref() == Some(&peak.phase) => {
                ", with the attempts that ran out of memory"
            }
            _ => "",
        };
        let said = format!("Most is allocated in {}{attempts}.", peak.phase);
        out += "\n";
        out += &paragraph("", &said, style.width);
        out += &asked_by(peak.module.as_deref(), &peak.stack, style);
    }
    // Nothing is to be done about pieces of a card that is nearly empty.
    let is_near = answer.retries > 0 || answer.peak_reserved_bytes > answer.limit_bytes / 10;
    let matters = |found: &&Findings| is_near || found.finding != Finding::Fragmentation;
    if let Some(found) = answer.findings.as_ref().filter(matters) {
        out += "\n";
        out += &findings(found, style);
    }
    let guessed = guesses(answer, style);
    out += "\n";
    out += &guessed;
    out + &notes(&answer.notes, style)
}

/// The same for an issue or a wiki.
pub fn virtual_gpu_markdown(answer: &Answer) -> String {
    let (command, what) = headline(answer);
    // Its own backticks would end the code that it is, and its lines the heading.
    let command = harmless(&command.replace('`', "'"));
    let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
    let details = details(answer, &Style::default());
    format!(
        "# `{command}` {what}\n\n```text\n{}\n```\n",
        details.trim_matches('\n').replace("```", "'''")
    )
}

/// The command, and what came of it.
fn headline(answer: &Answer) -> (String, String) {
    let command = answer.command.join(" ");
    let cards = match answer.gpus {
        1 => answer.card.to_owned(),
        gpus => format!("{gpus}x{}", answer.card),
    };
    let what = match (answer.verdict, answer.exit_code, answer.signal) {
        (Verdict::Failed, _, _) if answer.is_incomplete => {
            "was ended before it came to its end".to_owned()
        }
        (Verdict::Failed, Some(code), _) => {
            format!("failed for reasons of its own, with exit code {code}; what it took until then")
        }
        (Verdict::Failed, _, Some(signal)) => {
            format!("failed for reasons of its own, by signal {signal}; what it took until then")
        }
        (other, ..) => verdict(other).to_owned(),
    };
    (command, format!("{what} on {cards} (virtual)."))
}

fn shortage_text(shortage: &Shortage, is_one_of_several: bool, style: &Style) -> String {
    let mut out = String::new();
    if let Some(requested) = shortage.requested_bytes {
        let bytes = |bytes: Option<u64>| Bytes(bytes.unwrap_or(0)).to_string();
        let held = match shortage.allocated_bytes {
            Some(_) => format!(
                "{} are allocated and {} reserved",
                bytes(shortage.allocated_bytes),
                bytes(shortage.reserved_bytes)
            ),
            None => format!("{} are used", bytes(shortage.reserved_bytes)),
        };
        let phase = shortage
            .phase
            .as_ref()
            .map_or_else(String::new, |phase| format!("In {phase} "));
        let rank = shortage.rank.filter(|_| is_one_of_several);
        let rank = rank.map_or_else(String::new, |rank| format!("Rank {rank}: "));
        let asked = format!(
            "{rank}{phase}{} are asked for where {held}.",
            Bytes(requested)
        );
        out += &paragraph("", &asked, style.width);
        if let (Some(device), Some(others)) = (shortage.device, shortage.others_bytes) {
            let said = format!(
                "Other processes of the command held {} of device {device} then, with their CUDA contexts.",
                Bytes(others)
            );
            out += &paragraph("", &said, style.width);
        }
    }
    if !shortage.is_fatal {
        let s = if shortage.times == 1 { "" } else { "s" };
        out += &paragraph(
            "",
            &format!(
                "The script caught {} error{s} of this kind and went on.",
                shortage.times
            ),
            style.width,
        );
    }
    out += &asked_by(shortage.module.as_deref(), &shortage.stack, style);
    if let Some(message) = &shortage.message {
        out += &paragraph("", message, style.width);
    }
    out
}

/// The module and the lines of the script that asked for memory.
fn asked_by(module: Option<&str>, stack: &[String], style: &Style) -> String {
    let module = module.map(|module| paragraph("module    ", module, style.width));
    let mut out = module.unwrap_or_default();
    for (index, line) in stack.iter().enumerate() {
        let first = if index == 0 {
            "asked by  "
        } else {
            "from      "
        };
        out += &paragraph(first, line, style.width);
    }
    out
}

fn figures(answer: &Answer) -> Vec<(&'static str, String)> {
    let allocated = answer.peak_allocated_bytes;
    let mut figures = vec![
        (
            "peak allocated",
            allocated.map_or_else(|| "not known".to_owned(), |bytes| Bytes(bytes).to_string()),
        ),
        sized("peak reserved", answer.peak_reserved_bytes),
        ("limit", limit(answer)),
    ];
    if let Some(bytes) = answer.fragmentation_bytes {
        figures.push(sized("reserved and unused", bytes));
    }
    figures.push(("steps", answer.steps.to_string()));
    figures.push(("retries", answer.retries.to_string()));
    if let Some(bytes) = answer.growth_bytes_per_step {
        figures.push(sized("grows in each step by", bytes));
    }
    if answer.host.peak_bytes >= Bytes::MIB.0 {
        figures.push(sized("pinned and managed", answer.host.peak_bytes));
    }
    if let Some(versions) = &answer.versions {
        figures.push(("program", program(versions)));
    }
    figures
}

fn limit(answer: &Answer) -> String {
    let bytes = Bytes(answer.limit_bytes);
    match answer.memory_fraction {
        Some(share) => format!(
            "{bytes}: the script takes {share} of the card, by set_per_process_memory_fraction"
        ),
        None => bytes.to_string(),
    }
}

fn program(versions: &Versions) -> String {
    let mut parts = vec![
        format!("PyTorch {}", versions.torch),
        format!("CUDA {}", versions.cuda),
    ];
    // As cuDNN writes it: 91900 is 9.19.0.
    parts.extend(
        versions
            .cudnn
            .map(|it| format!("cuDNN {}.{}.{}", it / 10_000, it / 100 % 100, it % 100)),
    );
    parts.extend(
        versions
            .modules
            .iter()
            .map(|(name, version)| format!("{name} {version}")),
    );
    parts.push(format!("Python {}", versions.python));
    if !versions.allocator.is_empty() {
        parts.push(versions.allocator.clone());
    }
    parts.join(", ")
}

fn phases(answer: &Answer, style: &Style) -> String {
    let all = &answer.phases;
    let allocated = |phase: &Phase| phase.peak_allocated_bytes;
    let most = all.iter().map(allocated).max();
    let top = all.iter().position(|phase| Some(allocated(phase)) == most);
    let is_shown = |index: usize| {
        style.verbose || index < FIRST || index + LAST >= all.len() || Some(index) == top
    };
    let mut rows: Vec<(String, Option<&Phase>)> = Vec::new();
    let mut hidden = 0;
    for (index, phase) in all.iter().enumerate() {
        if !is_shown(index) {
            hidden += 1;
            continue;
        }
        if hidden > 0 {
            rows.push((format!("({hidden} more)"), None));
            hidden = 0;
        }
        rows.push((phase.name.clone(), Some(phase)));
    }
    let size = |bytes: fn(&Phase) -> u64| {
        move |(_, phase): &(String, Option<&Phase>)| {
            phase.map_or_else(String::new, |phase| Bytes(bytes(phase)).to_string())
        }
    };
    lines(&rows, style)
        .words("phase", |(name, _)| name.clone())
        .number("peak allocated", size(|phase| phase.peak_allocated_bytes))
        .number("peak reserved", size(|phase| phase.peak_reserved_bytes))
        .number("left after", size(|phase| phase.allocated_bytes))
        .text()
}

fn peaks(answer: &Answer, style: &Style) -> String {
    lines(&answer.peaks, style)
        .number("rank", |peak| or_dash(peak.rank))
        .number("device", |peak| peak.device.to_string())
        .number("peak allocated", |peak| {
            or_dash(peak.peak_allocated_bytes.map(Bytes))
        })
        .size("peak reserved", |peak| peak.peak_reserved_bytes)
        .text()
}

fn guesses(answer: &Answer, style: &Style) -> String {
    let how = match answer.certainty {
        Certainty::Exact => {
            "nothing was guessed: as a real run, to the byte where its allocations come in the same order"
        }
        Certainty::Chosen => "some numbers were chosen: as a real run that chose so",
        Certainty::Estimated => "some sizes were not measured on such a card",
        Certainty::Doubtful => "the script may go another way on a card",
    };
    let mut out = paragraph("certainty: ", how, style.width);
    let doubt = |doubt: &UncomputedRead| {
        format!(
            "{} reads what was never computed, {}",
            doubt.line,
            times(doubt.times)
        )
    };
    out += &listed(
        "doubt: ",
        &answer.doubts.iter().map(doubt).collect::<Vec<_>>(),
        style,
    );
    // First those with another bound: they decide sizes.
    let mut assumptions: Vec<_> = answer.assumptions.iter().collect();
    assumptions.sort_by_key(|one| one.other_bound.is_none());
    let said = assumptions.into_iter().map(|one| {
        let said = format!("{} ({})", one.what, times(one.times));
        match &one.other_bound {
            Some(setting) => format!("{said}; {setting} gives the other bound"),
            None => said,
        }
    });
    out += &listed("assumption: ", &said.collect::<Vec<_>>(), style);
    let unanswered: Vec<&str> = answer
        .unanswered
        .iter()
        .map(|one| one.what.as_str())
        .collect();
    if !unanswered.is_empty() {
        let shown = &unanswered[..unanswered.len().min(SHOWN)];
        let more = if unanswered.len() > SHOWN {
            ", ..."
        } else {
            ""
        };
        let said = format!("no real answer of {}{more}", shown.join(", "));
        out += &paragraph("unanswered: ", &said, style.width);
    }
    let convolutions = answer.convolutions;
    if convolutions.asked + convolutions.estimated > 0 {
        let parts = [
            (convolutions.recorded, "recorded on a card"),
            (convolutions.asked, "as cuDNN says without it"),
            (convolutions.estimated, "estimated"),
        ];
        let said = parts.map(|(calls, how)| (calls > 0).then(|| format!("{calls} {how}")));
        let said = said.into_iter().flatten().collect::<Vec<_>>().join(", ");
        out += &paragraph("workspaces of convolutions: ", &said, style.width);
    }
    out
}

fn times(times: u64) -> String {
    match times {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    }
}

fn listed(first: &str, lines: &[String], style: &Style) -> String {
    let shown = if style.verbose { lines.len() } else { SHOWN };
    let mut out: String = lines
        .iter()
        .take(shown)
        .map(|line| paragraph(first, line, style.width))
        .collect();
    if lines.len() > shown {
        out += &paragraph(
            first,
            &format!("{} more; --json lists them", lines.len() - shown),
            style.width,
        );
    }
    out
}
