//! Recurrent networks through cuDNN (`_cudnn_rnn` in PyTorch's cudnn/RNN.cpp).

use std::rc::Rc;

use super::Recurrent;
use super::launches::{BackwardInputs, Forward, Gradients};
use super::network::{Network, WorkspaceUse};
use crate::eager::Storage;
use crate::ops::prelude::*;

/// What the backward pass has to know.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) recurrent: Recurrent,
    pub(super) network: Network,
    pub(super) time: Extent,
    pub(super) batch: Extent,
}

impl Job {
    /// The tensor with steps before samples, as cuDNN wants it.
    fn steps_first(&self, x: &Tensor) -> Tensor {
        Tensor::new(self.swapped(x))
    }

    /// The tensor with its first two dimensions swapped where the module's samples come first.
    fn swapped(&self, x: &TensorBody) -> TensorBody {
        let (mut shape, mut strides) = (x.shape.clone(), x.strides.clone());
        if self.recurrent.batch_first {
            shape.swap(0, 1);
            strides.swap(0, 1);
        }
        x.alias(shape, strides)
    }
}

impl Eager {
    /// Results are the output of the last layer and the last states of all.
    ///
    /// Autocast copies the weights into one buffer of float16 and casts states and input to float16, in a
    /// bfloat16 region as well (`_cudnn_rnn_cast_reflatten`). Weights that lie in no such buffer, those in
    /// bfloat16, are copied into one for each call.
    pub(super) fn recurrent(&mut self, recurrent: Recurrent, operands: &[Tensor]) -> Outputs {
        let types: Vec<Type> = operands
            .iter()
            .map(|operand| (operand.dtype, operand.shape.to_vec()))
            .collect();
        let network = recurrent.network(&types);
        let (network, [time, batch]) = network.expect("checked when the graph was built");
        let job = Job {
            recurrent,
            network,
            time,
            batch,
        };
        let states = recurrent.cell.states();
        if recurrent.train && network.dropout {
            self.use_dropout_state();
        }
        let mut hidden: Vec<Tensor> = operands[1..=states].to_vec();
        let mut weights: Vec<Tensor> = operands[1 + states..].to_vec();
        let mut x = Tensor::clone(&operands[0]);
        let mut flat = None;
        if self.autocast.is_some() {
            let half = DType::Float16;
            if weights.iter().all(|weight| is_cast(weight.dtype)) {
                let (buffer, views) = self.flat_half_weights(network, &weights);
                flat = Some(buffer);
                weights = views;
            }
            for state in hidden.iter_mut().rev().filter(|state| is_cast(state.dtype)) {
                *state = self.cast(state, half);
            }
            if is_cast(x.dtype) {
                x = self.cast(&x, half);
            }
        }
        let results = self.cudnn_recurrent(job, &x, &hidden, &weights, flat)?;
        // Casts go in this order.
        drop(x);
        drop(hidden);
        Ok(results)
    }

