//! `fully_shard` of each unit, then of the model: parameters are gathered for as long as operations need them, and gradients are
//! spread over the ranks. See Note [FSDP2].

mod construct;
mod group;
mod reduce;
mod scratch;
mod units;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::eager::{Eager, Tensor, TensorBody};
use crate::program::Category;
use crate::shape::DType;
use batchfit_step::FullyShard;

use group::{Group, Phase};

pub(in crate::compile) use units::{UnitCall, modules};

/// The stream on which shards are copied and gathered, and the one on which gradients are reduced (`all_gather_copy_in_stream` and
/// `reduce_scatter_stream` of `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`).
const COPY_IN: u8 = 1;
const REDUCE_SCATTER: u8 = 2;

/// What runs around a sharded model's forward and backward passes.
#[derive(Debug)]
pub(in crate::compile) struct Sharded {
    options: FullyShard,
    rank: u64,
    /// Units in the order in which `fully_shard` was called on them; the model is the last.
    groups: Vec<Group>,
    calls: Vec<UnitCall>,
    /// Whether this micro-step reduces gradients.
    reduces: Cell<bool>,
    /// What the unit before gathered in the forward pass: it goes when the next has waited for its own.
    held: RefCell<Option<TensorBody>>,
    /// What the unit before reduces from in the backward pass: it goes when the next begins to reduce.
    reduced: RefCell<Option<TensorBody>>,
    /// Units in the order in which they ran forward.
    ran: RefCell<Vec<usize>>,
}

impl Sharded {
    /// Calls of units, by their first operations, outer ones first.
    pub(in crate::compile) fn calls(&self) -> &[UnitCall] {
        &self.calls
    }

    /// The model as a whole.
    pub(in crate::compile) fn root(&self) -> usize {
        self.groups.len() - 1
    }

    /// Whether every micro-step reduces gradients, not the last one alone.
    pub(in crate::compile) fn reduces_always(&self) -> bool {
        self.options.sync_every_micro_step
    }

    /// What comes before a micro-step (`set_requires_gradient_sync`).
    pub(in crate::compile) fn before_micro_step(&self, reduces: bool) {
        self.reduces.set(reduces);
    }

    /// `_pre_forward` of a unit: its inputs as it gets them.
    pub(in crate::compile) fn before_forward(
        self: &Rc<Self>,
        eager: &mut Eager,
        unit: usize,
        inputs: Vec<Tensor>,
    ) -> Vec<Tensor> {
        let group = &self.groups[unit];
        // A checkpointed unit that runs again, as its backward pass needs it: everything is there.
        if group.phase.get() == Phase::PreBackward {
            return inputs;
        }
        let (category, label) = (eager.category(), eager.label());
        eager.set_label(&group.label);
        let inputs = self.cast(eager, inputs);
        group.gather(eager, &self.options, self.rank);
        self.wait(eager, group, true);
        eager.set_category(category);
        eager.set_label(&label);
        self.watched(eager, unit, inputs)
    }

    /// Inputs in the type that parameters are gathered in.
    fn cast(&self, eager: &mut Eager, inputs: Vec<Tensor>) -> Vec<Tensor> {
        let Some(dtype) = self.options.mixed_precision.param_dtype else {
            return inputs;
        };
        let cast = |input: Tensor| {
            if input.dtype.is_float() {
                eager.cast(&input, dtype)
            } else {
                input
            }
        };
        inputs.into_iter().map(cast).collect()
    }

    /// `wait_for_unshard`.
    fn wait(&self, eager: &mut Eager, group: &Group, is_forward: bool) {
        eager.set_category(Category::Parameters);
        if self.options.world_size == 1 {
            return group.copy_alone(eager);
        }
        let Some(output) = group.take_apart(eager, &self.options) else {
            return;
        };
        if is_forward {
            let before = self.held.borrow_mut().replace(output);
            drop(before);
        }
    }

