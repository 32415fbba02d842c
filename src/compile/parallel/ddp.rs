//! `DistributedDataParallel`: buckets of gradients, and messages to the other ranks. See Note [DDP].

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::buckets::{Member, Parts, by_first, parts, places};
use crate::eager::{Eager, Leaf, Tensor, TensorBody, Watcher};
use crate::model::Ddp;
use crate::program::{Category, Kernel};
use crate::shape::{DType, Extent};

const MIB: u64 = 1 << 20;

/// How large buckets are: the first, and all others (`dist._DEFAULT_FIRST_BUCKET_BYTES`, `bucket_cap_mb`'s default).
const LIMITS: [u64; 2] = [MIB, 25 * MIB];

/// How large the messages are in which parameters and buffers are sent (`broadcast_bucket_size` in
/// torch/nn/parallel/distributed.py).
const BROADCAST: u64 = 250 * MIB;

/// Backward passes after which what a compression hook made is given back at the latest.
const HELD_PASSES: usize = 2;

/// What keeps the buckets.
#[derive(Debug)]
pub(in crate::compile) struct Reducer {
    options: Ddp,
    /// Trained parameters, in the order of `model.parameters()`, by their leaves' places there.
    members: Vec<Member>,
    places: HashMap<usize, usize>,
    buffers: Vec<Member>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    buckets: Vec<Bucket>,
    /// For each parameter: its bucket, and its place there.
    place_of: HashMap<usize, (usize, u64)>,
    /// The first buckets, after the rebuild: the last message from them may not be known to be done yet.
    retired: Vec<Tensor>,
    /// Parameters in the order in which their gradients were complete, in the first backward pass with messages.
    ready: Vec<usize>,
    is_rebuilt: bool,
    /// Whether this micro-step sends gradients, and whether the one before did.
    sends: bool,
    sent_before: bool,
    /// Backward passes that sent gradients, before this micro-step.
    passes: u32,
    /// Whether parameters get no gradient: int32 for each.
    used: Option<Tensor>,
    /// What compression hooks made, by step.
    compressed: Vec<Vec<Tensor>>,
}

#[derive(Debug)]
struct Bucket {
    tensor: Tensor,
    members: Vec<usize>,
    /// Gradients that are not complete yet in this backward pass.
    waiting: usize,
}

/// What is wrapped.
pub(in crate::compile) struct Model<'a> {
    /// All parameters, in the order of `model.parameters()`.
    pub(in crate::compile) parameters: Vec<&'a TensorBody>,
    /// Those that are trained, with their leaves' places.
    pub(in crate::compile) trained: Vec<(usize, &'a TensorBody)>,
    /// In the order of `model.buffers()`.
    pub(in crate::compile) buffers: Vec<&'a TensorBody>,
}

impl Reducer {
    /// `DistributedDataParallel(model)`.
    pub(in crate::compile) fn construct(
        eager: &mut Eager,
        options: &Ddp,
        model: &Model<'_>,
    ) -> Reducer {
        let Model {
            parameters,
            trained,
            buffers,
        } = model;
        let members: Vec<Member> = trained.iter().map(|(_, tensor)| member(tensor)).collect();
        let buffers: Vec<Member> = buffers.iter().map(|tensor| member(tensor)).collect();
        eager.set_category(Category::Communication);
        eager.set_label(&Arc::from("DistributedDataParallel"));
        let dimensions = trained.iter().map(|(_, tensor)| tensor.shape.len() as u64);
        compare_shapes(eager, options.world_size, dimensions.sum());
        let parameters = parameters.iter().map(|tensor| member(tensor));
        let sent = if options.broadcast_buffers {
            buffers.as_slice()
        } else {
            &[]
        };
        let states: Vec<Member> = parameters.chain(sent.iter().copied()).collect();
        broadcast(eager, &states);
        let reducer = Reducer {
            options: options.clone(),
            places: (0..)
                .zip(trained)
                .map(|(place, (index, _))| (*index, place))
                .collect(),
            members,
            buffers,
            state: RefCell::default(),
        };
        let (first, ascending) = reducer.first_buckets();
        reducer.make_buckets(eager, first, ascending);
        if options.find_unused_parameters || options.static_graph {
            let count = Extent::fixed(reducer.members.len() as u64);
            let used = eager.empty(&[count], DType::Int32);
            eager.launch(Kernel::Fill(0.0), &[], &[&used]);
            reducer.state.borrow_mut().used = Some(Rc::new(used));
        }
        reducer.state.borrow_mut().sent_before = true;
        reducer
    }

