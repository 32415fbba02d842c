//! `model.to("cuda")` and wrapping: what is there before the first step.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use super::optimizer::Trained;
use super::parallel::{Model, Reducer, Sharded, Wrapper, partition};
use crate::eager::{Eager, History, Leaf, Tensor, Watcher};
use crate::graph::{Graph, Node, Parameter, ParameterKind, ValueId, positions};
use crate::ops::Op;
use crate::program::{Category, Initial, Kernel};
use crate::shape::{DType, Extent, MemoryFormat, Type};
use batchfit_step::{Mode, Parallel, Variant};

/// A model on the device, and what its optimizer is given.
pub(super) struct Constructed {
    /// Parameters and buffers, as operations read them.
    pub(super) tensors: BTreeMap<ValueId, Tensor>,
    pub(super) trained: Vec<Trained>,
    pub(super) wrapper: Wrapper,
    /// The trained parameters that this rank's optimizer updates, by their places, in its order.
    pub(super) mine: Vec<usize>,
    /// Those of each rank, where a rank updates a part of them whole; empty where each updates all that it has.
    pub(super) partition: Vec<Vec<usize>>,
}

/// Makes the model, and wraps it as the variant asks.
pub(super) fn construct(eager: &mut Eager, graph: &Arc<Graph>, variant: &Variant) -> Constructed {
    if let Parallel::Fsdp2(options) = &variant.parallel {
        return Sharded::construct(eager, graph, variant, options);
    }
    let mut tensors = BTreeMap::new();
    let mut leaves = BTreeMap::new();
    let mut buffers = Buffers::of(graph, variant);
    let bounds = positions(graph);
    eager.set_category(Category::Parameters);
    for index in construction_order(&graph.parameters) {
        let parameter = &graph.parameters[index];
        let path: Arc<str> = Arc::from(parameter.path.as_str());
        eager.set_label(&path);
        let value = graph.value(parameter.value);
        let dtype = super::stored(variant, value.dtype);
        let format = if parameter.channels_last {
            MemoryFormat::ChannelsLast
        } else {
            MemoryFormat::Contiguous
        };
        let strides = format.strides(&value.shape);
        let mut tensor = eager.empty_strided(&value.shape, strides, dtype);
        let bound = bounds.get(&parameter.value).copied();
        eager.launch(initial(graph, parameter, bound), &[], &[&tensor]);
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
            flatten(eager, group, dtype, &mut tensors);
        }
    }
    let embeddings = embeddings(graph);
    let trained: Vec<Trained> = leaves
        .into_iter()
        .map(|(index, leaf)| {
            let tensor = &tensors[&graph.parameters[index].value];
            let embeds = embeddings.contains(&graph.parameters[index].value);
            Trained::new(leaf, Rc::clone(tensor), embeds)
        })
        .collect();
    let reducer = wrapped(eager, graph, variant, &tensors).map(Rc::new);
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
    Constructed {
        tensors,
        trained,
        wrapper: reducer.map_or(Wrapper::None, Wrapper::Replicated),
        mine,
        partition,
    }
}

/// The weights of embeddings.
fn embeddings(graph: &Graph) -> BTreeSet<ValueId> {
    let are = |node: &&Node| matches!(node.op, Op::Embedding(_));
    let weights = graph.nodes.iter().filter(are);
    weights.map(|node| node.inputs[0]).collect()
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
            let stored = |dtype| super::stored(variant, dtype);
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
    drop(earlier);
}

/// How a parameter starts: what `reset_parameters` of the usual modules does, in spirit. `bound` is below what it has to
/// be where it holds positions, such as a window's relative ones. They are spread, as a model's own are: all at one place,
/// their gradients would be added up one after the other.
pub(super) fn initial(graph: &Graph, parameter: &Parameter, bound: Option<u64>) -> Kernel {
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
pub(super) fn construction_order(parameters: &[Parameter]) -> Vec<usize> {
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