    /// Inputs that tell when their gradients are known: then all gradients inside are.
    fn watched(
        self: &Rc<Self>,
        eager: &mut Eager,
        unit: usize,
        mut inputs: Vec<Tensor>,
    ) -> Vec<Tensor> {
        let needs = |input: &Tensor| eager.grad_enabled && input.requires_grad();
        let places: Vec<usize> = (0..inputs.len())
            .filter(|place| needs(&inputs[*place]))
            .collect();
        if places.is_empty() {
            return inputs;
        }
        let watched: Vec<Tensor> = places
            .iter()
            .map(|place| Rc::clone(&inputs[*place]))
            .collect();
        let sharded = Rc::clone(self);
        let passed = eager.pass_through(&watched, move |eager| sharded.after_backward(eager, unit));
        for (place, tensor) in places.into_iter().zip(passed) {
            inputs[place] = tensor;
        }
        inputs
    }

    /// `_post_forward` of a unit, which made these.
    pub(in crate::compile) fn after_forward<'a>(
        self: &Rc<Self>,
        eager: &mut Eager,
        unit: usize,
        outputs: impl Iterator<Item = &'a Tensor>,
    ) {
        let group = &self.groups[unit];
        if group.phase.get() == Phase::PreBackward {
            return;
        }
        if self.options.reshard_after_forward && unit != self.root() {
            group.reshard();
        }
        if !group.members.is_empty() {
            let mut ran = self.ran.borrow_mut();
            group.ran.borrow_mut().push(ran.len());
            ran.push(unit);
        }
        for output in outputs {
            let sharded = Rc::clone(self);
            eager.hook(
                output,
                Rc::new(move |eager| sharded.before_backward(eager, unit)),
            );
        }
    }

    /// A result of the model as it is handed out.
    pub(in crate::compile) fn handed_out(&self, eager: &mut Eager, output: &Tensor) -> Tensor {
        match self.options.mixed_precision.output_dtype {
            Some(dtype) if output.dtype.is_float() => eager.cast(output, dtype),
            _ => Rc::clone(output),
        }
    }

    /// The end of the model's forward pass.
    pub(in crate::compile) fn forward_ends(&self) {
        drop(self.held.borrow_mut().take());
    }

    /// What parameters are gathered in, where it is not what they are stored in.
    pub(in crate::compile) fn gathered_type(&self) -> Option<DType> {
        self.options.mixed_precision.param_dtype
    }

    /// `_pre_backward` of a unit: the gradient of a result is known.
    fn before_backward(&self, eager: &mut Eager, unit: usize) {
        let group = &self.groups[unit];
        if group.phase.replace(Phase::PreBackward) == Phase::PreBackward {
            return;
        }
        let (category, label) = (eager.category(), eager.label());
        group.gather(eager, &self.options, self.rank);
        self.wait(eager, group, false);
        // The unit that ran before this one is the next.
        let place = group.ran.borrow_mut().pop();
        let before = place.and_then(|place| place.checked_sub(1));
        let next = before.and_then(|place| self.ran.borrow().get(place).copied());
        if let Some(next) = next {
            self.groups[next].gather(eager, &self.options, self.rank);
        }
        eager.set_category(category);
        eager.set_label(&label);
    }

    /// The end of the backward pass: units whose inputs need no gradient, the model first, then in order.
    pub(in crate::compile) fn backward_ends(&self, eager: &mut Eager) {
        let order = std::iter::once(self.root()).chain(self.module_order());
        for unit in order {
            let group = &self.groups[unit];
            if group.is_unsharded.get() && group.phase.get() != Phase::PostBackward {
                self.after_backward(eager, unit);
            }
            group.phase.set(Phase::Idle);
            group.ran.borrow_mut().clear();
            // Gathered ahead for a backward pass that nothing needed.
            drop(group.gathered.borrow_mut().take());
        }
        self.ran.borrow_mut().clear();
        drop(self.reduced.borrow_mut().take());
    }

    /// Units but the model, outer ones first.
    fn module_order(&self) -> impl Iterator<Item = usize> {
        let mut order: Vec<usize> = (0..self.root()).collect();
        crate::order::by_key(&mut order, |unit| self.groups[*unit].first);
        order.into_iter()
    }
}
