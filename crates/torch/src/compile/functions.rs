//! Calls of custom `torch.autograd.Function`s.
//!
//! See Note [Custom functions].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::casts::is_without_autocast;
use super::forward::{Environment, Forward};
use crate::eager::{Eager, Frame, OpRecord, Saved, Slot, Stop, Tensor};
use crate::graph::{FunctionCall, Graph, ValueId};
use crate::shape::{DType, Sizes};
use batchfit_step::Variant;

/// The calls of a graph, ready to run.
pub(super) struct Functions {
    /// For the first node of each, its place in the graph's list.
    starts: BTreeMap<usize, usize>,
    backwards: Vec<Rc<Forward>>,
}

impl Functions {
    pub(super) fn of(eager: &Eager, graph: &Graph, variant: &Variant) -> Result<Functions, Stop> {
        let calls = graph.functions.iter().enumerate();
        let backward = |call: &FunctionCall| {
            let graph = Arc::new(call.backward.clone());
            Ok(Rc::new(Forward::of_backward(eager, &graph, variant)?))
        };
        Ok(Functions {
            starts: calls
                .map(|(index, call)| (call.nodes.start, index))
                .collect(),
            backwards: graph
                .functions
                .iter()
                .map(backward)
                .collect::<Result<_, Stop>>()?,
        })
    }

    /// The calls that begin with one of these nodes.
    pub(super) fn inside(&self, nodes: &Range<usize>) -> impl Iterator<Item = usize> {
        self.starts.range(nodes.clone()).map(|(_, index)| *index)
    }

    /// The call that begins with this node.
    pub(super) fn starting_at(&self, node: usize) -> Option<usize> {
        self.starts.get(&node).copied()
    }
}

/// Values that are kept while some nodes run, though Python lets go of them.
#[derive(Debug, Default)]
pub(super) struct PinnedValues {
    kept: BTreeSet<ValueId>,
    /// Those that it has let go of, in order.
    due: Vec<ValueId>,
}

impl PinnedValues {
    /// Python lets go of a value; whether it dies now.
    pub(super) fn lets_go(&mut self, id: ValueId) -> bool {
        let kept = self.kept.contains(&id);
        if kept {
            self.due.push(id);
        }
        !kept
    }
}

/// The backward pass of one call.
struct BackwardCall {
    forward: Rc<Forward>,
    /// The values of saved tensors in the backward graph, in the order in which they were saved.
    saved: Vec<ValueId>,
    /// Trained parameters among them, whose casts autocast keeps.
    parameters: BTreeMap<ValueId, Tensor>,
    /// Saved tensors that a checkpoint has dropped: only the function's own variables own what it restores.
    dropped: Vec<(ValueId, Slot)>,
    /// Attributes of `ctx`.
    held: Vec<(ValueId, Tensor)>,
    /// For each output its gradient, and what zeros in its place look like.
    gradients: Vec<(Option<ValueId>, Sizes, DType)>,
    results: Vec<Option<ValueId>>,
    autocast: Option<DType>,
}

