//! What an optimizer step allocates: state on the first, temporaries on each.
//!
//! See Note [Optimizers].

mod adafactor;
mod clip;
mod eight_bits;

pub(super) use clip::clip_grad_norm;

use std::rc::Rc;
use std::sync::Arc;

use crate::eager::{Eager, Leaf, Stop, Tensor, TensorBody};
use crate::program::{Category, Host, Kernel, Moving, Updating, Work};
use crate::shape::{DType, Extent};
use batchfit_step::{Optimizer, OptimizerImpl, Variant};

/// A trained parameter with what the optimizer keeps for it.
#[derive(Debug)]
pub(super) struct Trained {
    pub(super) leaf: Rc<Leaf>,
    pub(super) tensor: Tensor,
    /// Whether it is the weight of an embedding.
    embeds: bool,
    state: Vec<Tensor>,
}

impl Trained {
    pub(super) fn new(leaf: Rc<Leaf>, tensor: Tensor, embeds: bool) -> Trained {
        Trained {
            leaf,
            tensor,
            embeds,
            state: Vec::new(),
        }
    }

    /// What the loss does not depend on gets no gradient, no state and no update.
    fn has_gradient(&self) -> bool {
        self.leaf.grad.borrow().is_some()
    }

    fn gradient(&self) -> Option<Tensor> {
        self.leaf.grad.borrow().clone()
    }
}

/// How many moments an optimizer keeps of a parameter that are as large as it.
pub(super) fn whole_moments(optimizer: Optimizer) -> u64 {
    match optimizer {
        Optimizer::Adam | Optimizer::Adamw => 2,
        Optimizer::SgdMomentum => 1,
        // Those of eight bits run on GPUs alone; of Adafactor's, vectors are left, which are small beside matrices.
        Optimizer::Sgd
        | Optimizer::Adamw8bit
        | Optimizer::AdamwBnb8bit
        | Optimizer::PagedAdamw8bit
        | Optimizer::Adamw8bitTorchao
        | Optimizer::Adafactor
        | Optimizer::AdafactorTransformers => 0,
    }
}

/// `optimizer.step()`, which goes through the parameters of these places in their order.
pub(super) fn step(
    eager: &mut Eager,
    variant: &Variant,
    parameters: &mut [Trained],
    mine: &[usize],
    found_inf: Option<&Tensor>,
) -> Result<(), Stop> {
    let (optimizer, implementation) = (variant.optimizer, variant.optimizer_impl);
    let has_gradient = |index: &&usize| parameters[**index].has_gradient();
    let mine: Vec<usize> = mine.iter().filter(has_gradient).copied().collect();
    let grad_enabled = std::mem::replace(&mut eager.grad_enabled, false);
    let ended = match optimizer {
        Optimizer::Adamw8bit | Optimizer::AdamwBnb8bit | Optimizer::PagedAdamw8bit => {
            eight_bits::bitsandbytes(eager, parameters, &mine, optimizer);
            Ok(())
        }
        Optimizer::Adamw8bitTorchao => {
            eight_bits::torchao(eager, parameters, &mine);
            Ok(())
        }
        Optimizer::Adafactor if implementation == OptimizerImpl::Foreach => {
            adafactor::together(eager, parameters, &mine)
        }
        Optimizer::Adafactor => adafactor::one_by_one(eager, parameters, &mine),
        Optimizer::AdafactorTransformers => adafactor::transformers(eager, parameters, &mine),
        Optimizer::Sgd | Optimizer::SgdMomentum | Optimizer::Adam | Optimizer::Adamw => {
            whole(eager, variant, parameters, &mine, found_inf);
            Ok(())
        }
    };
    eager.grad_enabled = grad_enabled;
    ended
}

