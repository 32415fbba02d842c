//! What an optimizer step allocates: state on the first, temporaries on each.
//!
//! See Note [Optimizers].

use std::sync::Arc;

use crate::eager::{Eager, Leaf, Tensor};
use crate::model::{Optimizer, OptimizerImpl};
use crate::program::{Category, Kernel};
use crate::shape::DType;

/// A trained parameter with what the optimizer keeps for it.
#[derive(Debug)]
pub(super) struct Trained {
    pub(super) leaf: std::rc::Rc<Leaf>,
    pub(super) tensor: Tensor,
    state: Vec<Tensor>,
}

impl Trained {
    pub(super) fn new(leaf: std::rc::Rc<Leaf>, tensor: Tensor) -> Trained {
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

/// `optimizer.step()`.
pub(super) fn step(
    eager: &mut Eager,
    optimizer: Optimizer,
    implementation: OptimizerImpl,
    parameters: &mut [Trained],
    found_inf: Option<&Tensor>,
) {
    let first = parameters
        .iter()
        .all(|parameter| parameter.state.is_empty());
    if first {
        for parameter in parameters
            .iter_mut()
            .filter(|parameter| parameter.has_gradient())
        {
            make_state(eager, optimizer, implementation, parameter);
        }
    }
    let adam = matches!(optimizer, Optimizer::Adam | Optimizer::Adamw);
    eager.set_category(Category::OptimizerScratch);
    // Adam's square roots: all at once with foreach, freed from the last to the first; one after the
    // other without, where the previous denominator is still a local variable while the next is made.
    let mut temporaries = Vec::new();
    if adam && implementation == OptimizerImpl::Foreach {
        for parameter in parameters
            .iter()
            .filter(|parameter| parameter.has_gradient())
        {
            eager.set_label(&parameter.leaf.path);
            let tensor = &parameter.tensor;
            temporaries.push(eager.empty_strided(
                &tensor.shape,
                tensor.strides.clone(),
                tensor.dtype,
            ));
        }
    }
    let mut denominator = None;
    for parameter in parameters
        .iter()
        .filter(|parameter| parameter.has_gradient())
    {
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

/// `zero_grad(set_to_none=True)`.
pub(super) fn zero_grad(parameters: &[Trained]) {
    for parameter in parameters {
        drop(parameter.leaf.grad.borrow_mut().take());
    }
}
