//! Runs the graph's operations in order, and lets values die when Python would.
//!
//! See Note [How long values live].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::casts::{is_without_autocast, returns};
use super::functions::{Functions, PinnedValues};
use super::lifetimes::{deaths, packed_checks};
use super::parallel::{Sharded, Wrapper};
use super::random_inputs::noise_for;
use super::scopes::{Around, Scope, checkpoints};
use crate::eager::{Eager, Frame, Outputs, Region, Stop, Tensor};
use crate::graph::{Graph, ModuleId, Node, Parameter, ParameterKind, ValueId};
use crate::ops::{Cast, Context, Op};
use crate::program::Host;
use crate::shape::{DType, Extent};
use batchfit_step::{Mode, Variant};

/// Values alive in Python, by name.
pub(super) type Environment = BTreeMap<ValueId, Tensor>;

/// A graph made ready to run: parameters on the device, lifetimes known.
pub(super) struct Forward {
    pub(super) graph: Arc<Graph>,
    /// Calls of custom functions in it.
    pub(super) functions: Functions,
    parameters: BTreeMap<ValueId, Tensor>,
    /// The values that die after each node.
    deaths: Vec<Vec<ValueId>>,
    labels: Vec<Arc<str>>,
    /// How many modules are called on the way to each node from the one before.
    entered: Vec<u32>,
    /// Nodes at which eager PyTorch also looks for packed sequences.
    packed_checks: BTreeMap<usize, Vec<[Extent; 2]>>,
    /// Nodes with something around them, by the first of them, outer ones first.
    scopes: BTreeMap<usize, Vec<Scope>>,
    /// What gathers the parameters of units.
    sharded: Option<Rc<Sharded>>,
    /// The node that makes each value.
    makers: HashMap<ValueId, usize>,
    buffers: HashSet<ValueId>,
    /// What the noise that nodes make is multiplied by.
    noise_for: BTreeMap<usize, ValueId>,
    mode: Mode,
    /// What the model's code names where the graph says float32: the type of a float32 graph's parameters. A
    /// graph in half precision says what it means.
    parameter_type: DType,
    /// Casts that go back to the type another operation left.
    returns: BTreeMap<usize, usize>,
    departures: BTreeSet<usize>,
    /// The types left, as the graph runs.
    types_left: RefCell<BTreeMap<usize, DType>>,
    /// The types of values that casts ask for, as the graph runs; `None` until the value is made.
    types_read: RefCell<HashMap<ValueId, Option<DType>>>,
}

/// How many modules are called on the way to each node from the one before.
fn entered(graph: &Graph) -> Vec<u32> {
    let chain = |node: &Node| {
        let parent = |id: &ModuleId| graph.module(*id).parent;
        std::iter::successors(Some(node.module), parent).collect::<Vec<_>>()
    };
    let mut before = Vec::new();
    let new = |node: &Node| {
        let inside = chain(node);
        let new = inside.iter().filter(|id| !before.contains(*id)).count();
        before = inside;
        u32::try_from(new).unwrap_or(u32::MAX)
    };
    graph.nodes.iter().map(new).collect()
}

/// Whether a graph was exported with parameters in half precision.
fn is_half(graph: &Graph) -> bool {
    let dtype = |parameter: &Parameter| graph.value(parameter.value).dtype;
    graph
        .parameters
        .iter()
        .any(|parameter| dtype(parameter).is_half())
}

/// The values whose types casts ask for.
fn read_types(graph: &Graph) -> HashMap<ValueId, Option<DType>> {
    let asked = graph
        .releases
        .iter()
        .flat_map(|releases| releases.dtypes_of.values());
    asked.flatten().map(|id| (*id, None)).collect()
}