/// SGD, Adam and `AdamW`, whose state is as large as the parameters. See Note [Weight decay].
fn whole(
    eager: &mut Eager,
    variant: &Variant,
    parameters: &mut [Trained],
    mine: &[usize],
    found_inf: Option<&Tensor>,
) {
    let (optimizer, implementation) = (variant.optimizer, variant.optimizer_impl);
    let adam = matches!(optimizer, Optimizer::Adam | Optimizer::Adamw);
    let decays = variant.decay_copies_gradients();
    let together = implementation == OptimizerImpl::Foreach;
    let first = parameters
        .iter()
        .all(|parameter| parameter.state.is_empty());
    let mut copies = Vec::new();
    // Adam makes its state first, SGD copies of all gradients.
    for makes_state in [adam, !adam] {
        if makes_state && first && (adam || !decays || together) {
            for index in mine {
                make_state(eager, optimizer, implementation, &mut parameters[*index]);
            }
        } else if !makes_state && decays && together {
            copies.extend(mine.iter().map(|at| decayed(eager, &parameters[*at])));
        }
    }
    copies.drain(..).rev().for_each(drop);
    eager.set_category(Category::OptimizerScratch);
    // Adam's square roots: all at once with foreach, freed from the last to the first; one after the
    // other without, where the previous denominator is still a local variable while the next is made.
    let mut temporaries = Vec::new();
    if adam && together {
        for parameter in mine.iter().map(|index| &parameters[*index]) {
            eager.set_label(&parameter.leaf.path);
            let tensor = &parameter.tensor;
            temporaries.push(eager.empty_strided(
                &tensor.shape,
                tensor.strides.clone(),
                tensor.dtype,
            ));
        }
    }
    let updated = mine.iter().map(|index| &parameters[*index]);
    note_update(eager, variant, updated);
    let (mut copy, mut denominator) = (None, None);
    for index in mine {
        if decays && !together {
            drop(copy.take());
            let parameter = &mut parameters[*index];
            copy = Some(decayed(eager, parameter));
            if first && !adam {
                make_state(eager, optimizer, implementation, parameter);
            }
            // What SGD goes on with is its momentum.
            copy = copy.filter(|_| optimizer != Optimizer::SgdMomentum);
            eager.set_category(Category::OptimizerScratch);
        }
        let parameter = &parameters[*index];
        eager.set_label(&parameter.leaf.path);
        if adam && implementation == OptimizerImpl::ForLoop {
            let tensor = &parameter.tensor;
            let strides = || tensor.strides.clone();
            let root = eager.empty_strided(&tensor.shape, strides(), tensor.dtype);
            let next = eager.empty_strided(&tensor.shape, strides(), tensor.dtype);
            drop(root);
            denominator = Some(next);
        }
        update(eager, optimizer, first, parameter, found_inf);
    }
    drop((copy, denominator));
    temporaries.drain(..).rev().for_each(drop);
}

/// A copy of a gradient to which the decay of its parameter is added.
fn decayed(eager: &mut Eager, parameter: &Trained) -> TensorBody {
    eager.set_category(Category::OptimizerScratch);
    eager.set_label(&parameter.leaf.path);
    let (tensor, gradient) = (&parameter.tensor, parameter.gradient());
    let copy = eager.empty_strided(&tensor.shape, tensor.strides.clone(), tensor.dtype);
    let read: Vec<_> = gradient.iter().chain([tensor]).map(|one| &**one).collect();
    eager.launch(Kernel::MemoryOnly("weight decay"), &read, &[&copy]);
    copy
}

/// What the update of these parameters asks of the card and of the host.
fn note_update<'a>(
    eager: &Eager,
    variant: &Variant,
    parameters: impl Iterator<Item = &'a Trained>,
) {
    let (optimizer, implementation) = (variant.optimizer, variant.optimizer_impl);
    let is_fused = implementation == OptimizerImpl::Fused;
    let (kind, state) = match optimizer {
        Optimizer::Sgd => (Updating::Sgd, 0),
        Optimizer::SgdMomentum => (Updating::SgdMomentum, 1),
        Optimizer::Adam if is_fused => (Updating::AdamFused, 2),
        Optimizer::Adam => (Updating::Adam, 2),
        Optimizer::Adamw if is_fused => (Updating::AdamwFused, 2),
        Optimizer::Adamw => (Updating::Adamw, 2),
        // What the others do is noted launch by launch.
        _ => return,
    };
    let host = match (implementation, state) {
        (OptimizerImpl::ForLoop, _) => Host::LoneUpdate,
        (OptimizerImpl::Foreach, 2) => Host::AdamUpdate,
        (OptimizerImpl::Foreach | OptimizerImpl::Fused, _) => Host::Update,
    };
    for together in by_type(parameters, |one| one.tensor.dtype) {
        let dtype = together[0].tensor.dtype;
        let count = u32::try_from(together.len()).unwrap_or(u32::MAX);
        let elements = together.iter().map(|one| one.tensor.numel());
        let elements = elements.fold(Extent::ZERO, |sum, own| sum + own);
        eager.recorder().note(host, count);
        // Parameter and gradient are read, the state too; the gradient alone is not written. Decay reads both and writes a copy.
        let decay = u64::from(variant.decay_copies_gradients());
        let passes = Extent::fixed(dtype.size() * (3 + 2 * state + 3 * decay));
        eager.queue(Work::Moving {
            kind: Moving::Update(kind),
            dtype,
            lengths: [Extent::fixed(count.into()), elements, Extent::ONE],
            moved: elements * passes,
        });
    }
}

