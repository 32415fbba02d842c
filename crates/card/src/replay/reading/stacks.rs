//! What a snapshot says beside the events themselves: whose line of Python each is of, and what the device had free.

use std::collections::HashMap;
use std::sync::Arc;

use super::pickle::{Value, ValueId};
use super::snapshot::{Members, Reader};
use crate::limits::shorten;
use crate::units::Bytes;

/// How far a stack is followed, in frames: those of C++ come first.
const DEEPEST_STACK: usize = 256;

/// Most lines of Python that are kept of a recording.
const MOST_FRAMES: usize = 1 << 16;

/// Lines of Python, each once.
#[derive(Default)]
pub(super) struct Frames {
    pub(super) lines: Vec<Arc<str>>,
    by_line: HashMap<Arc<str>, u32>,
    /// What each frame of the pickle is. Stacks share them.
    known: HashMap<ValueId, Known>,
    /// What each stack comes to. Entries share them.
    stacks: HashMap<ValueId, CallSite>,
}

/// What a frame is.
#[derive(Clone, Copy)]
enum Known {
    /// A line of Python that is not PyTorch's.
    Line(u32),
    /// Where PyTorch's `Module` calls a forward function.
    Module,
    /// Another of PyTorch, or of C++.
    Other,
}

/// Where an entry is of.
#[derive(Clone, Copy, Default)]
pub(super) struct CallSite {
    /// The innermost line that is not PyTorch's.
    pub(super) line: Option<u32>,
    /// Whether that line runs inside of a `Module`.
    pub(super) in_module: bool,
}

impl Frames {
    /// Whether any stack has a frame of PyTorch's `Module`.
    pub(super) fn has_modules(&self) -> bool {
        let mut known = self.known.values();
        known.any(|known| matches!(known, Known::Module))
    }

    fn add(&mut self, line: String) -> Option<u32> {
        let line: Arc<str> = Arc::from(line);
        if let Some(known) = self.by_line.get(&line) {
            return Some(*known);
        }
        let number = u32::try_from(self.lines.len()).ok()?;
        if self.lines.len() == MOST_FRAMES {
            return None;
        }
        self.lines.push(Arc::clone(&line));
        self.by_line.insert(line, number);
        Some(number)
    }
}

impl Reader<'_, '_> {
    /// What the device had free at the last `oom`.
    pub(super) fn device_free(&self, trace: &[ValueId]) -> Option<Bytes> {
        trace.iter().rev().find_map(|id| {
            let Value::Map(members) = self.pickle.value(*id) else {
                return None;
            };
            let free = self.pickle.member(members, "device_free")?;
            Some(Bytes(self.unsigned(free, String::new).ok()?))
        })
    }

    /// The line of Python that an entry is of: the innermost that is not PyTorch's, and whether it is inside of a module. Stacks may be
    /// left out, and what is not as expected in them is not worth an error.
    pub(super) fn place(&self, members: &Members, frames: &mut Frames) -> CallSite {
        let Some(id) = self.pickle.member(members, "frames") else {
            return CallSite::default();
        };
        if let Some(place) = frames.stacks.get(&id) {
            return *place;
        }
        let mut place = CallSite::default();
        if let Value::Sequence(stack) = self.pickle.value(id) {
            for frame in stack.iter().take(DEEPEST_STACK) {
                match (self.known(*frame, frames), place.line) {
                    (Known::Line(line), None) => place.line = Some(line),
                    (Known::Module, Some(_)) => {
                        place.in_module = true;
                        break;
                    }
                    (Known::Line(_), Some(_)) | (Known::Module, None) | (Known::Other, _) => {}
                }
            }
        }
        frames.stacks.insert(id, place);
        place
    }

    fn known(&self, id: ValueId, frames: &mut Frames) -> Known {
        if let Some(known) = frames.known.get(&id) {
            return *known;
        }
        let known = match self.pickle.value(id) {
            Value::Map(frame) => match self.line(frame).and_then(|line| frames.add(line)) {
                Some(line) => Known::Line(line),
                None if self.is_module(frame) => Known::Module,
                None => Known::Other,
            },
            _ => Known::Other,
        };
        frames.known.insert(id, known);
        known
    }

    /// Whether a frame is in the file where PyTorch defines `Module`, whose `__call__` calls forward functions.
    fn is_module(&self, frame: &Members) -> bool {
        matches!(
            self.value(frame, "filename"),
            Some(Value::Text(file)) if file.ends_with("/torch/nn/modules/module.py")
        )
    }

    /// `train.py:12 forward`, of a line of Python that is not PyTorch's.
    fn line(&self, frame: &Members) -> Option<String> {
        let (Value::Text(file), Value::Int(line), Value::Text(name)) = (
            self.value(frame, "filename")?,
            self.value(frame, "line")?,
            self.value(frame, "name")?,
        ) else {
            return None;
        };
        let is_own = file.ends_with(".py") && !file.contains("/torch/");
        let file = file.rsplit('/').next().unwrap_or_default();
        is_own.then(|| shorten(&format!("{file}:{line} {name}")))
    }
}