    fn cudnn_recurrent(
        &mut self,
        job: Job,
        x: &Tensor,
        hidden: &[Tensor],
        weights: &[Tensor],
        flat: Option<Tensor>,
    ) -> Outputs {
        let (recurrent, network, lengths) = (job.recurrent, job.network, [job.time, job.batch]);
        let mut inputs = vec![Some(x)];
        inputs.extend(weights.iter().map(Some));
        inputs.extend(hidden.iter().map(Some));
        let mut draft = OpRecord::new(self, &inputs);
        draft.save(self, "cx", hidden.get(1))?;
        draft.save(self, "hx", &hidden[0])?;
        draft.save(self, "input", x)?;
        let dense = self.dense_copy(&job.steps_first(x));
        let features = Extent::fixed(network.outputs() * network.directions);
        let y = self.empty(&[job.time, job.batch, features], x.dtype);
        let last: Vec<TensorBody> = hidden
            .iter()
            .map(|state| self.empty(&state.shape, state.dtype))
            .collect();
        // Weights of bfloat16 parameters lie apart.
        let flat = match flat {
            Some(flat) => Some(flat),
            None if weights.iter().any(|weight| weight.dtype == DType::BFloat16) => {
                let elements = [Extent::fixed(network.weights())];
                Some(Tensor::new(self.empty(&elements, x.dtype)))
            }
            None => None,
        };
        let pass = if recurrent.train {
            WorkspaceUse::Forward
        } else {
            WorkspaceUse::Inference
        };
        let workspace = self.recurrent_scratch(job, x.dtype, pass);
        let dtype = x.dtype;
        let reserve = recurrent.train.then(|| {
            let of = (network, dtype, lengths);
            let rule = |&(network, dtype, [time, batch]): &(Network, DType, [Extent; 2]), size| {
                network.reserve(dtype, time.at(size), batch.at(size))
            };
            let storage = self.scratch_by("cuDNN's reserve space", of, rule);
            Tensor::new(TensorBody::over(&storage, Sizes::default(), DType::UInt8))
        });
        let forward = Forward {
            x: &dense,
            hidden,
            weights,
            y: &y,
            last: &last,
            workspace: &workspace,
            reserve: reserve.as_ref().map(|reserve| &reserve.storage),
        };
        self.launch_recurrent(&job, &forward);
        drop((workspace, dense));
        let kept = Tensor::new(job.swapped(&y));
        draft.save(self, "result0", &kept)?;
        drop(kept);
        draft.save(self, "reserve", reserve.as_ref())?;
        draft.save(self, "weight_buf", flat.as_ref())?;
        for weight in weights {
            draft.save(self, "weight", weight)?;
        }
        drop((reserve, flat));
        let wanted: Vec<bool> = inputs
            .iter()
            .flatten()
            .map(|input| input.requires_grad())
            .collect();
        let y = job.swapped(&y);
        let made = std::iter::once(y).chain(last).collect();
        Ok(
            draft.finish_many(self, made, move |eager, gradients, saved| {
                eager.recurrent_grads(job, &wanted, gradients, saved)
            }),
        )
    }

