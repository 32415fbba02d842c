//! Keys and values that are kept from one token to the next: `cache_utils.py`.

use std::cell::RefCell;

use crate::KeptIn;
use crate::huggingface::prelude::*;

/// `DynamicCache` or `StaticCache`, with a layer for each of the model's.
pub(in crate::huggingface) struct Cache {
    kind: KeptIn,
    layers: Vec<RefCell<Layer>>,
}

/// `DynamicLayer`, `DynamicSlidingWindowLayer`, `StaticLayer` or `StaticSlidingWindowLayer`.
struct Layer {
    window: Option<u64>,
    /// Tokens that a static layer has room for.
    room: u64,
    seen: u64,
    /// Keys and values, once there are any.
    states: Option<[Tensor; 2]>,
    /// What a layer holds besides: how many tokens it has seen, or its window.
    number: Option<Tensor>,
}

/// What a mask for a layer spans: `get_query_offset` and `get_mask_sizes`.
pub(super) struct Span {
    /// Tokens before the first query, as far as Python knows them.
    pub(super) seen: u64,
    /// The same on the GPU, where a static layer counts there.
    pub(super) counted: Option<Tensor>,
    /// Keys that are attended to, and the position of the first.
    pub(super) keys: u64,
    pub(super) first_key: u64,
}

impl Cache {
    /// An empty one, for layers with these windows; a static one has room for `longest` tokens.
    pub(super) fn new(kind: KeptIn, windows: &[Option<u64>], longest: u64) -> Cache {
        let layers = windows.iter().map(|window| {
            RefCell::new(Layer {
                window: *window,
                room: window.unwrap_or(longest).min(longest),
                seen: 0,
                states: None,
                number: None,
            })
        });
        Cache {
            kind,
            layers: layers.collect(),
        }
    }

    /// `is_compileable`.
    pub(super) fn is_static(&self) -> bool {
        self.kind == KeptIn::Static
    }

    /// What a mask spans for so many queries: that of the first layer with, or without, a window.
    pub(super) fn span(&self, has_window: bool, queries: u64) -> Span {
        let of_kind = |layer: &&RefCell<Layer>| layer.borrow().window.is_some() == has_window;
        let layer = self.layers.iter().find(of_kind);
        let Some(layer) = layer.or_else(|| self.layers.first()) else {
            return Span {
                seen: 0,
                counted: None,
                keys: queries,
                first_key: 0,
            };
        };
        layer.borrow().span(self.kind, queries)
    }

    /// `update`: takes in the keys and values of new tokens of a layer; gives those that are attended to.
    pub(in crate::huggingface) fn update(
        &self,
        layer: u64,
        [key, value]: [&Tensor; 2],
    ) -> [Tensor; 2] {
        let layer = usize::try_from(layer).ok();
        let Some(layer) = layer.and_then(|layer| self.layers.get(layer)) else {
            return [key.clone(), value.clone()];
        };
        let mut layer = layer.borrow_mut();
        let new = [key, value];
        match (self.kind, layer.window) {
            (KeptIn::Dynamic, None) => layer.grow(new),
            (KeptIn::Dynamic, Some(window)) => layer.slide(new, window),
            (KeptIn::Static, None) => layer.fill(new),
            (KeptIn::Static, Some(_)) => layer.fill_window(new),
        }
    }
}

impl Layer {
    fn span(&self, kind: KeptIn, queries: u64) -> Span {
        let before_window = |window: u64| (self.seen + 1).saturating_sub(window);
        let (keys, first_key) = match (kind, self.window) {
            (KeptIn::Dynamic, None) => (self.seen + queries, 0),
            (KeptIn::Dynamic, Some(window)) => {
                (self.seen.min(window - 1) + queries, before_window(window))
            }
            (KeptIn::Static, None) => (self.room, 0),
            (KeptIn::Static, Some(_)) => {
                let keys = if self.seen >= self.room {
                    self.room + queries - 1
                } else if self.seen + queries > self.room {
                    self.seen + queries
                } else {
                    self.room
                };
                (keys, before_window(self.room))
            }
        };
        let counts_there = kind == KeptIn::Static && self.window.is_none();
        Span {
            seen: self.seen,
            counted: self.number.clone().filter(|_| counts_there),
            keys,
            first_key,
        }
    }

    /// `DynamicLayer.update`: `torch.cat` makes the keys and values of all tokens again at each one. The old ones are let go of once the
    /// new ones are there, so that blocks of ever new sizes are asked for.
    fn grow(&mut self, new: [&Tensor; 2]) -> [Tensor; 2] {
        self.seen += new[0].length(2);
        let tracer = new[0].tracer();
        match &mut self.states {
            Some(states) => {
                for (states, new) in states.iter_mut().zip(new) {
                    *states = tracer.cat_of(&[&*states, new], -2);
                }
                states.clone()
            }
            // The first time they are joined with empty tensors, which take no memory.
            none => none
                .insert(new.map(|new| tracer.cat_of(&[new], -2)))
                .clone(),
        }
    }

