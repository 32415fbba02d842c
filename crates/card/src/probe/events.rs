//! Every allocation and free of a run, in columns: what a drawing of the whole step is made from.
//!
//! Events are numbered from 1, in the order in which the allocator did them; 0 stands for what was there before the first. A
//! block or a segment is there right after its event, and no longer right after the event that took it away, so that the
//! columns give the map of segments and blocks right after any event.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::peak::{Phase, owner};
use crate::alloc::{Address, BlockState, Event, SegmentAction, Snapshot};
use crate::program::{Category, Program, TensorId};
use crate::units::Bytes;

/// Events that are kept at most: three steps of a model that allocates forty thousand times in each. In columns they take some
/// 10 MiB, as JSON as much, and compressed 2 MiB.
pub const MOST_EVENTS: u32 = 1 << 18;

/// Every allocation and free, in columns: the first entries of all columns of an object belong together.
///
/// Events are numbered from 1; 0 is what was there before the first. What has a number is there right after that event, and what
/// was freed at a number is gone right after it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct MemoryEvents {
    /// How many events are told here, at most 262,144. The columns hold everything up to the last of them.
    pub events: u32,
    /// How many more there were, which are left out: then `repeats` are too.
    pub omitted: u64,
    /// The event after which most is allocated in any step, the first of them; null where it is left out, and where no step began.
    pub peak_event: Option<u32>,
    /// Whom blocks belong to.
    pub owners: Vec<EventOwner>,
    /// All blocks, in the order of their allocations.
    pub blocks: BlockColumns,
    /// Blocks that were freed while another stream still used them, and so could not be used again at once.
    pub pending: PendingColumns,
    /// What the allocator took from the driver, and gave back.
    pub segments: SegmentColumns,
    /// Requests that were refused.
    pub refused: RefusalColumns,
    /// What the program was doing, from an event to the next entry's.
    pub bands: BandColumns,
    /// Micro-steps that were not told once more.
    pub repeats: RepeatColumns,
}

/// Whom blocks belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct EventOwner {
    /// The module's path; empty for what is in no module, as the loss and the batch are, and in a recording.
    #[schema(example = "transformer.h.11.mlp.act")]
    pub module: String,
    /// The operation, the parameter or the tensor that it is for; of a recording, the line of Python that asked for it. Empty where
    /// that is not known.
    #[schema(example = "gelu")]
    pub operation: String,
    /// What it is for; null in a recording.
    pub category: Option<Category>,
}

/// Blocks, one for each allocation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct BlockColumns {
    /// The event that allocated it.
    #[schema(example = json!([1, 3]))]
    pub allocated: Vec<u32>,
    /// The event that freed it; null where none did.
    #[schema(example = json!([4, null]))]
    pub freed: Vec<Option<u32>>,
    /// Where it starts.
    #[schema(example = json!([139_637_976_727_552_u64, 139_637_976_728_064_u64]))]
    pub address: Vec<u64>,
    /// Its size, as the allocator cut it.
    #[schema(example = json!([512, 2_097_152]))]
    pub bytes: Vec<u64>,
    /// What was asked for.
    #[schema(example = json!([40, 2_097_152]))]
    pub requested_bytes: Vec<u64>,
    /// Whose it is: an index into `owners`.
    #[schema(example = json!([0, 1]))]
    pub owner: Vec<u32>,
}

/// Blocks between their free and the event after which they could be used again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PendingColumns {
    /// Which: an index into the columns of `blocks`.
    pub block: Vec<u32>,
    /// The event that found the other stream done with it.
    pub until: Vec<u32>,
}

/// What was taken from the driver and given back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SegmentColumns {
    /// When.
    #[schema(example = json!([0, 2]))]
    pub event: Vec<u32>,
    /// What was done.
    #[schema(example = json!(["alloc", "alloc"]))]
    pub action: Vec<SegmentAction>,
    /// Where it starts.
    #[schema(example = json!([139_637_976_727_552_u64, 139_637_980_921_856_u64]))]
    pub address: Vec<u64>,
    /// How much.
    #[schema(example = json!([2_097_152, 20_971_520]))]
    pub bytes: Vec<u64>,
}

