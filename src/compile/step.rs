//! Construction and one training step, in order.
//!
//! The canonical loop: for each micro-step a batch, the forward pass inside autocast, `loss / accum`,
//! backward; then the optimizer and `zero_grad(set_to_none=True)`. See Note [One micro-step].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use super::forward::{Environment, Forward};
use super::optimizer::{self, Trained};
use super::parallel::{Model, Reducer, partition, send_from};
use crate::eager::{Eager, History, Leaf, Stop, Storage, Tensor, Thread, Watcher, backward};
use crate::graph::{Content, Graph, Input, Parameter, ParameterKind, ValueId, positions};
use crate::model::{Mode, OptimizerImpl, Parallel, Precision, Variant};
use crate::program::{Category, Initial, Kernel, Program, Section};
use crate::shape::{DType, Extent, Type};

/// A training process: a model on the device, and what outlives a step.
pub(super) struct Training {
    eager: Eager,
    graph: Arc<Graph>,
    variant: Variant,
    forward: Rc<Forward>,
    trained: Vec<Trained>,
    scaler: Option<Scaler>,
    reducer: Option<Rc<Reducer>>,
    /// The trained parameters that this rank's optimizer updates, by their places, in its order.
    mine: Vec<usize>,
    /// Those of each rank, where a rank updates a part of them; empty where each updates all.
    partition: Vec<Vec<usize>>,
}

/// Micro-steps after the first that differ where each sends gradients: buckets are made anew by then, and what a hook made before
/// is gone.
const MOST_APART: u32 = 4;

/// What a `GradScaler` keeps on the device.
struct Scaler {
    scale: Tensor,
    growth: Tensor,
}

impl Training {
    /// `model.to("cuda", dtype)`.
    pub(super) fn construct(mut eager: Eager, graph: Arc<Graph>, variant: &Variant) -> Training {
        let mut tensors = BTreeMap::new();
        let mut leaves = BTreeMap::new();
        let mut buffers = Buffers::of(&graph, variant);
        let bounds = positions(&graph);
        eager.set_category(Category::Parameters);
        for index in construction_order(&graph.parameters) {
            let parameter = &graph.parameters[index];
            let path: Arc<str> = Arc::from(parameter.path.as_str());
            eager.set_label(&path);
            let value = graph.value(parameter.value);
            let dtype = variant.precision.stored(value.dtype);
            let mut tensor = eager.empty(&value.shape, dtype);
            let bound = bounds.get(&parameter.value).copied();
            eager.launch(initial(&graph, parameter, bound), &[], &[&tensor]);
            if parameter.kind == ParameterKind::Trained && variant.mode == Mode::Train {
                let strides = tensor.strides.clone();
                let leaf = Rc::new(Leaf {
                    index,
                    path,
                    strides,
                    grad: None.into(),
                });
                tensor.history = Some(History::Leaf(Rc::clone(&leaf))).into();
                leaves.insert(index, leaf);
            }
            tensors.insert(parameter.value, Rc::new(tensor));
            if let Some(group) = buffers.completed_by(parameter.value) {
                flatten(&mut eager, group, dtype, &mut tensors);
            }
        }
        let trained: Vec<Trained> = leaves
            .into_iter()
            .map(|(index, leaf)| {
                let tensor = &tensors[&graph.parameters[index].value];
                Trained::new(leaf, Rc::clone(tensor))
            })
            .collect();
        let reducer = wrapped(&mut eager, &graph, variant, &tensors).map(Rc::new);
        eager.watcher = reducer.clone().map(|reducer| reducer as Rc<dyn Watcher>);
        let elements = trained.iter().map(|trained| trained.tensor.numel().at(1));
        let elements: Vec<u64> = elements.collect();
        let partition = match &variant.parallel {
            Parallel::Zero1(options) => partition(&elements, options.world_size),
            Parallel::None | Parallel::Ddp(_) | Parallel::Fsdp2(_) => Vec::new(),
        };
        let rank = usize::try_from(eager.rank).unwrap_or(usize::MAX);
        let mine = if partition.is_empty() {
            (0..elements.len()).collect()
        } else {
            partition.get(rank).cloned().unwrap_or_default()
        };
        Training {
            mine,
            partition,
            reducer,
            forward: Rc::new(Forward::new(&graph, variant, tensors)),
            eager,
            graph,
            variant: variant.clone(),
            trained,
            scaler: None,
        }
    }

