//! From when to when each block of a recording was in use, and whose line asked for it.

use std::collections::HashMap;

use super::LineBytes;
use crate::alloc::{Address, Event};
use crate::replay::reading::recording::Recording;

/// Lines that are named at most; the rest is added up.
const LINES: usize = 12;

/// A block from its allocation to its free.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifetime {
    /// The entry that allocated it; nothing for what was there before.
    pub(super) born: Option<usize>,
    /// The entry that freed it; nothing where none did.
    pub(super) died: Option<usize>,
    pub(super) bytes: u64,
    pub(super) frame: Option<u32>,
}

impl Lifetime {
    /// Whether it is in use right after an entry.
    pub(super) fn is_alive_after(&self, entry: usize) -> bool {
        self.born.is_none_or(|born| born <= entry) && self.died.is_none_or(|died| died > entry)
    }
}

/// All blocks of a recording.
#[derive(Debug)]
pub(in crate::replay) struct Lifetimes<'r> {
    pub(super) recording: &'r Recording,
    /// In the order of their births.
    pub(super) all: Vec<Lifetime>,
    /// The entry after which most is in use.
    peak: usize,
}

impl<'r> Lifetimes<'r> {
    /// Follows a recording, which was checked.
    pub(in crate::replay) fn of(recording: &'r Recording) -> Lifetimes<'r> {
        let mut all = Vec::new();
        let mut at: HashMap<Address, usize> = HashMap::new();
        let mut used = 0_u64;
        for block in recording.initial.segments.iter().flat_map(|it| &it.used) {
            if block.is_pending {
                continue;
            }
            at.insert(block.address, all.len());
            used = used.saturating_add(block.size.0);
            all.push(Lifetime {
                born: None,
                died: None,
                bytes: block.size.0,
                frame: None,
            });
        }
        let (mut peak, mut most) = (0, used);
        for (index, entry) in recording.entries.iter().enumerate() {
            match entry.event {
                Event::Alloc {
                    address, requested, ..
                } => {
                    let bytes = recording.settings.round_size(requested).0;
                    at.insert(address, all.len());
                    all.push(Lifetime {
                        born: Some(index),
                        died: None,
                        bytes,
                        frame: entry.frame,
                    });
                    used = used.saturating_add(bytes);
                    if used > most {
                        (peak, most) = (index, used);
                    }
                }
                Event::FreeRequested { address, .. } => {
                    if let Some(life) = at.remove(&address) {
                        all[life].died = Some(index);
                        used = used.saturating_sub(all[life].bytes);
                    }
                }
                Event::FreeCompleted { .. } | Event::Segment(..) | Event::OutOfMemory { .. } => {}
            }
        }
        Lifetimes {
            recording,
            all,
            peak,
        }
    }

    /// Whether any line is known.
    pub(super) fn has_stacks(&self) -> bool {
        !self.recording.frames.is_empty()
    }

    /// A line by its number.
    pub(super) fn line(&self, frame: Option<u32>) -> Option<String> {
        let line = self.recording.frames.get(frame? as usize)?;
        Some(line.as_ref().to_owned())
    }

    /// What is in use after an entry.
    pub(super) fn used_after(&self, entry: usize) -> u64 {
        let alive = self.all.iter().filter(|life| life.is_alive_after(entry));
        alive.map(|life| life.bytes).sum()
    }

    /// The lines that hold most at the peak, and what others hold.
    pub(super) fn at_peak(&self) -> (Vec<LineBytes>, LineBytes) {
        let alive = self.all.iter();
        self.by_line(alive.filter(|life| life.is_alive_after(self.peak)))
    }

    /// Blocks by the line that asked for them.
    pub(super) fn by_line<'l>(
        &self,
        chosen: impl Iterator<Item = &'l Lifetime>,
    ) -> (Vec<LineBytes>, LineBytes) {
        let mut by_frame: HashMap<Option<u32>, (u64, u64)> = HashMap::new();
        for life in chosen {
            let (bytes, blocks) = by_frame.entry(life.frame).or_default();
            *bytes = bytes.saturating_add(life.bytes);
            *blocks += 1;
        }
        let mut lines: Vec<LineBytes> = by_frame
            .into_iter()
            .map(|(frame, (bytes, blocks))| LineBytes {
                line: self.line(frame),
                bytes,
                blocks,
            })
            .collect();
        crate::order::by(&mut lines, |a, b| {
            b.bytes.cmp(&a.bytes).then_with(|| a.line.cmp(&b.line))
        });
        let others = lines.split_off(lines.len().min(LINES));
        let others = LineBytes {
            line: None,
            bytes: others.iter().map(|line| line.bytes).sum(),
            blocks: others.iter().map(|line| line.blocks).sum(),
        };
        (lines, others)
    }
}
