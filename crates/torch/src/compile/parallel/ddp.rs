//! `DistributedDataParallel`: buckets of gradients, and messages to the other ranks. See Note [DDP].

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::buckets::{Member, Parts, by_first, parts, places};
use super::construction::{broadcast, compare_shapes};
use crate::eager::{Eager, Leaf, Storage, Tensor, TensorBody, Watcher};
use crate::program::{Category, Collective, Kernel, Reduction};
use crate::shape::{DType, Extent};
use batchfit_step::Ddp;

const MIB: u64 = 1 << 20;

/// How large buckets are: the first, and all others (`dist._DEFAULT_FIRST_BUCKET_BYTES`, `bucket_cap_mb`'s default).
const LIMITS: [u64; 2] = [MIB, 25 * MIB];

/// Backward passes after which what a compression hook made is given back at the latest.
const HELD_PASSES: usize = 2;

/// What keeps the buckets.
#[derive(Debug)]
pub(in crate::compile) struct Reducer {
    options: Ddp,
    /// Trained parameters, in the order of `model.parameters()`, by their leaves' places there.
    members: Vec<Member>,
    places: HashMap<usize, usize>,
    buffers: Vec<Tensor>,
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
    waiting: Vec<usize>,
    /// What its values were compressed to in this backward pass.
    compressed: Option<Tensor>,
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
        let buffers: Vec<Tensor> = buffers.iter().map(|tensor| tensor.detached()).collect();
        eager.set_category(Category::Communication);
        eager.set_label(&Arc::from("DistributedDataParallel"));
        let dimensions = trained.iter().map(|(_, tensor)| tensor.shape.len() as u64);
        compare_shapes(eager, options.world_size, dimensions.sum());
        let parameters = parameters.iter().map(|tensor| tensor.detached());
        let sent = if options.broadcast_buffers {
            buffers.as_slice()
        } else {
            &[]
        };
        let states: Vec<Tensor> = parameters.chain(sent.iter().cloned()).collect();
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
            let used = eager.zeros(&[count], DType::Int32);
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
            let bucket = eager.zeros(&[Extent::fixed(elements)], dtype);
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
                waiting: members.clone(),
                members,
                compressed: None,
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
            bucket.waiting.clone_from(&bucket.members);
        }
    }

    /// What ends a backward pass that sends gradients: those of all ranks take the place of this rank's
    /// (`Reducer::finalize_backward`).
    pub(in crate::compile) fn after_backward<'a>(
        &self,
        eager: &mut Eager,
        leaves: impl Iterator<Item = &'a Leaf>,
    ) {
        let state = &mut *self.state.borrow_mut();
        if !state.sends {
            return;
        }
        for bucket in &mut state.buckets {
            if !bucket.waiting.is_empty() {
                // No gradient of this rank's: others may have one.
                for member in bucket.waiting.drain(..) {
                    let place = state.place_of[&member].1;
                    let elements = Extent::fixed(self.members[member].elements);
                    let mut view = bucket.tensor.alias(&[elements], &[Extent::ONE]);
                    view.offset = Extent::fixed(place);
                    eager.launch(Kernel::Fill(0.0), &[], &[&view]);
                }
                all_reduce(eager, &bucket.tensor);
            }
            if let Some(compressed) = bucket.compressed.take() {
                eager.launch(Kernel::Copy, &[&compressed], &[&bucket.tensor]);
            }
        }
        if let (Some(used), false) = (&state.used, self.options.static_graph) {
            let sum = Kernel::Collective(Collective::AllReduce(Reduction::Sum));
            eager.launch(sum, &[used], &[used]);
        }
        if self.options.gradient_as_bucket_view {
            return;
        }
        for leaf in leaves {
            let member = self.places.get(&leaf.index);
            let place = member.and_then(|member| state.place_of.get(member));
            if let (Some((index, offset)), Some(gradient)) = (place, &*leaf.grad.borrow()) {
                let view = part_like(gradient, &state.buckets[*index].tensor, *offset);
                eager.launch(Kernel::Copy, &[&view], &[gradient]);
            }
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
        announce(eager, &order, members.len() as u64 + 1, DType::Int32);
        announce(eager, &sizes, parts.len() as u64, DType::Int32);
        drop((sizes, order));
        {
            let state = &mut *self.state.borrow_mut();
            let first = std::mem::take(&mut state.buckets).into_iter();
            state.is_rebuilt = true;
            let first = first.map(|bucket| bucket.tensor);
            // Whether the process group knows by now that the last message is done is a race.
            state.retired = first.filter(|_| !eager.buckets_go_early).collect();
        }
        self.make_buckets(eager, parts, true);
    }

    /// What a message to other ranks lets go of, and what it is compressed to.
    fn send(&self, eager: &mut Eager, index: usize) {
        let retired = std::mem::take(&mut self.state.borrow_mut().retired);
        drop(retired);
        let bucket = Rc::clone(&self.state.borrow().buckets[index].tensor);
        let Some(hook) = self.options.comm_hook else {
            all_reduce(eager, &bucket);
            return;
        };
        eager.set_category(Category::Communication);
        eager.set_label(&Arc::from("DistributedDataParallel hook"));
        let made = Rc::new(eager.empty(&[bucket.numel()], hook.dtype()));
        eager.launch(Kernel::Copy, &[&bucket], &[&made]);
        all_reduce(eager, &made);
        let state = &mut *self.state.borrow_mut();
        state.buckets[index].compressed = Some(Rc::clone(&made));
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
            } else if let Some(gradient) = &*leaf.grad.borrow() {
                let view = part_like(gradient, &bucket.tensor, offset);
                eager.launch(Kernel::Copy, &[gradient], &[&view]);
            }
            bucket.waiting.retain(|waiting| *waiting != member);
            bucket.waiting.is_empty().then_some(index)
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
    let view = part_like(&gradient, bucket, offset);
    eager.launch(Kernel::Copy, &[&gradient], &[&view]);
    *kept = Some(Rc::new(view));
    drop(gradient);
}

pub(super) fn member(tensor: &TensorBody) -> Member {
    Member {
        dtype: tensor.dtype,
        elements: tensor.numel().at(1),
    }
}

/// The part of a bucket in which a gradient lies, in the gradient's own layout.
pub(super) fn part_like(gradient: &TensorBody, bucket: &TensorBody, offset: u64) -> TensorBody {
    let mut view = bucket.alias(gradient.shape.clone(), gradient.strides.clone());
    view.offset = Extent::fixed(offset);
    view
}

/// The mean over all ranks.
fn all_reduce(eager: &mut Eager, tensor: &TensorBody) {
    let mean = Kernel::Collective(Collective::AllReduce(Reduction::Mean));
    eager.launch(mean, &[tensor], &[tensor]);
}

/// Numbers that the first rank sends, whose values decide nothing here.
pub(super) fn announce(eager: &mut Eager, storage: &Rc<Storage>, elements: u64, dtype: DType) {
    let numbers = TensorBody::over(storage, &[Extent::fixed(elements)], dtype);
    eager.launch(Kernel::Fill(0.0), &[], &[&numbers]);
    send_from(eager, 0, &numbers);
}

/// One rank's values take the place of all others'.
pub(in crate::compile) fn send_from(eager: &mut Eager, root: u64, tensor: &TensorBody) {
    let broadcast = Kernel::Collective(Collective::Broadcast { root });
    eager.launch(broadcast, &[tensor], &[tensor]);
}
