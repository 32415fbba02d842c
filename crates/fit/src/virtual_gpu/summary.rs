//! From what a script's processes said to the answer.

use std::collections::{BTreeMap, BTreeSet};

use super::Ending;
use super::answer::{
    Answer, Assumption, Certainty, Convolutions, HostMemory, NamedCount, Peak, Phase, Shortage,
    UncomputedRead,
};
use super::events::{Process, RunEvents, SaidShortage};
use super::session::Session;
use crate::probe::Verdict;

/// The compute capability of the cards that runs were compared with, H100 and H200.
const COMPARED: (u32, u32) = (9, 0);

/// Growth below this is noise: a few counters and random states.
const LEAST_GROWTH: u64 = 1 << 20;

impl Answer {
    /// What came of it; `None` where nothing of the command ever used the GPU.
    ///
    /// `says_out_of_memory` is whether its output did.
    pub fn of(
        command: Vec<String>,
        session: &Session,
        heard: &RunEvents,
        ending: Ending,
        says_out_of_memory: bool,
    ) -> Option<Answer> {
        let is_used = |process: &&Process| process.start.is_some() || !process.driver.is_empty();
        let users: Vec<&Process> = heard.processes.iter().filter(is_used).collect();
        let mut peaks: Vec<Peak> = users.iter().flat_map(|process| peaks_of(process)).collect();
        crate::order::by_key(&mut peaks, |peak| (peak.rank, peak.device));
        // The first of equals: rank 0.
        let top = peaks
            .iter()
            .rev()
            .max_by_key(|peak| peak.peak_reserved_bytes);
        let main = match top {
            Some(top) => users.iter().find(|process| process.id == top.process),
            None => users.first(),
        }?;
        let device = top.map_or(0, |top| top.device);
        let phases = phases_of(main, device);
        let retries = main.phases.iter().flat_map(|phase| &phase.devices);
        let retries = retries.map(|(.., retries)| *retries).max().unwrap_or(0);
        let at_peak = main.peaks.iter().find(|peak| peak.device == device);
        let out_of_memory = shortage(&users, ending, says_out_of_memory);
        // What the script tried before the last error that it caught is not what it ran with in the end.
        let tried = main.shortage.as_ref().map_or(0, |last| last.retries);
        let verdict = match ending {
            _ if out_of_memory.as_ref().is_some_and(|it| it.is_fatal) => Verdict::OutOfMemory,
            Ending::Exit(0) if retries > tried => Verdict::FitsWithRetries,
            Ending::Exit(0) => Verdict::Fits,
            _ => Verdict::Failed,
        };
        let peak_allocated = top.and_then(|top| top.peak_allocated_bytes);
        let peak_reserved = top.map_or(0, |top| top.peak_reserved_bytes);
        if peak_reserved == 0 && ending == Ending::Exit(0) {
            return None;
        }
        let refused = users.iter().any(|process| process.host_refused.is_some());
        let convolutions = convolutions(heard);
        Some(Answer {
            command,
            card: session.card.name,
            gpus: session.gpus,
            evidence: "virtual",
            verdict,
            exit_code: match ending {
                Ending::Exit(code) => Some(code),
                _ => None,
            },
            signal: match ending {
                Ending::Signal(signal) => Some(signal),
                _ => None,
            },
            is_incomplete: matches!(
                ending,
                Ending::TookTooLong | Ending::TookTooMuch | Ending::Interrupted
            ),
            steps: main.steps,
            limit_bytes: session.limit_bytes(main.fraction).0,
            memory_fraction: main.fraction,
            peak_allocated_bytes: peak_allocated,
            peak_reserved_bytes: peak_reserved,
            fragmentation_bytes: peak_allocated.map(|peak| peak_reserved.saturating_sub(peak)),
            retries,
            growth_bytes_per_step: growth(&phases),
            at_peak: at_peak.map(|said| said.at.clone()),
            phases,
            out_of_memory,
            host: HostMemory {
                peak_bytes: users.iter().map(|it| it.host_peak).max().unwrap_or(0),
                limit_bytes: session.host_memory.0,
                was_refused: refused,
            },
            certainty: certainty(session, heard, &convolutions),
            doubts: listed(&heard.doubts, |line, (times, bytes)| UncomputedRead {
                line,
                times: *times,
                bytes: *bytes,
            }),
            assumptions: listed(&heard.assumptions, |what, (times, other_bound)| {
                Assumption {
                    what,
                    times: *times,
                    other_bound: other_bound.clone(),
                }
            }),
            unanswered: listed(&heard.unanswered, |what, times| NamedCount {
                what,
                times: *times,
            }),
            convolutions,
            versions: main.start.clone(),
            findings: None,
            notes: notes(session, ending, heard, &users, main),
            peaks,
        })
    }