/// State in the order in which it is made for one parameter.
fn make_state(
    eager: &mut Eager,
    optimizer: Optimizer,
    implementation: OptimizerImpl,
    parameter: &mut Trained,
) {
    let names: &[&str] = match (optimizer, implementation) {
        (Optimizer::SgdMomentum, _) => &["momentum_buffer"],
        (Optimizer::Adam | Optimizer::Adamw, OptimizerImpl::Fused) => {
            &["step", "exp_avg", "exp_avg_sq"]
        }
        (Optimizer::Adam | Optimizer::Adamw, _) => &["exp_avg", "exp_avg_sq"],
        // SGD has none; the others make theirs themselves.
        _ => &[],
    };
    eager.set_category(Category::OptimizerState);
    for name in names {
        if *name == "step" {
            zeros(eager, parameter, name, &[], DType::Float32);
        } else {
            moment(eager, parameter, name, parameter.tensor.dtype);
        }
    }
}

fn update(
    eager: &mut Eager,
    optimizer: Optimizer,
    first: bool,
    parameter: &Trained,
    found_inf: Option<&Tensor>,
) {
    let Some(gradient) = parameter.gradient() else {
        return;
    };
    let mut inputs = vec![&*gradient];
    inputs.extend(found_inf.map(|flag| &**flag));
    let mut outputs = vec![&*parameter.tensor];
    // A fused step's counter is on the device; the launch counts by itself.
    let moments = parameter.state.len().saturating_sub(2);
    let kernel = match optimizer {
        Optimizer::Sgd => Kernel::Sgd,
        Optimizer::SgdMomentum => {
            outputs.extend(parameter.state.iter().map(|state| &**state));
            Kernel::SgdMomentum { first }
        }
        _ => {
            outputs.extend(parameter.state[moments..].iter().map(|state| &**state));
            Kernel::Adam {
                decoupled: optimizer == Optimizer::Adamw,
            }
        }
    };
    eager.launch(kernel, &inputs, &outputs);
}

/// A state of zeros.
fn zeros(eager: &mut Eager, parameter: &mut Trained, name: &str, shape: &[Extent], dtype: DType) {
    eager.set_label(&Arc::from(format!("{} {name}", parameter.leaf.path)));
    let made = eager.zeros(shape, dtype);
    parameter.state.push(Tensor::new(made));
}

/// A moment as large as the parameter.
fn moment(eager: &mut Eager, parameter: &mut Trained, name: &str, dtype: DType) {
    eager.set_label(&Arc::from(format!("{} {name}", parameter.leaf.path)));
    let made = eager.zeros_like(&parameter.tensor, dtype);
    parameter.state.push(Tensor::new(made));
}

/// What there is of each type, by the first of it.
fn by_type<T>(all: impl IntoIterator<Item = T>, dtype: impl Fn(&T) -> DType) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for one in all {
        match groups
            .iter_mut()
            .find(|group| dtype(&group[0]) == dtype(&one))
        {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// `zero_grad(set_to_none=True)`.
pub(super) fn zero_grad(parameters: &[Trained]) {
    for parameter in parameters {
        drop(parameter.leaf.grad.borrow_mut().take());
    }
}