/// Requests that were refused, with nothing more to give back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct RefusalColumns {
    /// When.
    pub event: Vec<u32>,
    /// What was asked for, as rounded by the allocator.
    pub bytes: Vec<u64>,
}

/// What the program was doing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct BandColumns {
    /// The first event of it; it lasts until the next entry's.
    #[schema(example = json!([1, 310]))]
    pub event: Vec<u32>,
    /// In which step, from 1; 0 before the first. Of a recording, in which round.
    #[schema(example = json!([0, 1]))]
    pub step: Vec<u32>,
    /// What the step was doing; null before the first, and in a recording.
    #[schema(example = json!([null, "forward"]))]
    pub phase: Vec<Option<Phase>>,
}

/// Micro-steps that the allocator serves just as those before them: they are counted, and not told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct RepeatColumns {
    /// After which event.
    pub event: Vec<u32>,
    /// How many events, those before it, came again.
    pub events: Vec<u32>,
    /// How often.
    pub times: Vec<u64>,
}

/// Writes events down as they happen.
#[derive(Debug, Default)]
pub struct EventLog {
    told: MemoryEvents,
    /// The blocks that are allocated, by address: their number, where they are told, and their bytes.
    live: HashMap<Address, (Option<u32>, u64)>,
    /// Those that were freed and cannot be used again yet.
    pending: HashMap<Address, u32>,
    owners: HashMap<EventOwner, u32>,
    /// What is known of a program's tensors, by their labels.
    labels: HashMap<(Arc<str>, Category), u32>,
    allocated: u64,
    /// Most allocated in a step.
    highest: u64,
    /// The last event before each repeat of a section.
    repeats: Vec<u32>,
}

impl EventLog {
    /// Takes in what is there before the first event.
    pub fn start_from(&mut self, held: &Snapshot, owner: u32) {
        for segment in &held.segments {
            let action = if segment.is_expandable {
                SegmentAction::Map
            } else {
                SegmentAction::Alloc
            };
            self.segment(action, segment.address, segment.size);
            for block in &segment.blocks {
                let Some(requested) = block.requested else {
                    continue;
                };
                self.allocate(block.address, (block.size, requested), owner);
                if block.state == BlockState::ActivePendingFree {
                    self.free(block.address);
                }
            }
        }
    }

    /// The number of an owner.
    pub fn owner(&mut self, owner: EventOwner) -> u32 {
        if let Some(known) = self.owners.get(&owner) {
            return *known;
        }
        let number = index(self.told.owners.len());
        self.told.owners.push(owner.clone());
        self.owners.insert(owner, number);
        number
    }

    /// The owner of a program's tensor.
    pub(super) fn owner_of(&mut self, program: &Program, id: TensorId) -> u32 {
        let tensor = program.tensor(id);
        let label = (Arc::clone(&tensor.label), tensor.category);
        if let Some(known) = self.labels.get(&label) {
            return *known;
        }
        let (module, operation) = owner(&tensor.label, tensor.category);
        let number = self.owner(EventOwner {
            module: module.to_owned(),
            operation: operation.to_owned(),
            category: Some(tensor.category),
        });
        self.labels.insert(label, number);
        number
    }

    /// From the next event on, this goes on.
    pub fn begin_band(&mut self, step: u32, phase: Option<Phase>) {
        let bands = &mut self.told.bands;
        let was_before = bands.step.last() == Some(&0);
        if bands.event.last() == Some(&(self.told.events + 1)) {
            // Nothing happened in it.
            bands.event.pop();
            bands.step.pop();
            bands.phase.pop();
        }
        let is_new = bands.step.last() != Some(&step) || bands.phase.last() != Some(&phase);
        if !is_new {
            return;
        }
        if was_before && phase.is_some() {
            // The peak is that of the steps, not of construction.
            (self.highest, self.told.peak_event) = (0, None);
        }
        if self.told.events < MOST_EVENTS {
            bands.event.push(self.told.events + 1);
            bands.step.push(step);
            bands.phase.push(phase);
        }
    }