    /// `DynamicSlidingWindowLayer.update`: what it keeps is a part of what it gives, and holds all of it.
    fn slide(&mut self, new: [&Tensor; 2], window: u64) -> [Tensor; 2] {
        let tracer = new[0].tracer();
        if self.number.is_none() {
            self.number = Some(number(&tracer));
        }
        self.seen += new[0].length(2);
        let full = match &self.states {
            Some([keys, values]) => {
                [(keys, new[0]), (values, new[1])].map(|(old, new)| tracer.cat_of(&[old, new], -2))
            }
            None => new.map(|new| tracer.cat_of(&[new], -2)),
        };
        // Python's `x[-0:]` is all of it.
        let kept = match window - 1 {
            0 => u64::MAX,
            kept => kept,
        };
        let last = |full: &Tensor| {
            let start = full.length(2).saturating_sub(kept);
            full.slice_from(2, start.cast_signed())
        };
        let [keys, values] = full.each_ref();
        match &mut self.states {
            Some(states) => {
                states[0] = last(keys);
                states[1] = last(values);
            }
            none => *none = Some([last(keys), last(values)]),
        }
        full
    }

    /// `lazy_initialization` of static layers.
    fn make_room(&mut self, new: [&Tensor; 2]) -> [Tensor; 2] {
        let tracer = new[0].tracer();
        let room = self.room;
        let zeros = |new: &Tensor| {
            let [batch, heads, width] = [0, 1, 3].map(|dim| Size::from(new.size(dim)));
            tracer.zeros(&[batch, heads, room.into(), width], new.dtype().dtype)
        };
        let states = self.states.get_or_insert_with(|| new.map(zeros)).clone();
        if self.number.is_none() {
            self.number = Some(number(&tracer));
        }
        states
    }

    /// `cache_position`: where new tokens go.
    fn positions(&self, tracer: &Tracer, count: u64) -> Tensor {
        let indices = tracer.arange(count);
        match &self.number {
            Some(number) => indices.add(number),
            None => indices,
        }
    }

    /// `StaticLayer.update`: writes into tensors that are as long as all will ever be.
    fn fill(&mut self, new: [&Tensor; 2]) -> [Tensor; 2] {
        let states = self.make_room(new);
        let count = new[0].length(2);
        let positions = self.positions(&new[0].tracer(), count);
        self.count(count);
        write(&states, &positions, new);
        self.seen += count;
        states
    }

    /// `self.cumulative_length.add_(count)`
    fn count(&self, count: u64) {
        if let Some(number) = &self.number {
            number.change_in_place(
                "aten.add_.Tensor",
                &[("other", Argument::Size(count.into()))],
            );
        }
    }

    /// `StaticSlidingWindowLayer.update`.
    fn fill_window(&mut self, new: [&Tensor; 2]) -> [Tensor; 2] {
        let states = self.make_room(new);
        let tracer = new[0].tracer();
        let count = new[0].length(2);
        let before = self.seen;
        self.seen += count;
        if before >= self.room && count == 1 {
            let [keys, values] = states.each_ref().map(|states| states.roll(&[-1], &[-2]));
            let index = tracer.full(&[1.into()], -1, DType::Int64);
            for (states, new) in [(&keys, new[0]), (&values, new[1])] {
                states.change_in_place(
                    "aten.index_put_.default",
                    &[
                        (
                            "indices",
                            Argument::OptionalTensors(vec![None, None, Some(&index)]),
                        ),
                        ("values", Argument::Tensor(new)),
                    ],
                );
            }
            states[0].copy_from(&keys);
            states[1].copy_from(&values);
            drop((keys, values, index));
            return states;
        }
        if before + count <= self.room {
            let positions = self.positions(&tracer, count);
            write(&states, &positions, new);
            self.count(count);
            return states;
        }
        let old = |states: &Tensor| {
            if before >= self.room {
                states.slice_from(2, 1)
            } else {
                states.slice(2, 0, before.cast_signed())
            }
        };
        let full = [(&states[0], new[0]), (&states[1], new[1])].map(|(states, new)| {
            if before == 0 {
                new.clone()
            } else {
                tracer.cat([old(states), new.clone()], -2)
            }
        });
        for (states, full) in states.iter().zip(&full) {
            let start = full.length(2).saturating_sub(self.room);
            states.copy_from(full.slice_from(2, start.cast_signed()));
        }
        full
    }
}

/// `index_copy_` of keys and values.
fn write(states: &[Tensor; 2], positions: &Tensor, new: [&Tensor; 2]) {
    for (states, new) in states.iter().zip(new) {
        states.change_in_place(
            "aten.index_copy_.default",
            &[
                ("dim", Argument::Int(2)),
                ("index", Argument::Tensor(positions)),
                ("source", Argument::Tensor(new)),
            ],
        );
    }
}

/// A whole number that is brought to the GPU.
pub(super) fn number(tracer: &Tracer) -> Tensor {
    tracer.full(&[], 0, DType::Int64)
}