impl Forward {
    /// Prepares a graph whose parameters have been constructed. Each look at all of a large graph takes long enough to be stopped
    /// before the next.
    pub(super) fn new(
        eager: &Eager,
        graph: &Arc<Graph>,
        variant: &Variant,
        parameters: BTreeMap<ValueId, Tensor>,
    ) -> Result<Forward, Stop> {
        let label = |node: &Node| {
            let path = &graph.module(node.module).path;
            let space = if path.is_empty() { "" } else { " " };
            Arc::from(format!("{path}{space}{}", node.op.name()))
        };
        let returns = returns(graph);
        eager.go_on()?;
        let mut checks: BTreeMap<usize, Vec<[Extent; 2]>> = BTreeMap::new();
        for (node, shape) in packed_checks(graph) {
            checks.entry(node).or_default().push(shape);
        }
        eager.go_on()?;
        let nodes = graph.nodes.iter().enumerate();
        let made = nodes.flat_map(|(index, node)| node.outputs.iter().map(move |id| (*id, index)));
        let makers = made.collect();
        let held = graph.parameters.iter();
        let buffers = held.filter(|parameter| parameter.kind == ParameterKind::Buffer);
        eager.go_on()?;
        let deaths = deaths(graph);
        eager.go_on()?;
        let noise_for = noise_for(graph);
        eager.go_on()?;
        let labels = graph.nodes.iter().map(label).collect();
        eager.go_on()?;
        let entered = entered(graph);
        eager.go_on()?;
        Ok(Forward {
            makers,
            buffers: buffers.map(|buffer| buffer.value).collect(),
            deaths,
            packed_checks: checks,
            noise_for,
            labels,
            entered,
            scopes: match variant.mode {
                Mode::Train => checkpoints(graph, variant),
                Mode::Inference => BTreeMap::new(),
            },
            sharded: None,
            departures: returns.values().copied().collect(),
            returns,
            types_left: RefCell::default(),
            types_read: RefCell::new(read_types(graph)),
            functions: Functions::of(eager, graph, variant)?,
            graph: Arc::clone(graph),
            parameters,
            mode: variant.mode,
            parameter_type: if is_half(graph) {
                DType::Float32
            } else {
                variant.precision.parameters()
            },
        })
    }

    /// Has the units of a wrapper around the nodes that are theirs.
    pub(super) fn scope(&mut self, wrapper: &Wrapper) {
        let Some(sharded) = wrapper.sharded() else {
            return;
        };
        for call in sharded.calls() {
            self.scopes
                .entry(call.nodes.start)
                .or_default()
                .push(Scope {
                    end: call.nodes.end,
                    around: Around::Unit(call.unit),
                });
        }
        for scopes in self.scopes.values_mut() {
            crate::order::by_key(scopes, |scope| (std::cmp::Reverse(scope.end), scope.around));
        }
        if let Some(dtype) = sharded.gathered_type().filter(|_| !is_half(&self.graph)) {
            self.parameter_type = dtype;
        }
        self.sharded = Some(Rc::clone(sharded));
    }

    /// Prepares the backward pass of a custom function.
    pub(super) fn of_backward(
        eager: &Eager,
        graph: &Arc<Graph>,
        variant: &Variant,
    ) -> Result<Forward, Stop> {
        Ok(Forward {
            // Its modules are no blocks.
            scopes: BTreeMap::new(),
            ..Forward::new(eager, graph, variant, BTreeMap::new())?
        })
    }

    /// A value alive in Python, or a parameter.
    pub(super) fn find(&self, environment: &Environment, id: ValueId) -> Option<Tensor> {
        let found = environment.get(&id).or_else(|| self.parameters.get(&id));
        found.map(Tensor::clone)
    }

    /// The nodes that run: all of them, or up to the prediction in inference.
    pub(super) fn nodes(&self) -> Range<usize> {
        let last = match self.mode {
            Mode::Train => self.graph.loss,
            Mode::Inference => self.graph.prediction,
        };
        0..self.makers.get(&last).map_or(0, |node| node + 1)
    }

    /// The end of the model's own nodes; what follows is the training loop's.
    pub(super) fn model_end(&self) -> usize {
        let end = self.nodes().end;
        if self.graph.loss_is_model_output {
            return end;
        }
        let made = self.maker(self.graph.prediction);
        let mut end = made.map_or(end, |node| node + 1);
        // What runs as one is not cut: functions of the user's own, and blocks with something around them.
        for call in &self.graph.functions {
            if call.nodes.start < end {
                end = end.max(call.nodes.end);
            }
        }
        let scopes = self.scopes.range(..end);
        let ends = scopes.flat_map(|(_, scopes)| scopes.iter().map(|scope| scope.end));
        ends.max().map_or(end, |last| last.max(end))
    }

    /// Whether a value is part of what a sharded model returns: its hooks hold all of that until they are done.
    fn is_returned(&self, id: ValueId) -> bool {
        self.sharded.is_some() && self.graph.loss_is_model_output && id == self.graph.prediction
    }

