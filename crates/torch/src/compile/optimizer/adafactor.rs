//! Adafactor: PyTorch's (torch/optim/_adafactor.py) and transformers' (transformers/optimization.py).
//!
//! See Note [Optimizers].

use std::sync::Arc;

use super::{Trained, by_type, zeros};
use crate::eager::{Eager, Output, Stop, Tensor, TensorBody};
use crate::ops::Reduction;
use crate::program::{Category, Host, Kernel};
use crate::shape::{DType, Extent};

/// What a GPU would run where there is no kernel of its own: elementwise, in place or not.
const STEP: Kernel = Kernel::MemoryOnly("an Adafactor step");

/// Operators of one parameter beside those that `Host::LoneUpdate` counts; not fitted.
const UPDATES: u32 = 2;

/// What the step keeps in local variables from one parameter to the next.
#[derive(Default)]
struct Locals {
    row_mean: Option<Tensor>,
    col_mean: Option<Tensor>,
    grad_squared: Option<Tensor>,
    update: Option<Tensor>,
}

/// `_single_tensor_adafactor`, PyTorch's default.
pub(super) fn one_by_one(
    eager: &mut Eager,
    parameters: &mut [Trained],
    mine: &[usize],
) -> Result<(), Stop> {
    make_states(eager, parameters, mine);
    eager.set_category(Category::OptimizerScratch);
    let mut locals = Locals::default();
    for index in mine {
        let parameter = &parameters[*index];
        let Some(gradient) = parameter.gradient() else {
            continue;
        };
        eager.set_label(&parameter.leaf.path);
        eager.recorder().note(Host::LoneUpdate, UPDATES);
        drop(norm(eager, &parameter.tensor)?);
        eager.recorder().wait();
        let estimate = if let [row, column] = parameter.state.as_slice() {
            let dims = gradient.shape.len();
            locals.row_mean = Some(along(eager, &gradient, dims - 1)?);
            locals.col_mean = Some(along(eager, &gradient, dims - 2)?);
            let estimate = eager.matmul(row, column)?;
            drop(eager.reduction(Reduction::Mean, row, &[dims - 2], true));
            estimate
        } else {
            locals.grad_squared = Some(made_like(eager, &gradient));
            eager.clone_of(&parameter.state[0])
        };
        // What the name was before goes when it names what is made.
        locals.update = Some(estimate);
        let update = locals.update.as_ref().expect("set above");
        eager.launch(STEP, &[&gradient], &[update]);
        drop(norm(eager, update)?);
        eager.recorder().wait();
        eager.launch(STEP, &[update], &[&parameter.tensor]);
    }
    Ok(())
}

/// `_multi_tensor_adafactor`: matrices and vectors of a type, each in a few lists.
pub(super) fn together(
    eager: &mut Eager,
    parameters: &mut [Trained],
    mine: &[usize],
) -> Result<(), Stop> {
    make_states(eager, parameters, mine);
    eager.set_category(Category::OptimizerScratch);
    // `_group_tensors_by_device_dtype_and_is_multidim`: by type first.
    let mut groups: Vec<(bool, Vec<&Trained>)> = Vec::new();
    let all = mine.iter().map(|index| &parameters[*index]);
    for of_type in by_type(all, |one| one.tensor.dtype) {
        let first = of_type[0].state.len() == 2;
        let is_alike = |one: &&Trained| (one.state.len() == 2) == first;
        let (alike, others): (Vec<_>, Vec<_>) = of_type.into_iter().partition(is_alike);
        groups.extend([(first, alike), (!first, others)]);
    }
    let mut updates: Vec<Tensor> = Vec::new();
    for (is_factored, group) in groups.into_iter().filter(|(_, group)| !group.is_empty()) {
        let gradients: Vec<Tensor> = group.iter().filter_map(|one| one.gradient()).collect();
        for parameter in &group {
            eager.set_label(&parameter.leaf.path);
            eager.recorder().note(Host::LoneUpdate, 1);
            drop(norm(eager, &parameter.tensor)?);
            eager.recorder().wait();
        }
        let estimates = if is_factored {
            for back in [1, 2] {
                let sums = gradients.iter();
                let sums = sums.map(|gradient| along(eager, gradient, gradient.shape.len() - back));
                free_from_the_end(sums.collect::<Result<Vec<_>, Stop>>()?);
            }
            let product = |one: &&Trained| eager.matmul(&one.state[0], &one.state[1]);
            let estimates = group
                .iter()
                .map(product)
                .collect::<Result<Vec<_>, Stop>>()?;
            let mean = |one: &&Trained| {
                let row = &one.state[0];
                eager.reduction(Reduction::Mean, row, &[row.shape.len() - 2], true)
            };
            free_from_the_end(group.iter().map(mean).collect());
            estimates
        } else {
            let squares = gradients.iter().map(|gradient| made_like(eager, gradient));
            free_from_the_end(squares.collect());
            let copies = group.iter().map(|one| eager.clone_of(&one.state[0]));
            copies.collect()
        };
        free_from_the_end(std::mem::replace(&mut updates, estimates));
        for ((update, gradient), parameter) in updates.iter().zip(&gradients).zip(&group) {
            eager.launch(STEP, &[gradient], &[update]);
            drop(norm(eager, update)?);
            eager.recorder().wait();
            eager.launch(STEP, &[update], &[&parameter.tensor]);
        }
    }
    free_from_the_end(updates);
    Ok(())
}

