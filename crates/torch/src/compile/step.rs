//! Construction and one training step, in order.
//!
//! The canonical loop: for each micro-step a batch, the forward pass inside autocast, `loss / accum`,
//! backward; then the optimizer and `zero_grad(set_to_none=True)`. See Note [One micro-step].

use std::rc::Rc;
use std::sync::Arc;

use super::construction::construct;
use super::forward::{Environment, Forward};
use super::optimizer::{self, Trained};
use super::parallel::{Wrapper, send_from};
use crate::eager::{Eager, Stop, Storage, Tensor, Thread, backward};
use crate::graph::{Content, Graph, Input, ValueId};
use crate::limits::Cancel;
use crate::program::{Capability, Category, Host, Instruction, Kernel, Program, Section, Timeline};
use crate::shape::DType;
use batchfit_step::{Mode, OptimizerImpl, Precision, Variant};

/// A training process: a model on the device, and what outlives a step.
pub(super) struct Training {
    eager: Eager,
    graph: Arc<Graph>,
    variant: Variant,
    forward: Rc<Forward>,
    trained: Vec<Trained>,
    scaler: Option<Scaler>,
    wrapper: Wrapper,
    /// The trained parameters that this rank's optimizer updates, by their places, in its order.
    mine: Vec<usize>,
    /// Those of each rank, where a rank updates a part of them; empty where each updates all.
    partition: Vec<Vec<usize>>,
    /// What the latest step asked of the card and of the host.
    timed: Timeline,
}

/// Micro-steps after the first that differ where each sends gradients: buckets are made again by then, and what a hook made before
/// is gone.
const MOST_APART: u32 = 4;

/// What a `GradScaler` keeps on the device.
struct Scaler {
    scale: Tensor,
    growth: Tensor,
}

impl Training {
    /// `model.to("cuda", dtype)`, and the wrapper that the variant asks for.
    pub(super) fn construct(
        mut eager: Eager,
        graph: Arc<Graph>,
        variant: &Variant,
    ) -> Result<Training, Stop> {
        eager.go_on()?;
        let constructed = construct(&mut eager, &graph, variant);
        eager.go_on()?;
        let mut forward = Forward::new(&eager, &graph, variant, constructed.tensors)?;
        forward.scope(&constructed.wrapper);
        Ok(Training {
            mine: constructed.mine,
            partition: constructed.partition,
            wrapper: constructed.wrapper,
            forward: Rc::new(forward),
            eager,
            graph,
            variant: variant.clone(),
            trained: constructed.trained,
            scaler: None,
            timed: Timeline::default(),
        })
    }

    /// Compiles construction, the first step and a later one.
    pub(super) fn into_program(mut self) -> Result<Program, Stop> {
        let recorder = self.eager.recorder().clone();
        let construction = recorder.take_section();
        drop(recorder.take_ticks());
        // The last one is every later one.
        let steps = (0..self.wrapper.steps()).map(|_| self.step());
        let steps = steps.collect::<Result<Vec<_>, Stop>>()?;
        let timeline = Timeline {
            works: recorder.take_works(),
            ..std::mem::take(&mut self.timed)
        };
        Ok(self.program(construction, steps, timeline))
    }

    fn program(
        &self,
        construction: Vec<Instruction>,
        steps: Vec<Vec<Section>>,
        timeline: Timeline,
    ) -> Program {
        let recorder = self.eager.recorder();
        Program {
            tensors: recorder.take_tensors(),
            sizes: recorder.take_sizes(),
            convolutions: recorder.take_convolutions(),
            construction,
            steps,
            micro_steps: self.variant.accumulation,
            timeline,
            host_bytes: recorder.host_bytes(),
        }
    }

