//! Clipping of gradients.

use std::rc::Rc;
use std::sync::Arc;

use super::{Trained, by_type};
use crate::eager::{Eager, Tensor};
use crate::program::{Category, Kernel};
use crate::shape::DType;

/// `torch.nn.utils.clip_grad_norm_`: norms of chunks of 65,536 elements (`foreach_tensor_norm` in
/// aten/src/ATen/native/cuda/ForeachReduceOp.cu) become norms of gradients, and those one norm, by which all gradients are scaled.
/// Of shards, it is that of all ranks.
pub(in crate::compile) fn clip_grad_norm(
    eager: &mut Eager,
    parameters: &[Trained],
    max_norm: f64,
    is_sharded: bool,
) {
    const CHUNK: u64 = 65_536;
    let gradients: Vec<Tensor> = parameters.iter().filter_map(Trained::gradient).collect();
    eager.set_category(Category::OptimizerScratch);
    eager.set_label(&Arc::from("clip_grad_norm_"));
    let mut norms = Vec::new();
    for of_type in by_type(&gradients, |gradient| gradient.dtype) {
        let chunks = |gradient: &&Tensor| gradient.numel().at(1).div_ceil(CHUNK);
        let most = of_type.iter().map(chunks).max().unwrap_or(0);
        let partial = eager.scratch(DType::Float32.size() * of_type.len() as u64 * most);
        norms.extend(of_type.iter().map(|one| eager.scratch(one.dtype.size())));
        drop(partial);
    }
    let Some(dtype) = gradients.first().map(|gradient| gradient.dtype) else {
        return;
    };
    let count = dtype.size() * norms.len() as u64;
    let stacked = eager.scratch(count);
    // Norms of shards are stacked into a tensor of which each rank has a part, copied, and summed over the ranks.
    let received = is_sharded.then(|| {
        let [copied, sent, received] = [(); 3].map(|()| eager.scratch(count));
        drop((copied, sent));
        received
    });
    let total = Rc::new(eager.empty(&[], dtype));
    drop(received);
    drop(stacked);
    norms.drain(..).rev().for_each(drop);
    let number = |eager: &mut Eager| eager.scratch(dtype.size());
    let sum = number(eager);
    let inverse = number(eager);
    let coefficient = number(eager);
    drop((inverse, sum));
    let _clamped = number(eager);
    drop(coefficient);
    let mut inputs = vec![&*total];
    inputs.extend(gradients.iter().map(|gradient| &**gradient));
    let outputs: Vec<_> = gradients.iter().map(|gradient| &**gradient).collect();
    eager.launch(Kernel::ClipGradNorm { max_norm }, &inputs, &outputs);
}