impl Forward {
    /// Runs the nodes of a custom function, and records them as one operation.
    pub(super) fn call_function(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        index: usize,
    ) -> Result<(), Stop> {
        let graph = Arc::clone(&self.graph);
        let call = &graph.functions[index];
        let inputs = call
            .inputs
            .iter()
            .map(|(id, _)| self.find(environment, *id));
        let inputs: Vec<Option<Tensor>> = inputs.collect();
        let inputs: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
        let mut draft = OpRecord::new(eager, &inputs);
        let before = (eager.grad_enabled, eager.autocast);
        eager.grad_enabled = false;
        let mut keeping = PinnedValues::default();
        let outputs = call.outputs.iter().map(|output| output.value);
        keeping.kept = outputs.chain(call.kept()).collect();
        let uncast = self.cast_inputs(eager, environment, call, &mut keeping);
        let autocast = eager.autocast;
        for node in call.nodes.clone() {
            self.step(eager, environment, node, &mut keeping)?;
        }
        (eager.grad_enabled, eager.autocast) = before;
        if draft.is_recorded() {
            let backward = BackwardCall {
                forward: Rc::clone(&self.functions.backwards[index]),
                saved: call.saved.iter().map(|(_, inner)| *inner).collect(),
                parameters: self.trained_parameters(environment, call),
                dropped: self.save(eager, environment, call, &mut draft)?,
                held: call
                    .held
                    .iter()
                    .filter_map(|(id, inner)| {
                        Some((*inner, self.find(environment, *id)?.detached()))
                    })
                    .collect(),
                gradients: Vec::new(),
                results: call.inputs.iter().map(|(_, result)| *result).collect(),
                autocast: autocast.filter(|_| call.backward_autocast),
            };
            self.record(eager, environment, call, draft, backward);
        }
        for (id, tensor) in uncast {
            environment.remove(&id);
            environment.extend(tensor.map(|tensor| (id, tensor)));
        }
        for id in keeping.due {
            environment.remove(&id);
        }
        Ok(())
    }

    /// `custom_fwd(cast_inputs=...)`: the arguments as `forward` gets them, and autocast off. Gives what
    /// stood in their places.
    fn cast_inputs(
        &self,
        eager: &mut Eager,
        environment: &mut Environment,
        call: &FunctionCall,
        keeping: &mut PinnedValues,
    ) -> Vec<(ValueId, Option<Tensor>)> {
        if is_without_autocast(&self.graph, &self.graph.nodes[call.nodes.start]) {
            eager.autocast = None;
        }
        let (Some(dtype), Some(_)) = (call.cast_inputs, eager.autocast) else {
            return Vec::new();
        };
        eager.autocast = None;
        let mut uncast = Vec::new();
        for (id, _) in &call.inputs {
            let tensor = self.find(environment, *id);
            let Some(tensor) = tensor.filter(|tensor| {
                let dtypes = [dtype, DType::Float64];
                tensor.dtype.is_float() && !dtypes.contains(&tensor.dtype)
            }) else {
                continue;
            };
            let cast = eager.cast(&tensor, dtype);
            uncast.push((*id, environment.insert(*id, cast)));
            // The call's own arguments, until it returns.
            keeping.kept.insert(*id);
        }
        uncast
    }

    /// Saves what `save_for_backward` got. Gives what a checkpoint drops of it.
    fn save(
        &self,
        eager: &mut Eager,
        environment: &Environment,
        call: &FunctionCall,
        draft: &mut OpRecord,
    ) -> Result<Vec<(ValueId, Slot)>, Stop> {
        let mut dropped = Vec::new();
        for (id, inner) in &call.saved {
            let tensor = self.find(environment, *id);
            let tensor = tensor.expect("kept while the function ran");
            match eager.pack(&tensor)? {
                Slot::Held(tensor) => draft.keep("saved", tensor),
                Slot::Recomputed(frame, note) => {
                    draft.hold_frame(Rc::clone(&frame));
                    dropped.push((*inner, Slot::Recomputed(frame, note)));
                }
                Slot::Frame(frame) => draft.hold_frame(frame),
            }
        }
        Ok(dropped)
    }

    fn trained_parameters(
        &self,
        environment: &Environment,
        call: &FunctionCall,
    ) -> BTreeMap<ValueId, Tensor> {
        let saved = call.saved.iter();
        let trained = saved.filter_map(|(id, inner)| {
            let tensor = self.find(environment, *id)?;
            tensor.leaf().is_some().then_some((*inner, tensor))
        });
        trained.collect()
    }

