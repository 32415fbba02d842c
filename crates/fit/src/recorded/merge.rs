//! Recordings of several batches as one sequence, in which each event is at the batches that have it.

use super::form::Point;
use super::matching::Matching;
use super::sequence::Sequence;

/// An event of the merged sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    /// An index into [`Merged::tensors`].
    pub(super) tensor: usize,
    pub(super) is_free: bool,
}

/// A block, in the recordings that allocate it and free it at the same places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    /// Its block in each recording that has it.
    pub(super) blocks: Vec<Option<usize>>,
    /// An index into [`Merged::families`].
    pub(super) family: usize,
    pub(super) stream: u8,
}

/// All recordings as one sequence.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) events: Vec<Event>,
    /// The event of the recording of the largest batch that each of them is; others have larger numbers.
    pub(super) places: Vec<usize>,
    /// The event that begins the first step, where it was marked; else all is one step.
    pub(super) first_step: usize,
    pub(super) tensors: Vec<Merge>,
    /// The sizes of what is the same in several recordings, wherever each of them frees it.
    pub(super) families: Vec<Vec<Point>>,
    /// The family of each block of each recording.
    pub(super) family_of: Vec<Vec<usize>>,
}

/// Events in an order in which others are inserted.
struct Chain {
    events: Vec<Event>,
    next: Vec<usize>,
    first: usize,
}

/// No further event.
const END: usize = usize::MAX;

impl Chain {
    /// Puts an event after another one, or first of all.
    fn insert(&mut self, after: Option<usize>, event: Event) -> usize {
        let index = self.events.len();
        let place = match after {
            Some(after) => &mut self.next[after],
            None => &mut self.first,
        };
        let next = std::mem::replace(place, index);
        self.events.push(event);
        self.next.push(next);
        index
    }

    /// Indices of events.
    fn in_order(&self) -> Vec<usize> {
        let next = |at: usize| (at != END).then_some(at);
        std::iter::successors(next(self.first), |at| next(self.next[*at])).collect()
    }
}

impl Merged {
    /// Merges recordings in the order of their batches; each matching is of a recording with the next one.
    pub(super) fn of(sequences: &[Sequence], matchings: &[Matching]) -> Merged {
        let mut merged = Merged {
            family_of: vec![Vec::new(); sequences.len()],
            ..Merged::default()
        };
        let mut chain = Chain {
            events: Vec::new(),
            next: Vec::new(),
            first: END,
        };
        // Of the recording above: the tensor of each block and the place in the chain of each event.
        let mut tensors_above: Vec<usize> = Vec::new();
        let mut places_above: Vec<usize> = Vec::new();
        for (index, sequence) in sequences.iter().enumerate().rev() {
            let matching = matchings.get(index);
            let (mut tensors, mut families) = (Vec::new(), Vec::new());
            for (number, block) in sequence.blocks.iter().enumerate() {
                let partner = matching.and_then(|matching| matching.partners[number]);
                let family = if let Some(partner) = partner {
                    merged.family_of[index + 1][partner.block]
                } else {
                    merged.families.push(Vec::new());
                    merged.families.len() - 1
                };
                merged.families[family].push(Point {
                    batch: sequence.batch,
                    bytes: block.bytes,
                });
                let alike = partner.filter(|partner| partner.is_freed_alike);
                let tensor = if let Some(partner) = alike {
                    tensors_above[partner.block]
                } else {
                    merged.tensors.push(Merge {
                        blocks: vec![None; sequences.len()],
                        family,
                        stream: block.stream,
                    });
                    merged.tensors.len() - 1
                };
                merged.tensors[tensor].blocks[index] = Some(number);
                tensors.push(tensor);
                families.push(family);
            }
            let mut places = Vec::with_capacity(sequence.events.len());
            let (mut last, mut furthest) = (None, None);
            for event in &sequence.events {
                let above = matching.and_then(|matching| {
                    let partner = matching.partners[event.block]?;
                    let other = &sequences[index + 1].blocks[partner.block];
                    let event = if event.is_free {
                        other.freed?
                    } else {
                        other.born
                    };
                    partner.is_freed_alike.then_some(event)
                });
                let place = if let Some(above) = above {
                    if furthest.is_none_or(|furthest| above > furthest) {
                        furthest = Some(above);
                        last = Some(places_above[above]);
                    }
                    places_above[above]
                } else {
                    let event = Event {
                        tensor: tensors[event.block],
                        is_free: event.is_free,
                    };
                    let place = chain.insert(last, event);
                    last = Some(place);
                    place
                };
                places.push(place);
            }
            merged.family_of[index] = families;
            (tensors_above, places_above) = (tensors, places);
        }
        for family in &mut merged.families {
            family.sort_unstable();
        }
        let begin = sequences.last().and_then(|last| last.first_step);
        // Events of the recording of the largest batch came into the chain first, in their order.
        merged.places = chain.in_order();
        let mut places = merged.places.iter();
        merged.first_step =
            begin.map_or(0, |begin| places.position(|at| *at == begin).unwrap_or(0));
        merged.events = merged.places.iter().map(|at| chain.events[*at]).collect();
        merged
    }
}