    /// A section that repeats begins, once more or for the first time.
    pub(super) fn begin_repeat(&mut self) {
        self.repeats.push(self.told.events);
    }

    /// The last so many repeats come so often more.
    pub(super) fn note_again(&mut self, repeats: u32, times: u64) {
        let before = self.repeats.len().checked_sub(repeats as usize);
        let first = before.and_then(|at| self.repeats.get(at)).copied();
        let events = self.told.events - first.unwrap_or(self.told.events);
        if !self.is_told() || events == 0 || times == 0 {
            return;
        }
        let again = &mut self.told.repeats;
        again.event.push(self.told.events);
        again.events.push(events);
        again.times.push(times);
    }

    /// Takes in what an allocator did for a request; a block that it handed out has this owner and size.
    pub fn hear(&mut self, events: &[Event], owner: u32, size: Bytes) {
        for event in events {
            self.take_in(*event, (owner, size));
        }
    }

    /// The same where nothing was handed out.
    pub fn hear_frees(&mut self, events: &[Event]) {
        self.hear(events, 0, Bytes::ZERO);
    }

    /// All of it.
    pub fn finish(self) -> MemoryEvents {
        self.told
    }

    fn take_in(&mut self, event: Event, (owner, size): (u32, Bytes)) {
        if let Event::FreeCompleted { address, .. } = event {
            self.complete(address);
            return;
        }
        if self.told.events < MOST_EVENTS {
            self.told.events += 1;
        } else {
            self.told.omitted += 1;
        }
        match event {
            Event::Segment(action, address, size) => self.segment(action, address, size),
            Event::Alloc { address, requested } => {
                self.allocate(address, (size, requested), owner);
                if self.allocated > self.highest {
                    self.highest = self.allocated;
                    self.told.peak_event = self.is_told().then_some(self.told.events);
                }
            }
            Event::FreeRequested { address, .. } => self.free(address),
            Event::FreeCompleted { .. } => {}
            Event::OutOfMemory { rounded } => {
                if self.is_told() {
                    self.told.refused.event.push(self.told.events);
                    self.told.refused.bytes.push(rounded.0);
                }
            }
        }
    }

    /// Whether the event that is taken in is one that is kept.
    fn is_told(&self) -> bool {
        self.told.omitted == 0
    }

    /// A freed block can be used again. Most can at once, which is no event of its own.
    fn complete(&mut self, address: Address) {
        let Some(block) = self.pending.remove(&address) else {
            return;
        };
        if self.told.blocks.freed[block as usize] == Some(self.told.events) {
            return;
        }
        if self.told.events == MOST_EVENTS {
            self.told.omitted += 1;
            return;
        }
        self.told.events += 1;
        self.told.pending.block.push(block);
        self.told.pending.until.push(self.told.events);
    }

    fn segment(&mut self, action: SegmentAction, address: Address, size: Bytes) {
        if self.is_told() {
            let segments = &mut self.told.segments;
            segments.event.push(self.told.events);
            segments.action.push(action);
            segments.address.push(address.0);
            segments.bytes.push(size.0);
        }
    }

    fn allocate(&mut self, address: Address, (size, requested): (Bytes, Bytes), owner: u32) {
        let number = self
            .is_told()
            .then(|| index(self.told.blocks.address.len()));
        if number.is_some() {
            let blocks = &mut self.told.blocks;
            blocks.allocated.push(self.told.events);
            blocks.freed.push(None);
            blocks.address.push(address.0);
            blocks.bytes.push(size.0);
            blocks.requested_bytes.push(requested.0);
            blocks.owner.push(owner);
        }
        self.allocated += size.0;
        self.live.insert(address, (number, size.0));
    }

    fn free(&mut self, address: Address) {
        let Some((number, bytes)) = self.live.remove(&address) else {
            return;
        };
        self.allocated -= bytes;
        if let (Some(block), true) = (number, self.is_told()) {
            self.told.blocks.freed[block as usize] = Some(self.told.events);
            self.pending.insert(address, block);
        }
    }
}

fn index(length: usize) -> u32 {
    u32::try_from(length).expect("there are at most as many as events and blocks held at the start")
}