    /// Compiles construction, the first step and a later one.
    pub(super) fn into_program(mut self) -> Result<Program, Stop> {
        let recorder = self.eager.recorder().clone();
        let construction = recorder.take_section();
        // The last one is every later one.
        let distinct = self.reducer.as_ref().map_or(2, |reducer| reducer.steps());
        let steps = (0..distinct).map(|_| self.step());
        let steps = steps.collect::<Result<Vec<_>, Stop>>()?;
        Ok(Program {
            tensors: recorder.take_tensors(),
            sizes: recorder.take_sizes(),
            convolutions: recorder.take_convolutions(),
            construction,
            steps,
            micro_steps: self.variant.accumulation,
        })
    }

    /// One step. From its second micro-step on, each repeats the one before; see Note [Repeated micro-steps].
    fn step(&mut self) -> Result<Vec<Section>, Stop> {
        let recorder = self.eager.recorder().clone();
        let mut sections = Vec::new();
        // All but the first are alike; but the last where that alone sends gradients, and but those that follow the first
        // messages where all do.
        let left = self.variant.accumulation - 1;
        let sends = self.reducer.as_ref().map(|reducer| reducer.sends_always());
        let last_differs = left > 0 && sends == Some(false);
        let sends = sends == Some(true);
        let apart = if sends { left.min(MOST_APART) } else { 0 };
        let alike = left - apart - u32::from(last_differs);
        self.micro_step(sends || left == 0)?;
        for _ in 0..apart {
            sections.push(Section::once(recorder.take_section()));
            self.micro_step(sends)?;
        }
        if left > apart {
            sections.push(Section::once(recorder.take_section()));
        }
        if alike > 0 {
            self.micro_step(sends)?;
            sections.push(Section {
                instructions: recorder.take_section(),
                times: alike,
            });
        }
        if last_differs {
            self.micro_step(true)?;
        }
        if self.variant.mode == Mode::Train {
            self.update();
        }
        sections.push(Section::once(recorder.take_section()));
        Ok(sections)
    }

    fn micro_step(&mut self, sends: bool) -> Result<(), Stop> {
        match self.variant.mode {
            Mode::Train => self.training(sends),
            Mode::Inference => self.inference(),
        }
    }

    /// What follows the last micro-step: unscale, optimizer, scaler update, `zero_grad`.
    fn update(&mut self) {
        let (optimizer, implementation) = (self.variant.optimizer, self.variant.optimizer_impl);
        // To clip them, gradients are unscaled by the loop itself, and then by no optimizer.
        let clips = self.variant.clip_grad_norm.is_some();
        let by_optimizer = self.variant.optimizer_impl == OptimizerImpl::Fused && !clips;
        let found_inf = self.unscale(by_optimizer);
        if let Some(norm) = self.variant.clip_grad_norm {
            optimizer::clip_grad_norm(&mut self.eager, &self.trained, norm.into());
        }
        let handed_over = self.hand_over_scale(by_optimizer);
        let flag = found_inf.as_ref();
        optimizer::step(
            &mut self.eager,
            optimizer,
            implementation,
            &mut self.trained,
            &self.mine,
            flag,
        );
        self.send_updated();
        if let (Some(scaler), Some(found_inf)) = (&self.scaler, &found_inf) {
            let outputs = [&*scaler.scale, &*scaler.growth];
            self.eager
                .launch(Kernel::ScalerUpdate, &[found_inf], &outputs);
        }
        drop(handed_over);
        drop(found_inf);
        optimizer::zero_grad(&self.trained);
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
        let mut batch = self.make_batch();
        let mut environment: Environment = batch.iter().cloned().collect();
        if let Some(reducer) = &self.reducer {
            reducer.before_forward(&mut self.eager, sends);
        }
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
        if let Some(reducer) = &self.reducer {
            let leaves = self.trained.iter().map(|trained| &*trained.leaf);
            reducer.after_backward(&mut self.eager, leaves);
        }
        self.eager.thread = Thread::Main;
        drop(seed);
        drop(root);
        while let Some(tensor) = batch.pop() {
            drop(tensor);
        }
        self.eager.graph_dies();
        drop(held);
        drop(loss);
        Ok(())
    }