    /// One step. From its second micro-step on, each repeats the one before; see Note [Repeated micro-steps].
    fn step(&mut self) -> Result<Vec<Section>, Stop> {
        let recorder = self.eager.recorder().clone();
        let mut sections = Vec::new();
        let mut timed = Vec::new();
        let mut take = |times: u32| {
            timed.push((recorder.take_ticks(), times));
            sections.push(Section {
                instructions: recorder.take_section(),
                times,
            });
            timed.len() - 1
        };
        // All but the first are alike; but the last where that alone sends gradients, and but those that follow the first
        // messages where all do.
        let left = self.variant.accumulation - 1;
        let sends = self.wrapper.sends();
        let last_differs = left > 0 && sends == Some(false);
        let sends = sends == Some(true);
        let apart = if sends { left.min(MOST_APART) } else { 0 };
        let alike = left - apart - u32::from(last_differs);
        self.micro_step(sends || left == 0)?;
        for _ in 0..apart {
            take(1);
            self.micro_step(sends)?;
        }
        if left > apart {
            take(1);
        }
        let mut repeated = None;
        if alike > 0 {
            self.micro_step(sends)?;
            repeated = Some(take(alike));
        }
        if last_differs {
            self.micro_step(true)?;
        }
        if self.variant.mode == Mode::Train {
            self.update()?;
        }
        take(1);
        self.timed = Timeline {
            works: Vec::new(),
            sections: timed,
            repeated,
        };
        Ok(sections)
    }

    fn micro_step(&mut self, sends: bool) -> Result<(), Stop> {
        match self.variant.mode {
            Mode::Train => self.training(sends),
            Mode::Inference => self.inference(),
        }
    }

    /// What follows the last micro-step: unscale, optimizer, scaler update, `zero_grad`.
    fn update(&mut self) -> Result<(), Stop> {
        // To clip them, gradients are unscaled by the loop itself, and then by no optimizer.
        let clips = self.variant.clip_grad_norm.is_some();
        let by_optimizer = self.variant.optimizer_impl == OptimizerImpl::Fused && !clips;
        self.eager.recorder().note(Host::Step, 1);
        let found_inf = self.unscale(by_optimizer);
        // `scaler.step` reads the flag, unless the optimizer does (`_maybe_opt_step` in torch/amp/grad_scaler.py).
        if found_inf.is_some() && !by_optimizer {
            self.eager.recorder().wait();
        }
        if let Some(norm) = self.variant.clip_grad_norm {
            let is_sharded = self.wrapper.sharded().is_some();
            let eager = &mut self.eager;
            optimizer::clip_grad_norm(eager, &self.trained, norm.into(), is_sharded);
        }
        let handed_over = self.hand_over_scale(by_optimizer);
        let flag = found_inf.as_ref();
        optimizer::step(
            &mut self.eager,
            &self.variant,
            &mut self.trained,
            &self.mine,
            flag,
        )?;
        self.send_updated();
        if let (Some(scaler), Some(found_inf)) = (&self.scaler, &found_inf) {
            let outputs = [&*scaler.scale, &*scaler.growth];
            self.eager
                .launch(Kernel::ScalerUpdate, &[found_inf], &outputs);
        }
        drop((handed_over, found_inf));
        optimizer::zero_grad(&self.trained);
        Ok(())
    }

    /// What a rank updated alone, it sends to all others (`ZeroRedundancyOptimizer._sync_params`).
    fn send_updated(&mut self) {
        for (rank, part) in (0..).zip(&self.partition) {
            for index in part {
                send_from(&mut self.eager, rank, &self.trained[*index].tensor);
            }
        }
    }

    fn training(&mut self, sends: bool) -> Result<(), Stop> {
        self.eager.recorder().note(Host::MicroStep, 1);
        let mut batch = self.make_batch();
        let mut environment: Environment = batch.iter().cloned().collect();
        self.wrapper.before_forward(&mut self.eager, sends);
        self.eager.set_category(Category::Activations);
        self.eager.autocast = self.variant.precision.autocast();
        self.forward_pass(&mut environment)?;
        let undivided = environment
            .remove(&self.graph.loss)
            .expect("the last node makes the loss");
        drop(environment);
        self.eager.set_label(&Arc::from("loss"));
        let share = 1.0 / f64::from(self.variant.accumulation);
        self.eager.launch(Kernel::ObserveLoss, &[&undivided], &[]);
        let loss = self.eager.mul_scalar(&undivided, share);
        let is_part = self.eager.elements_of_storage(&undivided) != undivided.numel();
        let held = is_part.then_some(undivided);
        self.eager.autocast = None;
        self.eager.casts.clear();
        let root = self.scale(&loss);
        let seed = self.eager.empty(&[], root.dtype);
        self.eager.launch(Kernel::Fill(1.0), &[], &[&seed]);
        let seed = Rc::new(seed);
        self.eager.set_category(Category::ActivationGradients);
        self.eager.thread = Thread::Backward;
        backward(&mut self.eager, &root, Rc::clone(&seed))?;
        let leaves = self.trained.iter().map(|trained| &*trained.leaf);
        self.wrapper.after_backward(&mut self.eager, leaves);
        self.eager.thread = Thread::Main;
        drop((seed, root));
        batch.drain(..).rev().for_each(drop);
        self.eager.graph_dies();
        drop((held, loss));
        Ok(())
    }