    /// The buckets that parameters are in until it is known in which order gradients are complete; and whether they are
    /// made in this order.
    fn first_buckets(&self) -> (Parts, bool) {
        if self.rebuilds() {
            return (by_first(parts(&self.members, &[u64::MAX])), true);
        }
        (by_first(parts(&self.members, &self.limits())), false)
    }

    /// Micro-steps of a step that are not like those before: all send gradients, or the last one alone does.
    pub(in crate::compile) fn sends_always(&self) -> bool {
        self.options.sync_every_micro_step
    }

    /// How many steps differ before all are alike.
    pub(in crate::compile) fn steps(&self) -> usize {
        // A step after the rebuild is the first without it.
        let rebuilt = 2 + usize::from(self.options.static_graph);
        let compressed = if self.options.comm_hook.is_some() {
            HELD_PASSES + 1
        } else {
            0
        };
        1 + rebuilt + compressed
    }

    fn rebuilds(&self) -> bool {
        !self.options.find_unused_parameters || self.options.static_graph
    }

    fn limits(&self) -> Vec<u64> {
        match self.options.bucket_cap_mb {
            Some(cap) => vec![u64::from(cap) * MIB],
            None => LIMITS.to_vec(),
        }
    }

    fn make_buckets(&self, eager: &mut Eager, parts: Parts, ascending: bool) {
        eager.set_category(Category::Communication);
        let mut made: Vec<Option<Tensor>> = vec![None; parts.len()];
        let mut order: Vec<usize> = (0..parts.len()).collect();
        if !ascending {
            order.reverse();
        }
        for index in order {
            eager.set_label(&Arc::from(format!(
                "DistributedDataParallel bucket {index}"
            )));
            let members = parts[index].iter().map(|member| self.members[*member]);
            let elements = members.map(|member| member.elements).sum();
            let dtype = parts[index]
                .first()
                .map_or(DType::Float32, |member| self.members[*member].dtype);
            let bucket = eager.empty(&[Extent::fixed(elements)], dtype);
            eager.launch(Kernel::Fill(0.0), &[], &[&bucket]);
            made[index] = Some(Rc::new(bucket));
        }
        let state = &mut *self.state.borrow_mut();
        state.place_of.clear();
        for (index, part) in parts.iter().enumerate() {
            for (member, place) in part.iter().zip(places(&self.members, part)) {
                state.place_of.insert(*member, (index, place.start));
            }
        }
        let buckets = made.into_iter().flatten().zip(parts);
        state.buckets = buckets
            .map(|(tensor, members)| Bucket {
                tensor,
                waiting: members.len(),
                members,
            })
            .collect();
    }

    /// What comes before a forward pass, whose backward pass `sends` gradients or does not (`no_sync`).
    pub(in crate::compile) fn before_forward(&self, eager: &mut Eager, sends: bool) {
        let passes_before = if self.options.static_graph { 2 } else { 1 };
        let (is_due, broadcasts) = {
            let state = &mut *self.state.borrow_mut();
            state.passes += u32::from(state.sends);
            let is_due = self.rebuilds() && !state.is_rebuilt && state.passes >= passes_before;
            let broadcasts =
                self.options.broadcast_buffers && state.sent_before && !self.buffers.is_empty();
            state.sends = sends;
            state.sent_before = sends;
            (is_due, broadcasts)
        };
        eager.set_category(Category::Communication);
        eager.set_label(&Arc::from("DistributedDataParallel"));
        if is_due {
            self.rebuild(eager);
        }
        if broadcasts {
            broadcast(eager, &self.buffers);
        }
        for bucket in &mut self.state.borrow_mut().buckets {
            bucket.waiting = bucket.members.len();
        }
    }

    /// Whether this forward pass hands out copies of its results (`_DDPSink`).
    pub(in crate::compile) fn copies_results(&self) -> bool {
        let options = &self.options;
        if options.static_graph {
            return self.state.borrow().passes == 0;
        }
        options.find_unused_parameters
    }