    /// The model, and what makes its loss. A wrapper may copy what the model returns.
    fn forward_pass(&mut self, environment: &mut Environment) -> Result<(), Stop> {
        let forward = Rc::clone(&self.forward);
        let nodes = forward.nodes();
        let copies = self
            .reducer
            .as_ref()
            .is_some_and(|reducer| reducer.copies_results());
        let result = self.graph.prediction;
        let Some(end) = forward
            .maker(result)
            .filter(|_| copies)
            .map(|node| node + 1)
        else {
            return forward.run(&mut self.eager, environment, nodes);
        };
        forward.run(&mut self.eager, environment, nodes.start..end)?;
        if let Some(made) = environment.remove(&result) {
            let copy = self.eager.clone_of(&made);
            drop(made);
            environment.insert(result, copy);
        }
        forward.run(&mut self.eager, environment, end..nodes.end)
    }

    fn inference(&mut self) -> Result<(), Stop> {
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
        while let Some(tensor) = batch.pop() {
            drop(tensor);
        }
        Ok(())
    }

    /// Batch tensors in the order in which the loop makes them.
    fn make_batch(&mut self) -> Vec<(ValueId, Tensor)> {
        self.eager.set_category(Category::Batch);
        let graph = Arc::clone(&self.graph);
        let make = |eager: &mut Eager, input: &Input| {
            let value = graph.value(input.value);
            eager.set_label(&Arc::from(value.name.as_str()));
            let dtype = self.variant.precision.stored(value.dtype);
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
            let growth = self.eager.empty(&[], DType::Int32);
            self.eager.launch(Kernel::Fill(0.0), &[], &[&growth]);
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
            let reciprocal = eager.scratch(8);
            drop(double);
            let inverse = eager.scratch(4);
            drop(reciprocal);
            inverse
        };
        let zero = eager.scratch(4);
        let found_inf = Rc::new(eager.empty(&[], DType::Float32));
        eager.launch(Kernel::Fill(0.0), &[], &[&found_inf]);
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
        drop(copied);
        drop(inverse);
        drop(zero);
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

/// The wrapper that a variant asks for.
fn wrapped(
    eager: &mut Eager,
    graph: &Graph,
    variant: &Variant,
    tensors: &BTreeMap<ValueId, Tensor>,
) -> Option<Reducer> {
    let (Parallel::Ddp(options) | Parallel::Zero1(options)) = &variant.parallel else {
        return None;
    };
    let held = || graph.parameters.iter().enumerate();
    let of = |parameter: &Parameter| &*tensors[&parameter.value];
    let model = Model {
        parameters: held()
            .filter(|(_, parameter)| parameter.kind != ParameterKind::Buffer)
            .map(|(_, parameter)| of(parameter))
            .collect(),
        trained: held()
            .filter(|(_, parameter)| parameter.kind == ParameterKind::Trained)
            .map(|(index, parameter)| (index, of(parameter)))
            .collect(),
        buffers: held()
            .filter(|(_, parameter)| parameter.kind == ParameterKind::Buffer)
            .map(|(_, parameter)| of(parameter))
            .collect(),
    };
    Some(Reducer::construct(eager, options, &model))
}

/// Parameters that a module moves into one buffer.
struct Flattened {
    parameters: Vec<ValueId>,
    /// How many elements the buffer has.
    elements: u64,
    /// How many of the parameters do not exist yet.
    missing: usize,
}

/// All buffers that modules of a graph move their parameters into.
#[derive(Default)]
struct Buffers {
    groups: Vec<Flattened>,
    group_of: HashMap<ValueId, usize>,
}

impl Buffers {
    /// Each parameter is in one buffer, the first that wants it.
    fn of(graph: &Graph, variant: &Variant) -> Buffers {
        let held: BTreeSet<ValueId> = graph
            .parameters
            .iter()
            .map(|parameter| parameter.value)
            .collect();
        let mut buffers = Buffers::default();
        for node in &graph.nodes {
            let of = |id: &ValueId| (graph.value(*id).dtype, graph.value(*id).shape.clone());
            let types = || node.inputs.iter().map(of).collect::<Vec<Type>>();
            let stored = |dtype| variant.precision.stored(dtype);
            let Some((first, elements)) = node.op.flattened(&types, &stored) else {
                continue;
            };
            let parameters = node.inputs[first..].to_vec();
            let is_free = |id: &ValueId| held.contains(id) && !buffers.group_of.contains_key(id);
            if parameters.iter().all(is_free) {
                let group = buffers.groups.len();
                buffers
                    .group_of
                    .extend(parameters.iter().map(|id| (*id, group)));
                buffers.groups.push(Flattened {
                    missing: parameters.len(),
                    parameters,
                    elements,
                });
            }
        }
        buffers
    }

    /// The buffer of which this is the last parameter to be made.
    fn completed_by(&mut self, parameter: ValueId) -> Option<&Flattened> {
        let group = &mut self.groups[*self.group_of.get(&parameter)?];
        group.missing = group.missing.saturating_sub(1);
        Some(&*group).filter(|group| group.missing == 0)
    }
}

/// Makes the buffer, copies the parameters into it and lets go of what they were.
fn flatten(
    eager: &mut Eager,
    group: &Flattened,
    dtype: DType,
    tensors: &mut BTreeMap<ValueId, Tensor>,
) {
    let buffer = eager.empty(&[Extent::fixed(group.elements)], dtype);
    let mut offset = Extent::ZERO;
    let mut earlier = Vec::new();
    for id in &group.parameters {
        let parameter = &tensors[id];
        let mut view = buffer.alias(parameter.shape.clone(), parameter.strides.clone());
        view.offset = offset;
        view.history.clone_from(&parameter.history);
        offset = offset + parameter.numel();
        eager.launch(Kernel::Copy, &[parameter], &[&view]);
        earlier.extend(tensors.insert(*id, Rc::new(view)));
    }
    for parameter in earlier {
        drop(parameter);
    }
}

/// How a parameter starts: what `reset_parameters` of the usual modules does, in spirit. `bound` is below what it has to
/// be where it holds positions, such as a window's relative ones. They are spread, as a model's own are: all at one place,
/// their gradients would be added up one after the other.
fn initial(graph: &Graph, parameter: &Parameter, bound: Option<u64>) -> Kernel {
    let value = graph.value(parameter.value);
    let counts = matches!(value.dtype, DType::Int32 | DType::Int64);
    if let Some(bound) = bound.filter(|_| counts) {
        return Kernel::RandomBelow(bound);
    }
    let shape = &value.shape;
    let name = parameter.path.rsplit('.').next().unwrap_or_default();
    Kernel::Initialize(match (parameter.kind, name, shape.len()) {
        (ParameterKind::Buffer, "running_var", _) => Initial::Constant(1.0),
        (ParameterKind::Buffer, _, _) => Initial::Constant(0.0),
        (_, "weight", 1) => Initial::Constant(1.0),
        (_, _, 0 | 1) => Initial::Constant(0.0),
        _ => {
            let fan_in = crate::shape::numel(&shape[1..]).at(1).max(1);
            Initial::Uniform {
                bound: (3.0 / fan_in as f64).sqrt(),
            }
        }
    })
}

/// The order of `module.to(device)`: recursively children first, in registration order, then own
/// parameters, then own buffers. The module tree is rebuilt from the dotted names.
fn construction_order(parameters: &[Parameter]) -> Vec<usize> {
    #[derive(Default)]
    struct Level<'a> {
        children: Vec<Level<'a>>,
        by_name: HashMap<&'a str, usize>,
        own: Vec<usize>,
        buffers: Vec<usize>,
    }
    fn walk(level: &Level<'_>, order: &mut Vec<usize>) {
        for child in &level.children {
            walk(child, order);
        }
        order.extend(&level.own);
        order.extend(&level.buffers);
    }
    let mut root = Level::default();
    for (index, parameter) in parameters.iter().enumerate() {
        let mut level = &mut root;
        let mut parts: Vec<&str> = parameter.path.split('.').collect();
        parts.pop();
        for part in parts {
            let next = level.children.len();
            let at = *level.by_name.entry(part).or_insert(next);
            if at == next {
                level.children.push(Level::default());
            }
            level = &mut level.children[at];
        }
        match parameter.kind {
            ParameterKind::Buffer => level.buffers.push(index),
            ParameterKind::Trained | ParameterKind::Frozen => level.own.push(index),
        }
    }
    let mut order = Vec::with_capacity(parameters.len());
    walk(&root, &mut order);
    order
}

#[cfg(test)]
mod tests;