/// `Adafactor.step` of transformers, with a learning rate that nothing scales, as the Trainer makes it.
pub(super) fn transformers(
    eager: &mut Eager,
    parameters: &mut [Trained],
    mine: &[usize],
) -> Result<(), Stop> {
    let mut whole_gradient = None;
    let mut whole_parameter = None;
    let mut update: Option<Tensor> = None;
    for index in mine {
        let parameter = &mut parameters[*index];
        let Some(gradient) = parameter.gradient() else {
            continue;
        };
        let path = Arc::clone(&parameter.leaf.path);
        eager.set_label(&path);
        eager.set_category(Category::OptimizerScratch);
        eager.recorder().note(Host::LoneUpdate, UPDATES);
        // Halves are updated in float32. The names let go of what they were before.
        let is_half = gradient.dtype.is_half();
        drop(whole_gradient.take());
        let gradient = if is_half {
            let whole = eager.copy_as(&gradient, DType::Float32);
            whole_gradient = Some(Tensor::clone(&whole));
            whole
        } else {
            gradient
        };
        let dims = gradient.shape.len();
        let is_factored = dims >= 2;
        if parameter.state.is_empty() {
            eager.set_category(Category::OptimizerState);
            let shapes = if is_factored {
                let row = gradient.shape[..dims - 1].to_vec();
                let column = [&gradient.shape[..dims - 2], &gradient.shape[dims - 1..]].concat();
                vec![("exp_avg_sq_row", row), ("exp_avg_sq_col", column)]
            } else {
                vec![("exp_avg_sq", gradient.shape.to_vec())]
            };
            for (name, shape) in shapes {
                zeros(eager, parameter, name, &shape, gradient.dtype);
            }
            eager.set_label(&path);
        }
        drop(whole_parameter.take());
        let read = if parameter.tensor.dtype.is_half() {
            let whole = eager.copy_as(&parameter.tensor, DType::Float32);
            whole_parameter = Some(Tensor::clone(&whole));
            whole
        } else {
            Tensor::clone(&parameter.tensor)
        };
        // The root mean square of the parameter is kept, though nothing reads it.
        eager.set_category(Category::OptimizerState);
        let mean_square = root_mean_square(eager, &read)?;
        let kept = 1 + usize::from(is_factored);
        parameter.state.truncate(kept);
        parameter.state.push(mean_square);
        eager.set_category(Category::OptimizerScratch);
        let square = made_like(eager, &gradient);
        let squares = made_like(eager, &square);
        drop(square);
        drop(update.replace(squares));
        let estimate = if is_factored {
            let squares = update.as_ref().expect("set above");
            for dim in [dims - 1, dims - 2] {
                drop(eager.reduction(Reduction::Mean, squares, &[dim], false));
            }
            // `_approx_sq_grad`.
            let [row, column] = [0, 1].map(|number| Tensor::clone(&parameter.state[number]));
            let mean = eager.reduction(Reduction::Mean, &row, &[dims - 2], true);
            let divided = made_like(eager, &row);
            drop(mean);
            let rows = eager.unsqueeze(&divided, dims - 1);
            drop(divided);
            let column = eager.unsqueeze(&column, dims - 2);
            let columns = made_like(eager, &column);
            let product = eager.broadcast_like(&[&rows, &columns], gradient.dtype);
            eager.launch(STEP, &[&rows, &columns], &[&product]);
            drop((rows, columns));
            Tensor::new(product)
        } else {
            made_like(eager, &Tensor::clone(&parameter.state[0]))
        };
        drop(update.replace(estimate));
        let made = update.as_ref().expect("set above");
        let mean_square = root_mean_square(eager, made)?;
        let clipped = made_like(eager, &mean_square);
        drop(mean_square);
        eager.launch(STEP, &[&gradient, &clipped], &[made]);
        drop(clipped);
        let negative = made_like(eager, made);
        eager.launch(STEP, &[&negative], &[&parameter.tensor]);
    }
    drop((whole_gradient, whole_parameter, update));
    Ok(())
}

/// `tensor.norm(2) / tensor.numel() ** 0.5`.
fn root_mean_square(eager: &mut Eager, tensor: &Tensor) -> Output {
    let norm = norm(eager, tensor)?;
    Ok(made_like(eager, &norm))
}

/// `_init_group`: sums over the rows and columns of all but vectors, and what is as large as those.
fn make_states(eager: &mut Eager, parameters: &mut [Trained], mine: &[usize]) {
    eager.set_category(Category::OptimizerState);
    for index in mine {
        let parameter = &mut parameters[*index];
        if !parameter.state.is_empty() {
            continue;
        }
        let Some(gradient) = parameter.gradient() else {
            continue;
        };
        let (dtype, dims) = (gradient.dtype, gradient.shape.len());
        if dims > 1 {
            for (name, dim) in [("row_var", dims - 1), ("col_var", dims - 2)] {
                let mut shape = gradient.shape.to_vec();
                shape[dim] = Extent::ONE;
                zeros(eager, parameter, name, &shape, dtype);
            }
        } else {
            let shape = gradient.shape.to_vec();
            zeros(eager, parameter, "variance", &shape, dtype);
        }
    }
}

/// The norm of all elements.
fn norm(eager: &mut Eager, tensor: &Tensor) -> Output {
    let all: Vec<usize> = (0..tensor.shape.len()).collect();
    eager.norm_along(tensor, (&all, false), (2.0, false))
}

/// The norms along a dimension, which stays.
fn along(eager: &mut Eager, tensor: &Tensor, dim: usize) -> Output {
    eager.norm_along(tensor, (&[dim], true), (2.0, false))
}

/// What an elementwise function of a tensor makes.
fn made_like(eager: &mut Eager, tensor: &TensorBody) -> Tensor {
    let made = eager.empty_like(tensor, tensor.dtype);
    eager.computed(made, STEP, &[tensor])
}

/// A list goes from its end.
fn free_from_the_end(mut tensors: Vec<Tensor>) {
    tensors.drain(..).rev().for_each(drop);
}
