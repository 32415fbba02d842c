//! Runs the graph's operations in order, and lets values die when Python would.
//!
//! See Note [How long values live].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::casts::{is_without_autocast, returns};
use super::checkpoint::{Frame, regions};
use super::eager::{Eager, Stop};
use super::lifetimes::{deaths, packed_checks};
use super::noise::noise_for;
use super::ops::AttentionRequest;
use super::tensor::Tensor;
use crate::graph::{DType, Extent, Graph, Node, Op, Parameter, ParameterKind, Placement, ValueId};
use crate::model::{Mode, Variant};

/// Values alive in Python, by name.
pub(super) type Environment = BTreeMap<ValueId, Tensor>;

/// A graph made ready to run: parameters on the device, lifetimes known.
pub(super) struct Forward {
    graph: Rc<Graph>,
    parameters: BTreeMap<ValueId, Tensor>,
    /// The values that die after each node.
    deaths: Vec<Vec<ValueId>>,
    labels: Vec<Arc<str>>,
    /// Nodes at which eager PyTorch also looks for packed sequences.
    packed_checks: Vec<(usize, [Extent; 2])>,
    regions: Vec<Range<usize>>,
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
}

/// Whether a graph was exported with parameters in half precision.
fn is_half(graph: &Graph) -> bool {
    let dtype = |parameter: &Parameter| graph.value(parameter.value).dtype;
    graph
        .parameters
        .iter()
        .any(|parameter| dtype(parameter).is_half())
}

impl Forward {
    /// Prepares a graph whose parameters have been constructed.
    pub(super) fn new(
        graph: &Rc<Graph>,
        variant: &Variant,
        parameters: BTreeMap<ValueId, Tensor>,
    ) -> Forward {
        let label = |node: &Node| {
            let path = &graph.module(node.module).path;
            let space = if path.is_empty() { "" } else { " " };
            Arc::from(format!("{path}{space}{}", node.op.name()))
        };
        let returns = returns(graph);
        Forward {
            deaths: deaths(graph),
            packed_checks: packed_checks(graph),
            noise_for: noise_for(graph),
            labels: graph.nodes.iter().map(label).collect(),
            regions: match variant.mode {
                Mode::Train => regions(graph, &variant.checkpointing),
                Mode::Inference => Vec::new(),
            },
            departures: returns.values().copied().collect(),
            returns,
            types_left: RefCell::default(),
            graph: Rc::clone(graph),
            parameters,
            mode: variant.mode,
            parameter_type: if is_half(graph) {
                DType::Float32
            } else {
                variant.precision.parameters()
            },
        }
    }

    /// The nodes that run: all of them, or up to the prediction in inference.
    pub(super) fn nodes(&self) -> Range<usize> {
        let last = match self.mode {
            Mode::Train => self.graph.loss,
            Mode::Inference => self.graph.prediction,
        };
        let made = self
            .graph
            .nodes
            .iter()
            .position(|node| node.outputs.contains(&last));
        0..made.map_or(0, |node| node + 1)
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
            let region = self
                .regions
                .iter()
                .find(|r| r.start == next && **r != nodes);
            if let Some(region) = region {
                let inputs = self.read_from_outside(region, environment);
                let frame = Frame::new(self, region.clone(), inputs, eager.autocast);
                eager.dropping(&frame, |eager| self.run(eager, environment, region.clone()))?;
                next = region.end;
            } else {
                self.step(eager, environment, next)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Runs one node and lets go of what dies with it.
    fn step(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        index: usize,
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
            environment.insert(*id, tensor);
        }
        for (after, [batch, positions]) in &self.packed_checks {
            if *after == index {
                eager.packed_sequence_check(*batch, *positions);
            }
        }
        for id in &self.deaths[index] {
            environment.remove(id);
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
        let operand = |id: &ValueId| {
            environment
                .get(id)
                .or_else(|| self.parameters.get(id))
                .map(Tensor::clone)
        };
        let operands: Option<Vec<Tensor>> = node.inputs.iter().map(operand).collect();
        let operands = operands.expect("nodes run after what they read");
        if self.departures.contains(&index) {
            self.types_left
                .borrow_mut()
                .insert(index, operands[0].dtype);
        }
        let inference = self.mode == Mode::Inference;
        let first = || Tensor::clone(&operands[0]);
        let one = match &node.op {
            Op::Create(create) => {
                let model = self.type_of_noise(node, environment);
                let model = model.unwrap_or(self.parameter_type);
                eager.create(create, model, operands.first())
            }
            Op::BatchNorm {
                training,
                momentum,
                eps,
            } => {
                let operands = [
                    &operands[0],
                    &operands[1],
                    &operands[2],
                    &operands[3],
                    &operands[4],
                ];
                if *training && !inference {
                    eager.batch_norm(operands, *momentum, *eps)?
                } else {
                    eager.batch_norm_inference(operands, *eps)?
                }
            }
            Op::AddScalar(_, Placement::InPlace) if inference && self.is_buffer(node.inputs[0]) => {
                first()
            }
            Op::Dropout { p, train } if *train && !inference && *p > 0.0 => {
                eager.dropout(&operands[0], *p)?
            }
            Op::NoiseDropout {
                p,
                train,
                in_place,
                features,
            } if *train && !inference && *p > 0.0 => {
                eager.noise_dropout(&operands[0], *in_place, *features)?
            }
            Op::Dropout { .. } | Op::NoiseDropout { .. } | Op::Alias => first(),
            Op::Attention {
                causal,
                dropout,
                grouped,
                scale,
            } => {
                let request = AttentionRequest {
                    causal: *causal,
                    dropout: if inference { 0.0 } else { *dropout },
                    grouped: *grouped,
                    scale: *scale,
                };
                let [query, key, value] = [0, 1, 2].map(|index| &operands[index]);
                eager.attention([query, key, value], operands.get(3), request)?
            }
            Op::Cast(to) => {
                let left = self.returns.get(&index);
                let left = left.and_then(|left| self.types_left.borrow().get(left).copied());
                // What is of half precision now is converted up, whatever came before.
                let goes_back = operands[0].dtype == *to;
                eager.cast(&operands[0], left.filter(|_| goes_back).unwrap_or(*to))
            }
            other => return eager.apply(other, &operands, &self.shapes_of(&node.outputs)),
        };
        Ok(vec![one])
    }

    /// The type of what noise made by `node` is for, as it is now: of the value itself, or of what it will
    /// be made from.
    fn type_of_noise(&self, node: &Node, environment: &Environment) -> Option<DType> {
        let index = self.graph.nodes.iter().position(|other| other == node)?;
        let mut value = *self.noise_for.get(&index)?;
        while !environment.contains_key(&value) {
            let maker = |node: &&Node| node.outputs.contains(&value);
            value = *self.graph.nodes.iter().find(maker)?.inputs.first()?;
        }
        environment.get(&value).map(|tensor| tensor.dtype)
    }

    fn shapes_of(&self, values: &[ValueId]) -> Vec<Vec<Extent>> {
        let shape = |id: &ValueId| self.graph.value(*id).shape.clone();
        values.iter().map(shape).collect()
    }

    fn is_buffer(&self, id: ValueId) -> bool {
        self.graph
            .parameters
            .iter()
            .any(|parameter| parameter.value == id && parameter.kind == ParameterKind::Buffer)
    }
}