    /// Buckets in the order in which gradients are complete (`Reducer::rebuild_buckets`).
    fn rebuild(&self, eager: &mut Eager) {
        let ready = std::mem::take(&mut self.state.borrow_mut().ready);
        let members: Vec<Member> = ready.iter().map(|index| self.members[*index]).collect();
        let parts: Parts = parts(&members, &self.limits())
            .into_iter()
            .map(|part| part.into_iter().map(|index| ready[index]).collect())
            .collect();
        // The order and the sizes are sent by the first rank.
        let order = eager.scratch(4 * (members.len() as u64 + 1));
        let sizes = eager.scratch(4 * parts.len() as u64);
        drop(sizes);
        drop(order);
        {
            let state = &mut *self.state.borrow_mut();
            let first = std::mem::take(&mut state.buckets).into_iter();
            state.is_rebuilt = true;
            state.retired = first.map(|bucket| bucket.tensor).collect();
        }
        self.make_buckets(eager, parts, true);
    }

    /// What a message to other ranks lets go of, and what it is compressed to.
    fn send(&self, eager: &mut Eager, index: usize) {
        let retired = std::mem::take(&mut self.state.borrow_mut().retired);
        drop(retired);
        let Some(hook) = self.options.comm_hook else {
            return;
        };
        let elements = self.state.borrow().buckets[index].tensor.numel();
        eager.set_category(Category::Communication);
        eager.set_label(&Arc::from("DistributedDataParallel hook"));
        let made = Rc::new(eager.empty(&[elements], hook.dtype()));
        let state = &mut *self.state.borrow_mut();
        let pass = state.passes as usize;
        state.compressed.resize_with(pass + 1, Vec::new);
        state.compressed[pass].push(made);
        if let Some(done) = pass.checked_sub(HELD_PASSES) {
            state.compressed[done].clear();
        }
    }
}

impl Watcher for Reducer {
    fn gradient_is_ready(&self, eager: &mut Eager, leaf: &Leaf) {
        let Some(member) = self.places.get(&leaf.index).copied() else {
            return;
        };
        let complete = {
            let state = &mut *self.state.borrow_mut();
            if !state.sends {
                return;
            }
            if state.passes == 0 {
                state.ready.push(member);
            }
            let Some((index, offset)) = state.place_of.get(&member).copied() else {
                return;
            };
            let bucket = &mut state.buckets[index];
            if self.options.gradient_as_bucket_view {
                move_into(eager, leaf, &bucket.tensor, offset);
            }
            bucket.waiting = bucket.waiting.saturating_sub(1);
            (bucket.waiting == 0).then_some(index)
        };
        if let Some(index) = complete {
            self.send(eager, index);
        }
    }
}

/// Makes a gradient a part of its bucket, where it is not yet.
fn move_into(eager: &mut Eager, leaf: &Leaf, bucket: &Tensor, offset: u64) {
    let mut kept = leaf.grad.borrow_mut();
    let Some(gradient) = kept.take() else {
        return;
    };
    if Rc::ptr_eq(&gradient.storage, &bucket.storage) {
        *kept = Some(gradient);
        return;
    }
    let mut view = bucket.alias(gradient.shape.clone(), gradient.strides.clone());
    view.offset = Extent::fixed(offset);
    eager.launch(Kernel::Copy, &[&gradient], &[&view]);
    *kept = Some(Rc::new(view));
    drop(gradient);
}

fn member(tensor: &TensorBody) -> Member {
    Member {
        dtype: tensor.dtype,
        elements: tensor.numel().at(1),
    }
}

/// `_verify_param_shape_across_processes`: counts of parameters are gathered into a list, then all their lengths and strides
/// are sent.
fn compare_shapes(eager: &mut Eager, ranks: u64, dimensions: u64) {
    let input = eager.scratch(8);
    let outputs: Vec<_> = (0..ranks).map(|_| eager.scratch(8)).collect();
    drop(eager.scratch(8 * ranks));
    drop(eager.scratch(8 * 2 * dimensions));
    for output in outputs {
        drop(output);
    }
    drop(input);
}

/// `broadcast_coalesced` (torch/csrc/distributed/c10d/comm.cpp): a message for each part, of which two are under way.
fn broadcast(eager: &mut Eager, members: &[Member]) {
    let mut under_way = std::collections::VecDeque::new();
    for part in by_first(parts(members, &[BROADCAST])) {
        // A message of one tensor is that tensor.
        let flat = (part.len() > 1).then(|| {
            let of_part = part.iter().map(|index| members[*index]);
            let elements = of_part.map(|member| member.elements).sum();
            eager.scratch_of(Extent::fixed(elements), members[part[0]].dtype)
        });
        under_way.push_back(flat);
        if under_way.len() > 2 {
            drop(under_way.pop_front());
        }
    }
    for flat in under_way {
        drop(flat);
    }
}
