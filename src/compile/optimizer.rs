//! What an optimizer step allocates: state on the first, temporaries on each.
//!
//! See Note [Optimizers].

use std::rc::Rc;
use std::sync::Arc;

use crate::eager::{Eager, Leaf, Tensor};
use crate::model::{Optimizer, OptimizerImpl};
use crate::program::{Category, Host, Kernel, Moving, Updating, Work};
use crate::shape::{DType, Extent};

/// A trained parameter with what the optimizer keeps for it.
#[derive(Debug)]
pub(super) struct Trained {
    pub(super) leaf: Rc<Leaf>,
    pub(super) tensor: Tensor,
    state: Vec<Tensor>,
}

impl Trained {
    pub(super) fn new(leaf: Rc<Leaf>, tensor: Tensor) -> Trained {
        Trained {
            leaf,
            tensor,
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

/// `optimizer.step()`, which goes through the parameters of these places in their order.
pub(super) fn step(
    eager: &mut Eager,
    optimizer: Optimizer,
    implementation: OptimizerImpl,
    parameters: &mut [Trained],
    mine: &[usize],
    found_inf: Option<&Tensor>,
) {
    let first = parameters
        .iter()
        .all(|parameter| parameter.state.is_empty());
    let has_gradient = |index: &&usize| parameters[**index].has_gradient();
    let mine: Vec<usize> = mine.iter().filter(has_gradient).copied().collect();
    if first {
        for index in &mine {
            make_state(eager, optimizer, implementation, &mut parameters[*index]);
        }
    }
    let mine = || mine.iter().map(|index| &parameters[*index]);
    let adam = matches!(optimizer, Optimizer::Adam | Optimizer::Adamw);
    eager.set_category(Category::OptimizerScratch);
    // Adam's square roots: all at once with foreach, freed from the last to the first; one after the
    // other without, where the previous denominator is still a local variable while the next is made.
    let mut temporaries = Vec::new();
    if adam && implementation == OptimizerImpl::Foreach {
        for parameter in mine() {
            eager.set_label(&parameter.leaf.path);
            let tensor = &parameter.tensor;
            temporaries.push(eager.empty_strided(
                &tensor.shape,
                tensor.strides.clone(),
                tensor.dtype,
            ));
        }
    }
    note_update(eager, optimizer, implementation, mine());
    let mut denominator = None;
    for parameter in mine() {
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
    drop(denominator);
    while let Some(temporary) = temporaries.pop() {
        drop(temporary);
    }
}

/// What the update of these parameters asks of the card and of the host.
fn note_update<'a>(
    eager: &Eager,
    optimizer: Optimizer,
    implementation: OptimizerImpl,
    parameters: impl Iterator<Item = &'a Trained>,
) {
    let is_fused = implementation == OptimizerImpl::Fused;
    let (kind, state) = match optimizer {
        Optimizer::Sgd => (Updating::Sgd, 0),
        Optimizer::SgdMomentum => (Updating::SgdMomentum, 1),
        Optimizer::Adam if is_fused => (Updating::AdamFused, 2),
        Optimizer::Adam => (Updating::Adam, 2),
        Optimizer::Adamw if is_fused => (Updating::AdamwFused, 2),
        Optimizer::Adamw => (Updating::Adamw, 2),
    };
    let host = match (implementation, state) {
        (OptimizerImpl::ForLoop, _) => Host::LoneUpdate,
        (OptimizerImpl::Foreach, 2) => Host::AdamUpdate,
        (OptimizerImpl::Foreach | OptimizerImpl::Fused, _) => Host::Update,
    };
    // Parameters of a type are updated together.
    let mut all: Vec<(DType, u32, Extent)> = Vec::new();
    for parameter in parameters {
        let (dtype, elements) = (parameter.tensor.dtype, parameter.tensor.numel());
        match all.iter_mut().find(|(of, ..)| *of == dtype) {
            Some((_, count, sum)) => {
                *count += 1;
                *sum = *sum + elements;
            }
            None => all.push((dtype, 1, elements)),
        }
    }
    for (dtype, count, elements) in all {
        eager.recorder().note(host, count);
        // Parameter and gradient are read, the state too; the gradient alone is not written.
        let passes = Extent::fixed(dtype.size() * (3 + 2 * state));
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
        (Optimizer::Sgd, _) => &[],
        (Optimizer::SgdMomentum, _) => &["momentum_buffer"],
        (Optimizer::Adam | Optimizer::Adamw, OptimizerImpl::Fused) => {
            &["step", "exp_avg", "exp_avg_sq"]
        }
        (Optimizer::Adam | Optimizer::Adamw, _) => &["exp_avg", "exp_avg_sq"],
    };
    eager.set_category(Category::OptimizerState);
    for name in names {
        eager.set_label(&Arc::from(format!("{} {name}", parameter.leaf.path)));
        let tensor = &parameter.tensor;
        let made = if *name == "step" {
            eager.empty(&[], DType::Float32)
        } else {
            eager.empty_strided(&tensor.shape, tensor.strides.clone(), tensor.dtype)
        };
        eager.launch(Kernel::Fill(0.0), &[], &[&made]);
        parameter.state.push(Tensor::new(made));
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
        Optimizer::Adam | Optimizer::Adamw => {
            outputs.extend(parameter.state[moments..].iter().map(|state| &**state));
            Kernel::Adam {
                decoupled: optimizer == Optimizer::Adamw,
            }
        }
    };
    eager.launch(kernel, &inputs, &outputs);
}

/// `torch.nn.utils.clip_grad_norm_`: norms of chunks of 65,536 elements (`foreach_tensor_norm` in
/// aten/src/ATen/native/cuda/ForeachReduceOp.cu) become norms of gradients, and those one norm, by which all gradients are scaled.
/// Of shards, it is that of all ranks.
pub(super) fn clip_grad_norm(
    eager: &mut Eager,
    parameters: &[Trained],
    max_norm: f64,
    is_sharded: bool,
) {
    const CHUNK: u64 = 65_536;
    let gradients: Vec<Tensor> = parameters.iter().filter_map(Trained::gradient).collect();
    let mut types: Vec<DType> = Vec::new();
    for gradient in &gradients {
        if !types.contains(&gradient.dtype) {
            types.push(gradient.dtype);
        }
    }
    eager.set_category(Category::OptimizerScratch);
    eager.set_label(&Arc::from("clip_grad_norm_"));
    let mut norms = Vec::new();
    for dtype in types {
        let of_type = gradients.iter().filter(|gradient| gradient.dtype == dtype);
        let chunks = |gradient: &Tensor| gradient.numel().at(1).div_ceil(CHUNK);
        let most = of_type.clone().map(chunks).max().unwrap_or(0);
        let partial = eager.scratch(DType::Float32.size() * of_type.clone().count() as u64 * most);
        norms.extend(of_type.map(|_| eager.scratch(dtype.size())));
        drop(partial);
    }
    let Some(dtype) = gradients.first().map(|gradient| gradient.dtype) else {
        return;
    };
    let count = dtype.size() * norms.len() as u64;
    let stacked = eager.scratch(count);
    let total = if is_sharded {
        // Norms of shards are stacked into a tensor of which each rank has a part, copied, and summed over the ranks.
        let [copied, sent, received] = [(); 3].map(|()| eager.scratch(count));
        drop(copied);
        drop(sent);
        let total = Rc::new(eager.empty(&[], dtype));
        drop(received);
        total
    } else {
        Rc::new(eager.empty(&[], dtype))
    };
    drop(stacked);
    while let Some(norm) = norms.pop() {
        drop(norm);
    }
    let number = |eager: &mut Eager| eager.scratch(dtype.size());
    let sum = number(eager);
    let inverse = number(eager);
    let coefficient = number(eager);
    drop(inverse);
    drop(sum);
    let clamped = number(eager);
    drop(coefficient);
    let mut inputs = vec![&*total];
    inputs.extend(gradients.iter().map(|gradient| &**gradient));
    let outputs: Vec<_> = gradients.iter().map(|gradient| &**gradient).collect();
    eager.launch(Kernel::ClipGradNorm { max_norm }, &inputs, &outputs);
    drop(clamped);
    drop(total);
}

/// `zero_grad(set_to_none=True)`.
pub(super) fn zero_grad(parameters: &[Trained]) {
    for parameter in parameters {
        drop(parameter.leaf.grad.borrow_mut().take());
    }
}