    /// The process and the device whose figures stand for all.
    pub fn main(&self) -> Option<&Peak> {
        let mut peaks = self.peaks.iter();
        peaks.find(|peak| peak.peak_reserved_bytes == self.peak_reserved_bytes)
    }
}

/// How sure the peak is, by what was not computed, answered or known of the card.
fn certainty(session: &Session, heard: &RunEvents, convolutions: &Convolutions) -> Certainty {
    if !heard.doubts.is_empty() || !heard.problems.is_empty() {
        Certainty::Doubtful
    } else if !heard.unanswered.is_empty()
        || convolutions.asked + convolutions.estimated > 0
        || session.card.capability.compute != COMPARED
    {
        Certainty::Estimated
    } else if heard.assumptions.is_empty() {
        Certainty::Exact
    } else {
        Certainty::Chosen
    }
}

/// What was counted by its name, each as the answer has it.
fn listed<T, R>(counted: &BTreeMap<String, T>, made: impl Fn(String, &T) -> R) -> Vec<R> {
    let all = counted.iter();
    all.map(|(name, seen)| made(name.clone(), seen)).collect()
}

/// By PyTorch's own count where there is one, else by the driver's.
fn peaks_of(process: &Process) -> Vec<Peak> {
    let mut found: BTreeMap<u32, (Option<u64>, u64)> = BTreeMap::new();
    for (device, allocated, reserved, ..) in process.phases.iter().flat_map(|it| &it.devices) {
        let peak = found.entry(*device).or_default();
        *peak = (peak.0.max(Some(*allocated)), peak.1.max(*reserved));
    }
    for (device, driver) in &process.driver {
        let peak = found.entry(*device).or_default();
        // A script that was ended did not report its last phase.
        peak.1 = peak.1.max(driver.peak);
    }
    let used = found.into_iter().filter(|(_, (_, reserved))| *reserved > 0);
    let peak = |(device, (allocated, reserved))| Peak {
        rank: process.rank,
        process: process.id,
        device,
        peak_allocated_bytes: allocated,
        peak_reserved_bytes: reserved,
    };
    used.map(peak).collect()
}

fn phases_of(process: &Process, device: u32) -> Vec<Phase> {
    let of_device = |phase: &super::events::SaidPhase| {
        let mut devices = phase.devices.iter();
        let (_, allocated, reserved, allocated_after, reserved_after, _) =
            *devices.find(|(number, ..)| *number == device)?;
        Some(Phase {
            name: phase.name.clone(),
            peak_allocated_bytes: allocated,
            peak_reserved_bytes: reserved,
            allocated_bytes: allocated_after,
            reserved_bytes: reserved_after,
        })
    };
    process.phases.iter().filter_map(of_device).collect()
}