    /// The node that makes a value.
    pub(super) fn maker(&self, value: ValueId) -> Option<usize> {
        self.makers.get(&value).copied()
    }

    /// Runs these nodes on these values.
    pub(super) fn run(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        nodes: Range<usize>,
    ) -> Result<(), Stop> {
        self.run_inside(eager, environment, nodes, 0)
    }

    /// The same inside of so many of the scopes that begin with the first of them.
    pub(super) fn run_inside(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        nodes: Range<usize>,
        opened: usize,
    ) -> Result<(), Stop> {
        let mut next = nodes.start;
        while next < nodes.end {
            eager.go_on()?;
            let opened = if next == nodes.start { opened } else { 0 };
            let begins = self.scopes.get(&next).into_iter().flatten();
            let mut begins = begins.enumerate().skip(opened);
            if let Some((index, scope)) = begins.find(|(_, scope)| scope.end <= nodes.end) {
                let inside = (next..scope.end, index + 1);
                next = scope.end;
                match scope.around {
                    Around::Checkpoint => self.checkpoint(eager, environment, inside)?,
                    Around::Reentrant => self.checkpoint_function(eager, environment, inside)?,
                    Around::Unit(unit) => self.call_unit(eager, environment, inside, unit)?,
                }
            } else if let Some(index) = self.function(&(next..nodes.end)) {
                self.call_function(eager, environment, index)?;
                next = self.graph.functions[index].nodes.end;
            } else {
                self.step(eager, environment, next, &mut PinnedValues::default())?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Runs nodes under a checkpoint.
    fn checkpoint(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        (nodes, opened): (Range<usize>, usize),
    ) -> Result<(), Stop> {
        let inputs = self.read_from_outside(&nodes, environment);
        let again = self.again((nodes.clone(), opened), inputs);
        let frame = Frame::new(again, eager.autocast);
        eager.dropping(&frame, |eager| {
            self.run_inside(eager, environment, nodes, opened)
        })
    }

    /// Runs the nodes of a sharded unit, between its hooks.
    fn call_unit(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        (nodes, opened): (Range<usize>, usize),
        unit: usize,
    ) -> Result<(), Stop> {
        let Some(sharded) = &self.sharded else {
            return self.run_inside(eager, environment, nodes, opened);
        };
        // The caller's names of them, which live at least as long as the call.
        let inputs = self.read_from_outside(&nodes, environment);
        let given = inputs.iter().map(|(_, tensor)| Rc::clone(tensor)).collect();
        let given = sharded.before_forward(eager, unit, given);
        for ((id, _), tensor) in inputs.iter().zip(given) {
            environment.insert(*id, tensor);
        }
        self.run_inside(eager, environment, nodes.clone(), opened)?;
        for (id, tensor) in &inputs {
            if environment.contains_key(id) {
                environment.insert(*id, Rc::clone(tensor));
            }
        }
        let made = self.graph.nodes[nodes]
            .iter()
            .flat_map(|node| &node.outputs);
        let left = made.filter_map(|id| environment.get(id));
        sharded.after_forward(eager, unit, left);
        Ok(())
    }

    /// The call of a custom function that these nodes begin with.
    fn function(&self, nodes: &Range<usize>) -> Option<usize> {
        let starting = self.functions.starting_at(nodes.start)?;
        let ends_inside = self.graph.functions[starting].nodes.end <= nodes.end;
        ends_inside.then_some(starting)
    }

    /// Runs these nodes once more, on the tensors that they read from outside.
    fn again(
        self: &Rc<Self>,
        (nodes, opened): (Range<usize>, usize),
        inputs: Vec<(ValueId, Tensor)>,
    ) -> Region {
        let forward = Rc::clone(self);
        Box::new(move |eager| {
            let mut environment: Environment = inputs.iter().cloned().collect();
            forward.run_inside(eager, &mut environment, nodes.clone(), opened)
        })
    }

    /// Runs one node and lets go of what dies with it.
    pub(super) fn step(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        index: usize,
        keeping: &mut PinnedValues,
    ) -> Result<(), Stop> {
        let node = &self.graph.nodes[index];
        eager.set_label(&self.labels[index]);
        eager.recorder().note(Host::Operator, 1);
        if self.entered[index] > 0 {
            eager.recorder().note(Host::Module, self.entered[index]);
        }
        let before = (eager.grad_enabled, eager.autocast);
        eager.grad_enabled &= node.grad_enabled;
        if is_without_autocast(&self.graph, node) {
            eager.autocast = None;
        }
        let result = self.execute(eager, environment, index);
        (eager.grad_enabled, eager.autocast) = before;
        for (id, tensor) in node.outputs.iter().zip(result?) {
            if let Some(dtype) = self.types_read.borrow_mut().get_mut(id) {
                *dtype = Some(tensor.dtype);
            }
            environment.insert(*id, tensor);
        }
        for [batch, positions] in self.packed_checks.get(&index).into_iter().flatten() {
            eager.packed_sequence_check(*batch, *positions);
        }
        for id in &self.deaths[index] {
            if keeping.lets_go(*id) && !self.is_returned(*id) {
                environment.remove(id);
            }
        }
        Ok(())
    }

    /// Values that a region reads and does not make, parameters apart.
    pub(super) fn read_from_outside(
        &self,
        region: &Range<usize>,
        environment: &Environment,
    ) -> Vec<(ValueId, Tensor)> {
        let mut read: Vec<ValueId> = self.graph.nodes[region.clone()]
            .iter()
            .flat_map(|node| node.inputs.clone())
            .collect();
        for index in self.functions.inside(region) {
            read.extend(self.graph.functions[index].named());
        }
        read.sort_unstable();
        read.dedup();
        read.into_iter()
            .filter_map(|id| {
                environment
                    .get(&id)
                    .map(|tensor| (id, Tensor::clone(tensor)))
            })
            .collect()
    }

    fn execute(&self, eager: &mut Eager, environment: &Environment, index: usize) -> Outputs {
        let node = &self.graph.nodes[index];
        let operands = node.inputs.iter().map(|id| self.find(environment, *id));
        let operands: Option<Vec<Tensor>> = operands.collect();
        let operands = operands.expect("nodes run after what they read");
        if self.departures.contains(&index) {
            self.types_left
                .borrow_mut()
                .insert(index, operands[0].dtype);
        }
        let left = self.returns.get(&index);
        let context = Context {
            results: &self.shapes_of(&node.outputs),
            inference: self.mode == Mode::Inference,
            parameters: self.parameter_type,
            noise: self.type_of_noise(index, environment),
            goes_back_to: left.and_then(|left| self.types_left.borrow().get(left).copied()),
            asks_for: self.type_asked_for(index),
            of_buffer: node.inputs.first().is_some_and(|id| self.is_buffer(*id)),
        };
        let made = node.op.run(eager, &operands, &context)?;
        debug_assert!(
            made.iter()
                .zip(context.results)
                .all(|(made, said)| made.shape.len() == said.len()),
            "{} makes {made:?} where the graph has {:?}",
            node.op.name(),
            context.results
        );
        Ok(made)
    }

    /// The type of the tensor whose type a cast asks for, as it is now.
    fn type_asked_for(&self, index: usize) -> Option<DType> {
        let asked = self.graph.releases.as_ref()?.dtypes_of.get(&index)?;
        let named = || match self.graph.nodes[index].op {
            Op::Cast(Cast(DType::Float32, _)) => Some(self.parameter_type),
            _ => None,
        };
        match asked {
            Some(value) if self.makers.contains_key(value) => {
                *self.types_read.borrow().get(value)?
            }
            Some(_) | None => named(),
        }
    }

    /// The type of what noise made by `node` is for, as it is now: of the value itself, or of what it will
    /// be made from.
    fn type_of_noise(&self, index: usize, environment: &Environment) -> Option<DType> {
        let mut value = *self.noise_for.get(&index)?;
        while !environment.contains_key(&value) {
            let maker = *self.makers.get(&value)?;
            value = *self.graph.nodes[maker].inputs.first()?;
        }
        environment.get(&value).map(|tensor| tensor.dtype)
    }

    fn shapes_of(&self, values: &[ValueId]) -> Vec<Vec<Extent>> {
        let shape = |id: &ValueId| self.graph.value(*id).shape.clone();
        values.iter().map(shape).collect()
    }

    fn is_buffer(&self, id: ValueId) -> bool {
        self.buffers.contains(&id)
    }
}
