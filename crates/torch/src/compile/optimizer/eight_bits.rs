//! `AdamW` with moments of eight bits: of bitsandbytes 0.50 and of torchao 0.18.
//!
//! See Note [Optimizers].

use super::{Trained, moment, zeros};
use crate::eager::{Eager, TensorBody};
use crate::program::{Category, Host, Kernel};
use crate::shape::{DType, Extent};
use batchfit_step::Optimizer;

/// Tensors of fewer elements keep whole moments: `min_8bit_size` of `Optimizer2State` (bitsandbytes/optim/optimizer.py), and
/// `_new_buffer` of torchao/optim/adam.py, which follows it.
const LEAST: u64 = 4096;

/// Elements that share a scale: `blocksize` of `Optimizer2State.init_state`, `block_size` of torchao's `AdamW8bit`.
const BLOCK: u64 = 256;

/// What each of 256 codes stands for, in float32.
const MAP: u64 = 256;

/// From so many elements on, `get_state_buffer` of bitsandbytes takes managed memory, which is not the allocator's.
const PAGED_FROM: u64 = 100_000;

/// The two maps that all of bitsandbytes' states share.
const MAPS: [&str; 2] = [
    "bitsandbytes dynamic map",
    "bitsandbytes unsigned dynamic map",
];

/// What a GPU would run.
const UPDATE: Kernel = Kernel::MemoryOnly("an AdamW step with moments of eight bits");

/// `AdamW8bit.step` of bitsandbytes. The Trainer has embeddings' moments in 32 bits: `register_module_override` in
/// `create_optimizer` (transformers/trainer.py).
pub(super) fn bitsandbytes(
    eager: &mut Eager,
    parameters: &mut [Trained],
    mine: &[usize],
    optimizer: Optimizer,
) {
    let paged = (optimizer == Optimizer::PagedAdamw8bit).then_some(PAGED_FROM);
    let overridden = optimizer == Optimizer::AdamwBnb8bit;
    for index in mine {
        let parameter = &mut parameters[*index];
        if parameter.state.is_empty() {
            let elements = parameter.tensor.numel().at(1);
            eager.set_category(Category::OptimizerState);
            if elements < LEAST || (overridden && parameter.embeds) {
                for name in ["state1", "state2"] {
                    moment(eager, parameter, name, DType::Float32);
                }
            } else {
                for name in MAPS {
                    if !eager.keeps(name) {
                        eager.keep_scratch(name, MAP * DType::Float32.size());
                    }
                }
                if paged.is_none_or(|paged| elements < paged) {
                    for name in ["state1", "state2"] {
                        moment(eager, parameter, name, DType::UInt8);
                    }
                } else {
                    eager
                        .recorder()
                        .keep_on_host(2 * elements * DType::UInt8.size());
                }
                for name in ["absmax1", "absmax2"] {
                    let blocks = Extent::fixed(elements.div_ceil(BLOCK));
                    zeros(eager, parameter, name, &[blocks], DType::Float32);
                }
            }
        }
        // `p.data.contiguous()` and `p.grad.contiguous()`, which take the places of both.
        eager.set_category(Category::OptimizerScratch);
        eager.set_label(&parameter.leaf.path);
        drop(eager.dense_copy(&parameter.tensor));
        if let Some(gradient) = parameter.gradient() {
            let dense = eager.dense_copy(&gradient);
            eager.relabel(&dense, Category::Gradients, &parameter.leaf.path);
            *parameter.leaf.grad.borrow_mut() = Some(dense);
        }
        update(eager, parameter);
        eager.recorder().note(Host::Update, 1);
        // `sync_gpu` after each parameter.
        eager.recorder().wait();
    }
}

/// `AdamW8bit.step` of torchao, compiled for each parameter (`single_param_adam` in torchao/optim/adam.py): the kernels that
/// `torch.compile` makes of it first write the new scales and what is scaled by them, all of which is there until codes are
/// made of that. What compiling itself takes, in a process whose caches are cold, is not in it.
pub(super) fn torchao(eager: &mut Eager, parameters: &mut [Trained], mine: &[usize]) {
    for index in mine {
        let parameter = &mut parameters[*index];
        let elements = parameter.tensor.numel().at(1);
        let is_coded = elements >= LEAST && elements.is_multiple_of(BLOCK);
        let blocks = Extent::fixed(elements / BLOCK);
        if parameter.state.is_empty() {
            eager.set_category(Category::OptimizerState);
            for name in ["exp_avg", "exp_avg_sq"] {
                if is_coded {
                    for (what, shape, dtype) in [
                        ("codes", parameter.tensor.shape.to_vec(), DType::UInt8),
                        ("scale", vec![blocks], DType::Float32),
                        ("map", vec![Extent::fixed(MAP)], DType::Float32),
                    ] {
                        zeros(eager, parameter, &format!("{name} {what}"), &shape, dtype);
                    }
                } else {
                    moment(eager, parameter, name, parameter.tensor.dtype);
                }
            }
        }
        eager.set_category(Category::OptimizerScratch);
        eager.set_label(&parameter.leaf.path);
        let mut temporaries: Vec<TensorBody> = Vec::new();
        if is_coded {
            let all = parameter.tensor.numel();
            for elements in [blocks, blocks, all, all] {
                temporaries.push(eager.empty(&[elements], DType::Float32));
            }
        }
        let scaled = temporaries.split_off(temporaries.len() / 2);
        update(eager, parameter);
        eager.recorder().note(Host::LoneUpdate, 1);
        for temporary in scaled.into_iter().chain(temporaries) {
            drop(temporary);
        }
    }
}

fn update(eager: &mut Eager, parameter: &Trained) {
    let Some(gradient) = parameter.gradient() else {
        return;
    };
    let mut outputs = vec![&*parameter.tensor];
    outputs.extend(parameter.state.iter().map(|state| &**state));
    eager.launch(UPDATE, &[&gradient], &outputs);
}