    /// Makes the results of a call those of one recorded operation.
    fn record(
        &self,
        eager: &mut Eager,
        environment: &mut Environment,
        call: &FunctionCall,
        draft: OpRecord,
        mut backward: BackwardCall,
    ) {
        let mut bodies = Vec::new();
        for output in &call.outputs {
            let result = self.find(environment, output.value);
            let result = result.expect("kept while the function ran");
            let (shape, dtype) = (result.shape.clone(), result.dtype);
            bodies.push(result.alias(shape.clone(), result.strides.clone()));
            backward.gradients.push((output.gradient, shape, dtype));
        }
        let run = move |eager: &mut Eager, gradients: &[Option<Tensor>], saved: &Saved| {
            backward.run(eager, gradients, saved)
        };
        let made = draft.finish_many(eager, bodies, run);
        for (output, made) in call.outputs.iter().zip(made) {
            let result = if output.differentiable {
                made
            } else {
                made.detached()
            };
            environment.insert(output.value, result);
        }
    }

    /// Gradients are off, and so is autocast unless the function brings it back.
    fn run_backward(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        results: &[Option<ValueId>],
    ) -> Vec<Option<Tensor>> {
        let mut keeping = PinnedValues::default();
        keeping.kept.extend(results.iter().flatten());
        for node in 0..self.graph.nodes.len() {
            // Nothing is recomputed here, so only a cancelled compilation stops early; the engine notices too.
            if self.step(eager, environment, node, &mut keeping).is_err() {
                break;
            }
        }
        let result = |id: &ValueId| environment.get(id).map(Tensor::clone);
        let results = results.iter().map(|id| id.as_ref().and_then(result));
        results.collect()
    }
}

impl BackwardCall {
    fn run(
        self,
        eager: &mut Eager,
        gradients: &[Option<Tensor>],
        saved: &Saved,
    ) -> Vec<Option<Tensor>> {
        let mut zeros = Vec::new();
        let mut environment = Environment::default();
        for ((id, shape, dtype), gradient) in self.gradients.into_iter().zip(gradients) {
            let Some(id) = id else { continue };
            let gradient = gradient.clone().unwrap_or_else(|| {
                let made = Rc::new(eager.zeros(&shape, dtype));
                zeros.push(Tensor::clone(&made));
                made
            });
            environment.insert(id, gradient);
        }
        for (id, tensor) in self.saved.into_iter().zip(saved.iter()) {
            let tensor = self.parameters.get(&id).unwrap_or(tensor);
            environment.insert(id, Tensor::clone(tensor));
        }
        // A function that does not look at what it saved does not make the checkpoint run again.
        let nodes = self.forward.graph.nodes.iter();
        let read = nodes.flat_map(|node| &node.inputs);
        let read: BTreeSet<ValueId> = read.chain(self.results.iter().flatten()).copied().collect();
        if self.dropped.iter().any(|(id, _)| read.contains(id)) {
            for (id, slot) in self.dropped {
                if let Slot::Recomputed(frame, note) = slot {
                    let Ok(tensor) = Frame::unpack(&frame, eager, note) else {
                        // Cancelled, which the engine notices too before it goes on.
                        return vec![None; self.results.len()];
                    };
                    let tensor = self.parameters.get(&id).cloned().unwrap_or(tensor);
                    environment.insert(id, tensor);
                }
            }
        }
        for (id, tensor) in &self.held {
            environment.insert(*id, Tensor::clone(tensor));
        }
        let before = (eager.grad_enabled, eager.autocast, eager.casts.take());
        (eager.grad_enabled, eager.autocast) = (false, self.autocast);
        let results = self
            .forward
            .run_backward(eager, &mut environment, &self.results);
        drop(environment);
        eager.casts.clear();
        (eager.grad_enabled, eager.autocast, eager.casts) = before;
        // Python lets go of a tuple's items from the last to the first.
        zeros.drain(..).rev().for_each(drop);
        let held = self.held.into_iter().map(|(_, tensor)| tensor);
        eager.hold_until_graph_dies(held.collect());
        results
    }
}