/// Whether it is a step that was finished.
fn is_step(phase: &Phase) -> bool {
    let number = phase.name.strip_prefix("step ");
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// What each step leaves behind more than the one before it. The first makes the optimizer's state.
fn growth(phases: &[Phase]) -> Option<u64> {
    let left: Vec<u64> = phases
        .iter()
        .filter(|phase| is_step(phase))
        .map(|it| it.allocated_bytes)
        .collect();
    let left = left.get(1..)?;
    let (first, last) = (left.first()?, left.last()?);
    let grows = left.len() > 2 && left.windows(2).all(|pair| pair[0] < pair[1]);
    let each = last.saturating_sub(*first) / (left.len() as u64 - 1).max(1);
    (grows && each >= LEAST_GROWTH).then_some(each)
}

/// The refusal that ended the script, or the last that it went on after.
fn shortage(users: &[&Process], ending: Ending, says_so: bool) -> Option<Shortage> {
    let of_error = users
        .iter()
        .find(|it| it.error.as_ref().is_some_and(|error| error.out_of_memory));
    let has_shortage = |process: &&&Process| {
        process.shortages > 0
            || process
                .driver
                .values()
                .any(|driver| driver.refused.is_some())
    };
    let process = of_error.or_else(|| users.iter().find(has_shortage));
    let other_error = users
        .iter()
        .any(|it| it.error.as_ref().is_some_and(|error| !error.out_of_memory));
    let has_failed = !matches!(ending, Ending::Exit(0) | Ending::Interrupted);
    // A shell that starts several at once may end well where one of them did not; and a script that catches each error and never trains.
    let is_crowded = |it: &&Process| it.driver.values().any(|driver| driver.others() > 0);
    let is_idle = |it: &&Process| it.steps == 0 && (it.is_stuck || it.driver.is_empty());
    let has_ended_so =
        |it: &&Process| it.steps == 0 || it.error.as_ref().is_some_and(|error| error.out_of_memory);
    let is_fatal = has_failed && (of_error.is_some() || says_so && !other_error)
        || of_error.is_some_and(is_crowded)
        || ending == Ending::Exit(0) && process.is_some() && users.iter().all(is_idle)
        // `python train.py | tee log`; who starts a process with a smaller batch after it goes on.
        || ending == Ending::Exit(0) && of_error.is_some() && users.iter().all(has_ended_so);
    let Some(process) = process else {
        return is_fatal.then(|| Shortage::of(None, None, is_fatal));
    };
    let message = process.error.as_ref().filter(|error| error.out_of_memory);
    let message = message.map(|error| format!("{}: {}", error.kind, error.message));
    let mut shortage = Shortage::of(process.shortage.as_ref(), message, is_fatal);
    shortage.times = process.shortages;
    shortage.rank = process.rank;
    // Of the device that PyTorch said, where it did.
    let mut refused = process
        .driver
        .iter()
        .filter(|(device, _)| shortage.device.is_none_or(|said| said == **device))
        .filter_map(|(device, driver)| Some((*device, driver.refused?)));
    if let Some((device, refused)) = refused.next() {
        if shortage.requested_bytes.is_none() {
            shortage.requested_bytes = Some(refused.requested);
            shortage.reserved_bytes = Some(refused.used);
        }
        shortage.device = Some(device);
        shortage.others_bytes = Some(refused.others).filter(|bytes| *bytes > 0);
    }
    Some(shortage).filter(|it| it.times > 0 || it.is_fatal)
}

impl Shortage {
    fn of(said: Option<&SaidShortage>, message: Option<String>, is_fatal: bool) -> Shortage {
        Shortage {
            times: 0,
            is_fatal,
            rank: None,
            device: said.map(|it| it.device),
            others_bytes: None,
            phase: said.map(|it| it.phase.clone()),
            requested_bytes: said.map(|it| it.requested),
            allocated_bytes: said.map(|it| it.allocated),
            reserved_bytes: said.map(|it| it.reserved),
            stack: said.map_or_else(Vec::new, |it| it.stack.clone()),
            module: said.and_then(|it| it.module.clone()),
            message,
        }
    }
}

fn convolutions(heard: &RunEvents) -> Convolutions {
    let count = |how: &str| heard.convolutions.get(how).copied().unwrap_or(0);
    Convolutions {
        recorded: count("recorded") + count("interpolated"),
        asked: count("asked"),
        estimated: count("estimated") + count("none"),
    }
}

/// Ranks that hold most of what they hold, or asked for it in vain, on the same device.
fn ranks_on_one_device(users: &[&Process]) -> Option<String> {
    let mut ranks: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for process in users {
        let peaks = peaks_of(process);
        let top = peaks.iter().max_by_key(|peak| peak.peak_reserved_bytes);
        let asked = process.shortage.as_ref().map(|shortage| shortage.device);
        if let (Some(rank), Some(device)) = (process.rank, top.map(|top| top.device).or(asked)) {
            ranks.entry(device).or_default().insert(rank);
        }
    }
    let (device, ranks) = ranks.into_iter().find(|(_, ranks)| ranks.len() > 1)?;
    let names: Vec<String> = ranks.iter().map(u64::to_string).collect();
    Some(format!(
        "ranks {} are all on device {device}, which NCCL refuses: each needs a card of its own, as \
         `torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))` gives it",
        names.join(", ")
    ))
}

fn notes(
    session: &Session,
    ending: Ending,
    heard: &RunEvents,
    users: &[&Process],
    main: &Process,
) -> Vec<String> {
    let mut notes = Vec::new();
    if ending == Ending::TookTooMuch {
        notes.push(session.too_much_host_memory());
    }
    if main.is_cut {
        let s = if main.steps == 1 { "" } else { "s" };
        notes.push(format!(
            "stopped after {} optimizer step{s}; `--steps 0` runs all of it",
            main.steps
        ));
    }
    let ranks = users.iter().filter_map(|process| process.rank).max();
    if session.gpus > 1 && ranks.is_none_or(|last| last == 0) {
        notes.push(format!(
            "rank 0 of {}: every other rank is taken to be like it",
            session.gpus
        ));
    }
    notes.extend(ranks_on_one_device(users));
    if let Some(error) = main.error.as_ref().filter(|error| !error.out_of_memory) {
        notes.push(format!(
            "it ended by an error of its own: {}: {}",
            error.kind, error.message
        ));
    }
    if let Some((asked, used, most)) = users.iter().find_map(|process| process.host_refused) {
        let bytes = crate::units::Bytes;
        notes.push(format!(
            "{} of pinned or managed memory were refused where {} were used: --host-memory gives it more than {}",
            bytes(asked),
            bytes(used),
            bytes(most)
        ));
    }
    if main.start.is_none() {
        notes.push("no steps and phases are known: it was not PyTorch that used the GPU, or it was ended before".to_owned());
    } else if main.steps == 0 && main.error.is_none() {
        notes.push("no optimizer of PyTorch made a step".to_owned());
    }
    notes.extend(heard.problems.keys().cloned());
    notes.extend(session.card.notes());
    notes
}
