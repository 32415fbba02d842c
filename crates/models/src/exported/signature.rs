//! Parameters, buffers and batch tensors: what an exported graph takes.

use std::collections::{HashMap, HashSet};

use super::error::ExportedError;
use super::lower::{Walk, escape, refused};
use super::modules::LONGEST_PATH;
use crate::aten::schema::{Arg, ExportedSize, GraphModule, GraphText, InputSpec, TensorMeta};
use crate::graph::{Content, ParameterKind, ValueId};
use crate::limits::is_hidden;
use crate::shape::{Extent, is_channels_last};

/// Most parts of a parameter's path. The deepest models in use nest a dozen deep.
const MOST_PARTS: usize = 64;

/// The values that the inputs of the graph stand for, and what had to be assumed.
pub(super) struct Declared<'a> {
    pub(super) tensors: HashMap<&'a str, ValueId>,
    pub(super) notes: Vec<String>,
}

/// An input that becomes a parameter or buffer.
struct StoredTensor<'a> {
    name: &'a str,
    path: &'a str,
    kind: ParameterKind,
    tensor: &'a TensorMeta<'a>,
}

/// Adds parameters, buffers and the batch to the builder of `walk`.
pub(super) fn declare<'a>(
    module: &'a GraphModule<'a>,
    types: &HashMap<&'a str, &'a TensorMeta<'a>>,
    walk: &mut Walk<'a>,
    at: &str,
) -> Result<Declared<'a>, ExportedError> {
    let graph = &module.graph;
    let mut reads = ValueUses::default();
    reads.of(graph);

    let mut held = Vec::new();
    let mut batch = Vec::new();
    for (index, spec) in module.signature.input_specs.iter().enumerate() {
        let pointer = format!("{at}/signature/input_specs/{index}");
        let name = match spec {
            InputSpec::Parameter(spec) => &spec.arg.name,
            InputSpec::Buffer(spec) => &spec.arg.name,
            InputSpec::TensorConstant(spec) => &spec.arg.name,
            InputSpec::UserInput(spec) => match &spec.arg {
                Arg::Tensor(name) => name,
                // An argument with a constant value; tracing has used it up.
                _ => continue,
            },
        };
        let tensor = *types.get(&**name).ok_or_else(|| {
            let name = &**name;
            refused(&pointer)(format!("the input {name:?} is not in tensor_values"))
        })?;
        match spec_path(spec) {
            None => batch.push((&**name, tensor)),
            Some(path) if path.matches('.').count() > MOST_PARTS => {
                let problem = format!("a path of more than {MOST_PARTS} parts");
                return Err(refused(&pointer)(problem));
            }
            Some(path) if path.len() > LONGEST_PATH => {
                let problem = format!("a path longer than {LONGEST_PATH} bytes");
                return Err(refused(&pointer)(problem));
            }
            Some(path) if path.contains(is_hidden) => {
                let problem = "a path with a control character";
                return Err(refused(&pointer)(problem.to_owned()));
            }
            Some(path) => held.push(StoredTensor {
                name,
                path,
                kind: match spec {
                    InputSpec::Parameter(_) if tensor.requires_grad => ParameterKind::Trained,
                    InputSpec::Parameter(_) => ParameterKind::Frozen,
                    _ => ParameterKind::Buffer,
                },
                tensor,
            }),
        }
    }
    // Exports list parameters first already; the graph promises it.
    held.sort_by_key(|held| held.kind == ParameterKind::Buffer);

    let mut declared = Declared {
        tensors: HashMap::new(),
        notes: Vec::new(),
    };
    hold(&held, &reads, walk, graph_at(at).as_str(), &mut declared)?;
    take_batch(&batch, &reads, walk, graph_at(at).as_str(), &mut declared)?;
    Ok(declared)
}

fn graph_at(at: &str) -> String {
    format!("{at}/graph/tensor_values")
}

/// What the first dimension of the first batch tensor is, where it is symbolic: the batch.
pub(super) fn first_size<'a>(module: &'a GraphModule<'a>) -> Option<&'a str> {
    let specs = module.signature.input_specs.iter();
    let mut inputs = specs.filter_map(|spec| match spec {
        InputSpec::UserInput(spec) => match &spec.arg {
            Arg::Tensor(name) => Some(&**name),
            _ => None,
        },
        _ => None,
    });
    let first = inputs.next()?;
    let mut values = module.graph.tensor_values.iter();
    let (_, tensor) = values.find(|(name, _)| name.as_ref() == first)?;
    match tensor.sizes.first()? {
        ExportedSize::AsExpr(expression) => Some(&*expression.expr_str),
        ExportedSize::AsInt(_) => None,
    }
}

/// The dotted path of a parameter or buffer; `None` for a batch tensor.
pub(super) fn spec_path<'a>(spec: &'a InputSpec<'a>) -> Option<&'a str> {
    match spec {
        InputSpec::Parameter(spec) => Some(&spec.parameter_name),
        InputSpec::Buffer(spec) => Some(&spec.buffer_name),
        InputSpec::TensorConstant(spec) => Some(&spec.tensor_constant_name),
        InputSpec::UserInput(_) => None,
    }
}

