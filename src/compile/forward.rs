//! Runs the graph's operations in order, and lets values die when Python would.
//!
//! See Note [How long values live].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::casts::{is_without_autocast, returns};
use super::checkpoint::regions;
use super::functions::{Functions, Keeping};
use super::lifetimes::{deaths, packed_checks};
use super::noise::noise_for;
use crate::eager::{Eager, Frame, Region, Stop, Tensor};
use crate::graph::{Graph, Node, Parameter, ParameterKind, ValueId};
use crate::model::{Mode, Variant};
use crate::ops::{Cast, Context, Op};
use crate::shape::{DType, Extent};

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
    /// Nodes at which eager PyTorch also looks for packed sequences.
    packed_checks: BTreeMap<usize, Vec<[Extent; 2]>>,
    /// The ends of checkpointed regions, by their first nodes.
    regions: BTreeMap<usize, usize>,
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
    /// Prepares a graph whose parameters have been constructed.
    pub(super) fn new(
        graph: &Arc<Graph>,
        variant: &Variant,
        parameters: BTreeMap<ValueId, Tensor>,
    ) -> Forward {
        let label = |node: &Node| {
            let path = &graph.module(node.module).path;
            let space = if path.is_empty() { "" } else { " " };
            Arc::from(format!("{path}{space}{}", node.op.name()))
        };
        let returns = returns(graph);
        let mut checks: BTreeMap<usize, Vec<[Extent; 2]>> = BTreeMap::new();
        for (node, shape) in packed_checks(graph) {
            checks.entry(node).or_default().push(shape);
        }
        let nodes = graph.nodes.iter().enumerate();
        let made = nodes.flat_map(|(index, node)| node.outputs.iter().map(move |id| (*id, index)));
        let held = graph.parameters.iter();
        let buffers = held.filter(|parameter| parameter.kind == ParameterKind::Buffer);
        Forward {
            makers: made.collect(),
            buffers: buffers.map(|buffer| buffer.value).collect(),
            deaths: deaths(graph),
            packed_checks: checks,
            noise_for: noise_for(graph),
            labels: graph.nodes.iter().map(label).collect(),
            regions: match variant.mode {
                Mode::Train => regions(graph, &variant.checkpointing)
                    .into_iter()
                    .map(|region| (region.start, region.end))
                    .collect(),
                Mode::Inference => BTreeMap::new(),
            },
            departures: returns.values().copied().collect(),
            returns,
            types_left: RefCell::default(),
            types_read: RefCell::new(read_types(graph)),
            functions: Functions::of(graph, variant),
            graph: Arc::clone(graph),
            parameters,
            mode: variant.mode,
            parameter_type: if is_half(graph) {
                DType::Float32
            } else {
                variant.precision.parameters()
            },
        }
    }

    /// Prepares the backward pass of a custom function.
    pub(super) fn of_backward(graph: &Arc<Graph>, variant: &Variant) -> Forward {
        Forward {
            // Its modules are nobody's blocks.
            regions: BTreeMap::new(),
            ..Forward::new(graph, variant, BTreeMap::new())
        }
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
        let mut next = nodes.start;
        while next < nodes.end {
            eager.go_on()?;
            let region = self.regions.get(&next).map(|end| next..*end);
            if let Some(region) = region.filter(|region| *region != nodes) {
                let inputs = self.read_from_outside(&region, environment);
                let frame = Frame::new(self.again(region.clone(), inputs), eager.autocast);
                eager.dropping(&frame, |eager| self.run(eager, environment, region.clone()))?;
                next = region.end;
            } else if let Some(index) = self.function(&(next..nodes.end)) {
                self.call_function(eager, environment, index)?;
                next = self.graph.functions[index].nodes.end;
            } else {
                self.step(eager, environment, next, &mut Keeping::default())?;
                next += 1;
            }
        }
        Ok(())
    }

    /// The call of a custom function that these nodes begin with.
    fn function(&self, nodes: &Range<usize>) -> Option<usize> {
        let starting = self.functions.starting_at(nodes.start)?;
        let ends_inside = self.graph.functions[starting].nodes.end <= nodes.end;
        ends_inside.then_some(starting)
    }

    /// Runs these nodes once more, on the tensors that they read from outside.
    fn again(self: &Rc<Self>, nodes: Range<usize>, inputs: Vec<(ValueId, Tensor)>) -> Region {
        let forward = Rc::clone(self);
        Box::new(move |eager| {
            let mut environment: Environment = inputs.iter().cloned().collect();
            forward.run(eager, &mut environment, nodes.clone())
        })
    }

    /// Runs one node and lets go of what dies with it.
    pub(super) fn step(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        index: usize,
        keeping: &mut Keeping,
    ) -> Result<(), Stop> {
        let node = &self.graph.nodes[index];
        eager.set_label(&self.labels[index]);
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
            if keeping.lets_go(*id) {
                environment.remove(id);
            }
        }
        Ok(())
    }

    /// Values that a region reads and does not make, parameters apart.
    fn read_from_outside(
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

    fn execute(
        &self,
        eager: &mut Eager,
        environment: &Environment,
        index: usize,
    ) -> Result<Vec<Tensor>, Stop> {
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
        node.op.run(eager, &operands, &context)
    }

    /// The type of the tensor whose type a cast asks for, as it is now.
    fn type_asked_for(&self, index: usize) -> Option<DType> {
        let asked = self.graph.releases.as_ref()?.dtypes_of.get(&index)?;
        let named = || match self.graph.nodes[index].op {
            Op::Cast(Cast(DType::Float32)) => Some(self.parameter_type),
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