    /// `_cudnn_rnn_backward`: gradients that did not arrive are zeros; the input's gradient comes first, in any
    /// case, then those of all weights in one buffer.
    fn recurrent_grads(
        &mut self,
        job: Job,
        wanted: &[bool],
        gradients: &[Option<Tensor>],
        saved: &Saved,
    ) -> Vec<Option<Tensor>> {
        let none = || wanted.iter().map(|_| None).collect();
        if gradients.iter().all(Option::is_none) {
            return none();
        }
        let (recurrent, network) = (job.recurrent, job.network);
        let (x, y, hidden) = (saved.get("input"), saved.get("result0"), saved.get("hx"));
        let states = [Some(hidden), saved.find("cx")];
        let given = |eager: &mut Eager, at: usize, like: &Tensor| {
            if let Some(Some(gradient)) = gradients.get(at) {
                return Tensor::clone(gradient);
            }
            Tensor::new(eager.zeros(&like.shape, like.dtype))
        };
        let of_y = given(self, 0, y);
        let of_states: Vec<Tensor> = states
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(i, state)| given(self, 1 + i, state))
            .collect();
        // The input's and the states'.
        let dense_x = self.dense_copy(&job.steps_first(x));
        let dense_y = self.dense_copy(&job.steps_first(&of_y));
        let made = self.empty(&dense_x.shape, x.dtype);
        let dense_states: Vec<Tensor> = of_states
            .iter()
            .map(|state| self.dense_copy(state))
            .collect();
        let made_like = |state: &Tensor| Some(Tensor::new(self.empty(&state.shape, state.dtype)));
        let grad_states: Vec<Option<Tensor>> =
            states.into_iter().flatten().map(made_like).collect();
        let workspace = self.recurrent_scratch(job, x.dtype, WorkspaceUse::Backward);
        // There is none where the forward pass was not in training.
        let reserve = saved.find("reserve").map(|reserve| &reserve.storage);
        let hidden: Vec<&Tensor> = states.into_iter().flatten().collect();
        let weights = &saved_weights(saved, wanted.len() - 1 - hidden.len());
        let y = job.swapped(y);
        let past = BackwardInputs {
            x: &dense_x,
            y: &y,
            hidden: &hidden,
            weights,
            workspace: &workspace,
            reserve,
        };
        let gradients = Gradients {
            of_y: &dense_y,
            of_last: &dense_states,
            grad_x: &made,
            grad_states: &grad_states.iter().flatten().collect::<Vec<_>>(),
        };
        self.launch_recurrent_grads(&job, &past, &gradients);
        let grad_x = Tensor::new(job.swapped(&made));
        drop((made, workspace, dense_states, dense_y, dense_x));
        // The weights'.
        let (first, last) = (1, wanted.len() - recurrent.cell.states());
        let mut grad_weights: Vec<Option<Tensor>> = vec![None; last - first];
        if wanted[first..last].contains(&true) {
            let dense_x = self.dense_copy(&job.steps_first(x));
            let all = self.empty(&[Extent::fixed(network.weights())], x.dtype);
            let workspace = self.recurrent_scratch(job, x.dtype, WorkspaceUse::Backward);
            let shapes = network.parameters(recurrent.biases);
            let parts = views(&all, &shapes);
            let past = BackwardInputs {
                x: &dense_x,
                y: &y,
                hidden: &hidden,
                weights,
                workspace: &workspace,
                reserve,
            };
            self.launch_recurrent_weight_grads(&job, &past, &parts);
            drop((workspace, dense_x));
            grad_weights = parts
                .into_iter()
                .map(|view| Some(Tensor::new(view)))
                .collect();
        }
        for state in of_states.into_iter().rev() {
            drop(state);
        }
        drop(of_y);
        let all = std::iter::once(Some(grad_x))
            .chain(grad_weights)
            .chain(grad_states);
        let of = |(gradient, wanted): (Option<Tensor>, &bool)| gradient.filter(|_| *wanted);
        all.zip(wanted).map(of).collect()
    }

    /// `get_dropout_state`: a seed, and the state, which is made once.
    fn use_dropout_state(&mut self) {
        const NAME: &str = "cuDNN's dropout state";
        if !self.keeps(NAME) {
            drop(self.scratch(8));
            self.keep_scratch(NAME, 49_152 * self.capability.multiprocessors);
        }
    }

    fn recurrent_scratch(&mut self, job: Job, dtype: DType, pass: WorkspaceUse) -> Rc<Storage> {
        let name = "cuDNN's workspace of a recurrent network";
        let of = (
            job.network,
            dtype,
            [job.time, job.batch],
            pass,
            self.capability,
        );
        self.scratch_by(name, of, |&(network, dtype, lengths, pass, card), size| {
            network.workspace(dtype, lengths.map(|length| length.at(size)), pass, card)
        })
    }

    /// The weights in one buffer of float16, as casts of their own that share its memory.
    fn flat_half_weights(&mut self, network: Network, weights: &[Tensor]) -> (Tensor, Vec<Tensor>) {
        let half = DType::Float16;
        let flat = self.empty(&[Extent::fixed(network.weights())], half);
        let shapes: Vec<Vec<Extent>> = weights.iter().map(|weight| weight.shape.to_vec()).collect();
        let cast = |(weight, view): (&Tensor, TensorBody)| {
            let draft = OpRecord::new(self, &[Some(weight)]);
            self.launch(Kernel::Copy, &[weight], &[&view]);
            let from = weight.dtype;
            draft.finish_one(self, view, move |eager, gradient, _| {
                eager.copy_as(gradient, from)
            })
        };
        let casts = weights
            .iter()
            .zip(views(&flat, &shapes))
            .map(cast)
            .collect();
        (Tensor::new(flat), casts)
    }
}

/// The weights, which are saved last.
fn saved_weights(saved: &Saved, count: usize) -> Vec<&Tensor> {
    let all: Vec<&Tensor> = saved.iter().collect();
    all[all.len().saturating_sub(count)..].to_vec()
}

/// Whether `_cudnn_rnn_cast_reflatten` casts a type.
fn is_cast(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::Float64 && dtype != DType::Float16
}

/// Consecutive parts of a buffer. cuDNN orders them in its own way, which nothing depends on.
fn views(buffer: &TensorBody, shapes: &[Vec<Extent>]) -> Vec<TensorBody> {
    let mut offset = buffer.offset;
    let part = |shape: &Vec<Extent>| {
        let mut view = buffer.alias(shape.clone(), contiguous_strides(shape));
        view.offset = offset;
        offset = offset + numel(shape);
        view
    };
    shapes.iter().map(part).collect()
}