/// Adds parameters and buffers, those that are tied once.
///
/// An export that did not notice sharing has all names; nothing reads but one of them. It is told by
/// its shape and dtype from the one that feeds both an embedding and a linear, and takes its place in
/// module order if it comes first, because that is where the tensor is then made.
fn hold<'a>(
    held: &[StoredTensor<'a>],
    reads: &ValueUses<'a>,
    walk: &mut Walk<'a>,
    at: &str,
    declared: &mut Declared<'a>,
) -> Result<(), ExportedError> {
    // The tied parameter's name to the path it goes by.
    let mut paths: HashMap<&str, &str> = HashMap::new();
    let mut dropped: HashSet<&str> = HashSet::new();
    let mut position: HashMap<&str, usize> = HashMap::new();
    // Parameters that nothing reads, by what they look like; those that are tied are taken out.
    let mut unread: HashMap<TensorSignature<'a>, Vec<usize>> = HashMap::new();
    for (index, held) in held.iter().enumerate() {
        if held.kind != ParameterKind::Buffer && !reads.tensors.contains(held.name) {
            unread.entry(looks(held.tensor)).or_default().push(index);
        }
    }
    for (own, tied) in held.iter().enumerate() {
        if !reads.embeds_and_projects(tied.name) {
            continue;
        }
        let mut first = own;
        // Encoder-decoders share one table among up to four modules.
        for index in unread.remove(&looks(tied.tensor)).unwrap_or_default() {
            let alias = &held[index];
            if !dropped.insert(alias.name) {
                continue;
            }
            declared.notes.push(format!(
                "{} is taken to be the same tensor as {}: nothing reads it, and both have the same shape",
                walk.modules.strip(alias.path),
                walk.modules.strip(tied.path),
            ));
            if index < first {
                first = index;
                paths.insert(tied.name, alias.path);
                position.insert(tied.name, index);
            }
        }
    }
    let mut order: Vec<(usize, &StoredTensor<'a>)> = held.iter().enumerate().collect();
    order.retain(|(_, held)| !dropped.contains(held.name));
    order.sort_by_key(|(index, held)| position.get(held.name).copied().unwrap_or(*index));

    for (_, held) in order {
        let (dtype, shape) = walk
            .typed(held.tensor)
            .map_err(refused(&format!("{at}/{}", escape(held.name))))?;
        let path = paths.get(held.name).copied().unwrap_or(held.path);
        let path = walk.modules.strip(path).to_owned();
        let steps = held.tensor.strides.known().iter().copied();
        let strides: Vec<Extent> = steps.map(Extent::fixed).collect();
        let channels_last = strides.len() == shape.len() && is_channels_last(&shape, &strides);
        let id = walk.builder.parameter(&path, held.kind, dtype, shape);
        if channels_last {
            walk.builder.lay_last_channels_last();
        }
        declared.tensors.insert(held.name, id);
    }
    Ok(())
}

/// Adds the batch. A tensor that only lends its size is the same one as another of its type: language
/// models get their ids as labels too.
fn take_batch<'a>(
    batch: &[(&'a str, &'a TensorMeta<'a>)],
    reads: &ValueUses<'a>,
    walk: &mut Walk<'a>,
    at: &str,
    declared: &mut Declared<'a>,
) -> Result<(), ExportedError> {
    let read = batch
        .iter()
        .filter(|(name, _)| reads.tensors.contains(name));
    let twins: HashSet<TensorSignature<'a>> = read.map(|(_, tensor)| looks(tensor)).collect();
    for (name, tensor) in batch {
        if !reads.tensors.contains(name) && twins.contains(&looks(tensor)) {
            continue;
        }
        let (dtype, shape) = walk
            .typed(tensor)
            .map_err(refused(&format!("{at}/{}", escape(name))))?;
        // What it is filled with is decided once the nodes that read it are known.
        let id = walk.builder.input(name, dtype, shape, Content::Normal);
        declared.tensors.insert(name, id);
    }
    Ok(())
}

/// A dtype and the lengths of dimensions: two tensors that share both may be one.
type TensorSignature<'a> = (u32, Vec<Result<i64, &'a str>>);

fn looks<'a>(tensor: &'a TensorMeta<'a>) -> TensorSignature<'a> {
    let length = |size: &'a ExportedSize<'a>| match size {
        ExportedSize::AsInt(length) => Ok(*length),
        ExportedSize::AsExpr(expression) => Err(&*expression.expr_str),
    };
    (tensor.dtype, tensor.sizes.iter().map(length).collect())
}

/// Which values are read by an operator, other than for their size.
#[derive(Default)]
struct ValueUses<'a> {
    tensors: HashSet<&'a str>,
    embedded: HashSet<&'a str>,
    projected: HashSet<&'a str>,
}

impl<'a> ValueUses<'a> {
    fn of(&mut self, graph: &'a GraphText<'a>) {
        for node in &graph.nodes {
            if node.target.contains(".sym_size.") || node.target.contains("._assert") {
                continue;
            }
            for input in &node.inputs {
                match &input.arg {
                    Arg::Tensor(name) => {
                        self.tensors.insert(name);
                        if &*input.name == "weight" && node.target.contains(".embedding.") {
                            self.embedded.insert(name);
                        }
                        if &*input.name == "weight" && node.target.contains(".linear.") {
                            self.projected.insert(name);
                        }
                    }
                    Arg::Tensors(names) => {
                        self.tensors.extend(names.iter().map(|name| &**name));
                    }
                    Arg::Graph(nested) => self.of(&nested.graph),
                    _ => {}
                }
            }
        }
    }

    fn embeds_and_projects(&self, name: &str) -> bool {
        self.embedded.contains(name) && self.projected.contains(name)
    }
}
