//! What is wrong, what shows it, and what to change.

use super::lifetimes::Lifetimes;
use super::rounds::Iterations;
use super::{Finding, Findings, GrowthReport};
use crate::alloc::{Event, SegmentAction};
use crate::units::Bytes;

/// Of what is reserved, this part has to lie free at the peak, and to be saved by other settings, before fragmentation is named
/// where memory did not run out: one in so many.
const SHARE_FREE: u64 = 6;
/// A number on its own: the smallest block.
const ONE_NUMBER: u64 = 512;
/// A graph keeps at least so many blocks of a round, of several lines; outputs that are kept are of one line.
const BLOCKS_OF_A_GRAPH: u64 = 4;

/// What the replay found of memory.
#[derive(Debug, Clone)]
pub(in crate::replay) struct Memory {
    /// What might be reserved, where it is known.
    pub(in crate::replay) limit: Option<Bytes>,
    /// Most that was reserved.
    pub(in crate::replay) reserved: Bytes,
    /// What was allocated when most was reserved, for the first time.
    pub(in crate::replay) allocated_then: Bytes,
    /// The free pieces then, and the largest of them.
    pub(in crate::replay) free_pieces: (u64, Bytes),
    /// Times the cache was given back.
    pub(in crate::replay) retries: u64,
    /// Requests that were refused when they were recorded, and granted under the limit that was asked about.
    pub(in crate::replay) granted: u64,
}

impl Memory {
    /// What lay free when most was reserved.
    fn free(&self) -> Bytes {
        self.reserved.saturating_sub(self.allocated_then)
    }
}

/// What a recording says; `expandable` tells what would be reserved with expandable segments under a
/// limit, if all requests were granted, and is asked at most once.
pub(in crate::replay) fn find(
    lives: &Lifetimes<'_>,
    memory: &Memory,
    expandable: impl FnOnce(Option<Bytes>) -> Option<Bytes>,
) -> Findings {
    let rounds = Iterations::of(lives);
    let growth = rounds.as_ref().and_then(|rounds| rounds.growth(lives));
    let (at_peak, others_at_peak) = lives.at_peak();
    let mut findings = Findings {
        finding: Finding::NothingWrong,
        evidence: Vec::new(),
        advice: None,
        has_stacks: lives.has_stacks(),
        round_begins: rounds
            .as_ref()
            .and_then(|rounds| lives.line(Some(rounds.frame))),
        rounds: rounds
            .as_ref()
            .map_or(0, |rounds| rounds.begin.len() as u64),
        at_peak,
        others_at_peak,
        growth,
    };
    let refused = Refused::last(lives);
    // A limit that grants what was refused is not the one of the run.
    let limit = memory.limit.filter(|_| memory.granted == 0);
    let room = refused
        .as_ref()
        .and_then(Refused::share)
        .or(limit)
        .unwrap_or(memory.reserved);
    if let Some(growth) = findings.growth.clone() {
        let without = |refused: &Refused| refused.needed().0.saturating_sub(growth.kept_bytes);
        if refused.as_ref().is_none_or(|it| without(it) <= room.0) {
            grows(&mut findings, &growth);
            findings
                .evidence
                .extend(refused.as_ref().map(Refused::text));
            return findings;
        }
    }
    if let Some(refused) = &refused
        && let Some(evidence) = refused.is_held_by_others(memory)
    {
        findings.finding = Finding::AnotherProcess;
        findings.evidence = vec![refused.text(), evidence];
        findings.advice = Some(
            "see with nvidia-smi who else is on the GPU, and what of this process is not PyTorch's, such as another library"
                .to_owned(),
        );
        return findings;
    }
    let is_much = |bytes: Bytes| SHARE_FREE * bytes.0 >= memory.reserved.0;
    let would_fit = refused.as_ref().is_some_and(|it| it.needed() <= room);
    let lies_idle = is_much(match &refused {
        Some(refused) => refused.idle(),
        None => memory.free(),
    });
    let is_worth_asking = would_fit || (refused.is_none() && lies_idle);
    let limit = refused.as_ref().map(|_| room);
    let with_expandable = is_worth_asking.then(|| expandable(limit)).flatten();
    let is_fragmented = match (&refused, with_expandable) {
        // Where little lies idle and expandable segments do not serve either, a smaller batch does.
        (Some(_), Some(_)) => would_fit,
        (Some(_), None) => would_fit && lies_idle,
        (None, Some(with)) => lies_idle && is_much(memory.reserved.saturating_sub(with)),
        (None, None) => false,
    };
    if is_fragmented {
        fragmented(&mut findings, refused.as_ref(), memory, with_expandable);
    } else if let Some(refused) = &refused {
        too_large(&mut findings, refused, memory, room);
    }
    findings
}