    /// The model, and what makes its loss. A wrapper may copy or cast what the model is given and returns.
    fn forward_pass(&mut self, environment: &mut Environment) -> Result<(), Stop> {
        let forward = Rc::clone(&self.forward);
        let nodes = forward.nodes();
        let end = forward.model_end();
        let mut given = Vec::new();
        if let Some(sharded) = self.wrapper.sharded() {
            let inputs = self.graph.inputs.iter().map(|input| input.value);
            given = inputs
                .filter_map(|id| Some((id, environment.remove(&id)?)))
                .collect();
            let tensors = given.iter().map(|(_, tensor)| Rc::clone(tensor)).collect();
            let tensors = sharded.before_forward(&mut self.eager, sharded.root(), tensors);
            let ids = given.iter().map(|(id, _)| *id);
            environment.extend(ids.zip(tensors));
        }
        forward.run(&mut self.eager, environment, nodes.start..end)?;
        let results = [self.graph.prediction, self.graph.loss];
        if self.wrapper.copies_results()
            && let Some(made) = environment.remove(&results[0])
        {
            let copy = self.eager.clone_of(&made);
            drop(made);
            environment.insert(results[0], copy);
        }
        if let Some(sharded) = self.wrapper.sharded() {
            let made = results.iter().filter_map(|id| environment.get(id));
            sharded.after_forward(&mut self.eager, sharded.root(), made);
            let mut made = Vec::new();
            for id in results {
                if let Some(result) = environment.remove(&id) {
                    environment.insert(id, sharded.handed_out(&mut self.eager, &result));
                    made.push(result);
                }
            }
            sharded.forward_ends();
            drop(made);
            if self.graph.loss_is_model_output {
                environment.remove(&self.graph.prediction);
            }
            // Casts of inputs were arguments of the model's.
            for (id, tensor) in given {
                if environment.contains_key(&id) {
                    environment.insert(id, tensor);
                }
            }
        }
        forward.run(&mut self.eager, environment, end..nodes.end)
    }

    fn inference(&mut self) -> Result<(), Stop> {
        self.eager.recorder().note(Host::MicroStep, 1);
        let mut batch = self.make_batch();
        let mut environment: Environment = batch.iter().cloned().collect();
        self.eager.set_category(Category::Activations);
        self.eager.autocast = self.variant.precision.autocast();
        self.eager.grad_enabled = false;
        let forward = Rc::clone(&self.forward);
        forward.run(&mut self.eager, &mut environment, forward.nodes())?;
        drop(environment);
        self.eager.autocast = None;
        self.eager.casts.clear();
        batch.drain(..).rev().for_each(drop);
        Ok(())
    }

    /// Batch tensors in the order in which the loop makes them.
    fn make_batch(&mut self) -> Vec<(ValueId, Tensor)> {
        self.eager.set_category(Category::Batch);
        let graph = Arc::clone(&self.graph);
        let make = |eager: &mut Eager, input: &Input| {
            let value = graph.value(input.value);
            eager.set_label(&Arc::from(value.name.as_str()));
            let dtype = super::stored(&self.variant, value.dtype);
            let tensor = eager.empty(&value.shape, dtype);
            let kernel = match input.content {
                Content::Normal => Kernel::RandomNormal,
                Content::Below(bound) => Kernel::RandomBelow(bound),
            };
            eager.launch(kernel, &[], &[&tensor]);
            (input.value, Rc::new(tensor))
        };
        self.graph
            .inputs
            .iter()
            .map(|input| make(&mut self.eager, input))
            .collect()
    }