fn fragmented(
    findings: &mut Findings,
    refused: Option<&Refused>,
    memory: &Memory,
    with_expandable: Option<Bytes>,
) {
    findings.finding = Finding::Fragmentation;
    findings.evidence.extend(refused.map(Refused::text));
    let (pieces, largest) = memory.free_pieces;
    findings.evidence.push(format!(
        "of {} reserved at the peak, {} lay free in {}, the largest of them {largest}; the cache was given back {}",
        memory.reserved,
        memory.free(),
        counted(pieces, "piece"),
        counted(memory.retries, "time")
    ));
    findings.advice = Some(match with_expandable {
        Some(with) if with <= memory.reserved => format!(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, under which the same requests reserve {with}"
        ),
        Some(_) | None => "make batches alike in size, such as by padding to a few lengths; `--compare` tries other \
                           settings of the allocator"
            .to_owned(),
    });
}

fn too_large(findings: &mut Findings, refused: &Refused, memory: &Memory, room: Bytes) {
    findings.finding = Finding::BatchTooLarge;
    let largest = findings.at_peak.iter().find(|line| line.line.is_some());
    let holder = largest.map(|line| {
        let name = line.line.as_deref().unwrap_or_default();
        let blocks = counted(line.blocks, "block");
        format!(
            "{name} holds most at the peak: {} in {blocks}",
            Bytes(line.bytes)
        )
    });
    findings.evidence = vec![refused.text()];
    findings.evidence.extend(holder);
    findings.evidence.push(if refused.needed() > room {
        format!("what was allocated and asked for is more than the {room} that could be reserved")
    } else {
        format!(
            "of {} reserved, {} lay free, in pieces that did not serve; expandable segments would not have been enough",
            refused.reserved,
            refused.idle()
        )
    });
    let smaller = "a smaller batch with gradient accumulation (`batchfit fit` finds both), checkpointing, or a narrower type";
    let is_own = refused.is_of_own_limit();
    if let Some(free) = refused.device_free {
        findings.evidence.push(match refused.share() {
            Some(share) => format!(
                "the GPU had {free} free, so that PyTorch could have {share} of it; if it has much more, something else holds \
                 the rest (--memory-limit with what it has tells)"
            ),
            None => format!("the GPU had {free} free: a limit that the run set itself refused, not the GPU"),
        });
    }
    findings.advice = Some(if is_own {
        format!(
            "{smaller}; or a higher limit for the run (torch.cuda.set_per_process_memory_fraction)"
        )
    } else {
        smaller.to_owned()
    });
    if memory.granted > 0 && is_own {
        findings
            .evidence
            .push("under the limit asked about, the same request is granted".to_owned());
    }
    if let Some(growth) = &findings.growth {
        findings.evidence.push(format!(
            "what grows from round to round holds {} of it, which is too little to matter here",
            Bytes(growth.kept_bytes)
        ));
    }
}

fn grows(findings: &mut Findings, growth: &GrowthReport) {
    findings.finding = Finding::Growth;
    let round = match &findings.round_begins {
        Some(line) => format!("that {line} comes around"),
        None => "round".to_owned(),
    };
    let when = match growth.every_rounds {
        1 => format!("each time {round}"),
        rounds => format!("once in {rounds} times {round}"),
    };
    findings.evidence.push(format!(
        "{} more are allocated {when}, {} after each other; {} at the end",
        Bytes(growth.bytes_each_time),
        counted(growth.times, "time"),
        Bytes(growth.kept_bytes)
    ));
    for line in growth.lines.iter().take(3) {
        let name = line
            .line
            .as_deref()
            .unwrap_or("no line of Python (autograd)");
        findings.evidence.push(format!(
            "{name} made {} of them each time, {} together",
            counted(line.blocks, "block"),
            Bytes(line.bytes)
        ));
    }
    let line = growth.lines.iter().find_map(|line| line.line.as_deref());
    let line = line.map_or_else(String::new, |line| format!(" made at {line}"));
    let blocks: u64 = growth.lines.iter().map(|line| line.blocks).sum();
    findings.advice = Some(
        if growth.bytes_each_time <= blocks * ONE_NUMBER && blocks < BLOCKS_OF_A_GRAPH {
            format!(
                "something keeps a number of each round as a tensor{line}: keep `loss.item()` in its place"
            )
        } else if blocks >= BLOCKS_OF_A_GRAPH && growth.lines.len() > 1 {
            format!(
                "something keeps the graph of each round{line}: sum or collect `loss.detach()`, not `loss`, leave out \
                 `retain_graph=True`, and evaluate under `torch.no_grad()`"
            )
        } else {
            format!(
                "something, such as a list or a hook, keeps what is{line}: clear it after each round, or keep \
                 `output.detach().cpu()`"
            )
        },
    );
}

fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// A request that ended the recording.
struct Refused {
    asked: Bytes,
    /// What the driver would have been asked for.
    segment: Bytes,
    allocated: Bytes,
    /// What was reserved, after the cache was given back.
    reserved: Bytes,
    /// What the whole device had free, where it was noted.
    device_free: Option<Bytes>,
    line: Option<String>,
}

impl Refused {
    /// The refusal that ends a recording, if one does.
    fn last(lives: &Lifetimes<'_>) -> Option<Refused> {
        let recording = lives.recording;
        if !recording.ends_out_of_memory() {
            return None;
        }
        let refused = recording.entries.iter().enumerate().rev();
        let (index, entry, asked) = refused.into_iter().find_map(|(index, entry)| {
            let Event::OutOfMemory { rounded } = entry.event else {
                return None;
            };
            Some((index, entry, rounded))
        })?;
        let mut reserved = recording.initial.reserved();
        for entry in &recording.entries[..index] {
            match entry.event {
                Event::Segment(SegmentAction::Alloc | SegmentAction::Map, _, size) => {
                    reserved = Bytes(reserved.0.saturating_add(size.0));
                }
                Event::Segment(SegmentAction::Free | SegmentAction::Unmap, _, size) => {
                    reserved = reserved.saturating_sub(size);
                }
                Event::Alloc { .. }
                | Event::FreeRequested { .. }
                | Event::FreeCompleted { .. }
                | Event::OutOfMemory { .. } => {}
            }
        }
        Some(Refused {
            asked,
            segment: recording.settings.segment_size(asked),
            allocated: Bytes(lives.used_after(index)),
            reserved,
            device_free: recording.device_free,
            line: lives.line(entry.frame),
        })
    }

    /// What would have been allocated.
    fn needed(&self) -> Bytes {
        Bytes(self.allocated.0.saturating_add(self.asked.0))
    }

    /// What lay free of what was reserved.
    fn idle(&self) -> Bytes {
        self.reserved.saturating_sub(self.allocated)
    }

    /// Whether the device had room, so that a limit of the run itself refused.
    fn is_of_own_limit(&self) -> bool {
        self.device_free.is_some_and(|free| free >= self.segment)
    }

    /// What PyTorch could have of the device, where that was what refused.
    fn share(&self) -> Option<Bytes> {
        let free = self.device_free.filter(|_| !self.is_of_own_limit())?;
        Some(Bytes(self.reserved.0.saturating_add(free.0)))
    }

    /// What shows that something outside of PyTorch's allocator holds what was asked for, if anything does: the limit has room for it, or
    /// PyTorch had it before.
    fn is_held_by_others(&self, memory: &Memory) -> Option<String> {
        if self.is_of_own_limit() {
            return None;
        }
        let share = self.share();
        if let (Some(share), true) = (share, self.needed() <= memory.reserved)
            && share < self.needed()
        {
            let lost = memory.reserved.saturating_sub(share);
            return Some(format!(
                "PyTorch held {} of the GPU before, and could have {share} of it then: something else took {lost} meanwhile",
                memory.reserved
            ));
        }
        let limit = memory.limit.filter(|_| memory.granted > 0)?;
        Some(match share {
            Some(share) => format!(
                "PyTorch could have {share} of the GPU then, {} less than the {limit} asked about, under which the same \
                 request is granted",
                limit.saturating_sub(share)
            ),
            None => format!(
                "PyTorch held at most {} of the {limit} asked about, and under that limit the same request is granted",
                memory.reserved
            ),
        })
    }

    fn text(&self) -> String {
        let place = match &self.line {
            Some(line) => format!(" at {line}"),
            None => String::new(),
        };
        format!(
            "memory ran out{place}: {} were asked for where {} were allocated",
            self.asked, self.allocated
        )
    }
}