    /// `scaler.scale(loss)`; the loss itself without a scaler.
    fn scale(&mut self, loss: &Tensor) -> Tensor {
        if self.variant.precision != Precision::AmpFp16 {
            return Rc::clone(loss);
        }
        if self.scaler.is_none() {
            self.eager.set_label(&Arc::from("GradScaler"));
            self.eager.set_category(Category::OptimizerState);
            let scale = self.eager.empty(&[], DType::Float32);
            // A scale that cannot overflow: predictions and probes never skip a step.
            self.eager.launch(Kernel::Fill(1.0), &[], &[&scale]);
            let growth = self.eager.zeros(&[], DType::Int32);
            self.eager.set_category(Category::Activations);
            self.scaler = Some(Scaler {
                scale: Rc::new(scale),
                growth: Rc::new(growth),
            });
        }
        let scale = self.scaler.as_ref().map(|scaler| Rc::clone(&scaler.scale));
        let ended = self.eager.mul(loss, &scale.expect("made above"));
        ended.expect("only a recomputation stops early")
    }

    /// `scaler.unscale_`: gives the flag that tells the optimizer to skip.
    fn unscale(&mut self, by_optimizer: bool) -> Option<Tensor> {
        let scaler = self.scaler.as_ref()?;
        self.eager.set_category(Category::OptimizerScratch);
        self.eager.set_label(&Arc::from("GradScaler"));
        let eager = &mut self.eager;
        // The inverse scale in double, then in float; a fused optimizer divides by the scale itself, and
        // one in float stands in. Then flags, one of which lives until `update`.
        let inverse = if by_optimizer {
            eager.scratch(4)
        } else {
            let double = eager.scratch(8);
            let _reciprocal = eager.scratch(8);
            drop(double);
            eager.scratch(4)
        };
        let zero = eager.scratch(4);
        let found_inf = Rc::new(eager.zeros(&[], DType::Float32));
        let copied = eager.scratch(4);
        let gradients: Vec<Tensor> = self
            .trained
            .iter()
            .filter_map(|trained| trained.leaf.grad.borrow().clone())
            .collect();
        let mut inputs = vec![&*scaler.scale];
        inputs.extend(gradients.iter().map(|gradient| &**gradient));
        let mut outputs = vec![&*found_inf];
        outputs.extend(gradients.iter().map(|gradient| &**gradient));
        eager.launch(Kernel::Unscale, &inputs, &outputs);
        drop((copied, inverse, zero));
        Some(found_inf)
    }

    /// What a fused optimizer is given besides gradients: the scale and the flag, as tensors of their own.
    fn hand_over_scale(&mut self, by_optimizer: bool) -> Vec<Rc<Storage>> {
        if self.scaler.is_none() || !by_optimizer {
            return Vec::new();
        }
        (0..2).map(|_| self.eager.scratch(4)).collect()
    }
}

/// Construction and two steps whose micro-steps are compiled one by one: what [`super::compile`] must equal, which compiles those that
/// repeat once. For tests.
///
/// # Panics
/// Where the graph does not compile.
#[doc(hidden)]
pub fn compile_unrolled(graph: &Graph, variant: &Variant, capability: Capability) -> Program {
    let eager = Eager::new(capability, &Cancel::NEVER);
    let mut training =
        Training::construct(eager, Arc::new(graph.clone()), variant).expect("the graph compiles");
    let recorder = training.eager.recorder().clone();
    let construction = recorder.take_section();
    let mut step = || {
        for _ in 0..variant.accumulation {
            training.micro_step(true).expect("the graph compiles");
        }
        training.update().expect("the graph compiles");
        vec![Section::once(recorder.take_section())]
    };
    let steps = vec![step(), step()];
    training.program(construction, steps, Timeline::default())
}

#[cfg(test)]
mod tests;
