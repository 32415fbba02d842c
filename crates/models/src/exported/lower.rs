//! Walks the nodes of an exported graph and rebuilds them through a [`Builder`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::error::ExportedError;
use super::functions::{self, Functions};
use super::modules::{Call, Modules};
use super::prediction::{fill_inputs, prediction, scoring};
use super::problems::Problems;
use super::side_table::{self, Flat};
use super::signature::{self, Declared};
use super::sizes::{self, Chosen, Producers};
use super::symbol::Symbols;
use super::unknown::{self, Unknown, UnknownOps};
use super::{Assumptions, Exported};
use crate::PYTORCH;
use crate::aten::schema::{Arg, Document, ExportedNode, GraphText};
use crate::aten::{Arguments, Scope};
use crate::graph::{Builder, ValueId};
use crate::limits::{Text, is_cancelled, shorten, shorten_sentence};
use crate::ops;
use crate::ops::{Op, Opaque, View, Written};
use crate::shape::{Extent, broadcast};

/// Operators that compute nothing: checks left by tracing.
const IGNORED: &[&str] = &[
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten._assert_async.default",
    "aten._assert_async.msg",
    "aten._functional_assert_async.msg",
    "aten._linalg_check_errors.default",
    "aten._print.default",
    "aten.promote_types.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
];

/// Rebuilds the graph of `document`.
pub(super) fn lower<'a>(
    document: &'a Document<'a>,
    assumptions: Assumptions,
) -> Result<Exported, ExportedError> {
    let graph = &document.graph_module.graph;
    let modules = Modules::of(graph, &document.graph_module.signature);
    side_table::check_version(document.batchfit)?;
    let calls = functions::texts(document.batchfit)?;
    let mut symbols = Symbols::with_length(assumptions.seq_len);
    if let (Some(_), Some(batch)) = (
        assumptions.seq_len,
        signature::first_size(&document.graph_module),
    ) {
        // Of two symbols the batch is this one, whichever is met first. What is wrong with it is told where it is.
        let _ = symbols.extent(batch);
    }
    let mut walk = Walk {
        builder: Builder::new(modules.root_class()),
        modules,
        symbols,
        limits: sizes::limits(document),
        chosen: Vec::new(),
        producers: Producers::of(graph),
        chosen_percent: assumptions.chosen_percent,
        grad_enabled: true,
        autocast_enabled: true,
        in_wrapper: Vec::new(),
        flat: Flat::default(),
        functions: Functions::new(&calls),
        inside_function: None,
        unknown: Unknown::default(),
        estimated: BTreeMap::new(),
        problems: Problems::default(),
    };
    let mut scope = walk.scope(graph, GRAPH)?;
    let Declared { tensors, mut notes } = signature::declare(
        &document.graph_module,
        &scope.types,
        &mut walk,
        "/graph_module",
    )?;
    scope.tensors = tensors;
    walk.nodes(graph, &mut scope, GRAPH);
    if is_cancelled() {
        return Err(ExportedError::Cancelled);
    }
    if let Some(length) = assumptions.seq_len {
        check_length(document, &walk.symbols, length)?;
    }
    let mut unknown = walk.unknown.operators();
    let assumed = match assumptions.unknown_ops {
        UnknownOps::Refuse => Vec::new(),
        // Those that may be assumed are, and no part of what is wrong.
        UnknownOps::AssumeElementwise => unknown
            .extract_if(.., |operator| operator.not_elementwise.is_none())
            .collect(),
    };
    let refusal = if !walk.problems.is_empty() {
        Some(std::mem::take(&mut walk.problems).with(unknown))
    } else if !unknown.is_empty() {
        let operators = unknown;
        Some(ExportedError::UnknownOperators { operators })
    } else {
        None
    };
    let not_understood = match refusal {
        Some(refusal) if !assumptions.recorded => return Err(refusal),
        refusal => refusal.map(|refusal| refusal.to_string()),
    };
    let mut assumptions: Vec<String> = unknown::assumption(&assumed).into_iter().collect();

    let loss = walk.loss(graph, &scope)?;
    let (calls, untraced) = walk.functions.finish()?;
    assumptions.extend(sizes::assumption(&walk.chosen, walk.chosen_percent));
    assumptions.extend(functions::assumption(&untraced));
    assumptions.extend(unknown::estimates(&walk.estimated));
    let is_of_batch = |name: &str| walk.symbols.batch() == Some(name);
    let max_batch = document
        .range_constraints
        .iter()
        .find(|(name, _)| is_of_batch(name))
        .and_then(|(_, range)| u64::try_from(range.max_val?.0).ok())
        .filter(|largest| *largest < UNASKED);
    let predicted = prediction(walk.builder.nodes(), &walk.in_wrapper, loss);
    let scoring = scoring(walk.builder.nodes(), loss);
    let in_wrapper = scoring.and_then(|node| walk.in_wrapper.get(node).copied());
    let mut graph = walk.builder.finish(predicted.unwrap_or(loss), loss);
    graph.loss_is_model_output = in_wrapper == Some(false);
    fill_inputs(&mut graph);
    (graph.functions, graph.untraced_functions) = (calls, untraced);
    graph.max_batch = max_batch;
    side_table::read(document.batchfit, &walk.flat, &mut graph)?;
    notes.extend(of_another_pytorch(document));
    let modules = graph.modules.iter();
    match modules.filter(|module| module.is_checkpoint()).count() {
        0 => {}
        calls => notes.push(format!(
            "the model's own code checkpoints {calls} {} (torch.utils.checkpoint), and so does this answer",
            if calls == 1 { "part" } else { "parts" }
        )),
    }
    Ok(Exported {
        graph,
        notes,
        assumptions,
        not_understood,
    })
}

/// What the answer says of a graph that another PyTorch exported.
fn of_another_pytorch(document: &Document<'_>) -> Option<String> {
    let version: &str = document.torch_version.as_ref()?.as_ref();
    let is_known = version == PYTORCH || version.starts_with(&format!("{PYTORCH}."));
    let version = shorten(version.split('+').next().unwrap_or_default());
    (!is_known).then(|| {
        format!("the graph was exported by PyTorch {version}, and is answered as PyTorch {PYTORCH} runs it")
    })
}

/// Whether the graph leaves the length of samples open, and holds for this one.
fn check_length(
    document: &Document<'_>,
    symbols: &Symbols,
    length: u64,
) -> Result<(), ExportedError> {
    let Some(named) = symbols.named() else {
        let problem = "the graph leaves no length open besides the batch, so its samples have the length that it was exported \
                       with; leave `seq_len` out, or export it with a second dynamic dimension, as in dynamic_shapes={\"input_ids\": \
                       {0: Dim(\"batch\"), 1: Dim(\"length\")}}";
        return Err(refused("")(problem.to_owned()));
    };
    let mut ranges = document.range_constraints.iter();
    let range = ranges.find(|(name, _)| name.as_ref() == named);
    let most = range.and_then(|(_, range)| u64::try_from(range.max_val?.0).ok());
    match most.filter(|most| length > *most) {
        None => Ok(()),
        Some(most) => Err(refused("")(format!(
            "the graph was exported for lengths up to {most}, and this asks for {length}"
        ))),
    }
}

/// The largest batch that batchfit's exporter names by default (`MAX_BATCH` in its `batches.py`): no bound.
const UNASKED: u64 = 1 << 20;

/// Where the outer graph is in the document.
const GRAPH: &str = "/graph_module/graph";

pub(super) struct Walk<'a> {
    pub(super) builder: Builder,
    pub(super) modules: Modules<'a>,
    pub(super) symbols: Symbols,
    /// The most that sizes which depend on values may be, by their symbols.
    pub(super) limits: HashMap<&'a str, u64>,
    /// What stands for sizes that depend on values.
    pub(super) chosen: Vec<Chosen>,
    /// What makes masks, where sizes depend on them.
    pub(super) producers: Producers<'a>,
    /// How many percent of what values may choose they are taken to choose.
    pub(super) chosen_percent: Option<u64>,
    pub(super) grad_enabled: bool,
    pub(super) autocast_enabled: bool,
    /// For each node of the builder: whether the loss wrapper runs it, not the model.
    pub(super) in_wrapper: Vec<bool>,
    pub(super) flat: Flat,
    /// Operators that are not known, each once.
    pub(super) unknown: Unknown,
    /// What of the memory of operators is an estimate, and of which.
    pub(super) estimated: BTreeMap<&'static str, BTreeSet<&'static str>>,
    /// What is wrong with nodes.
    pub(super) problems: Problems,
    pub(super) functions: Functions<'a>,
    /// The module that calls the custom function whose backward pass is being read.
    pub(super) inside_function: Option<Call>,
}

/// Makes a [`ExportedError::Refused`] of a clause.
pub(super) fn refused(pointer: &str) -> impl Fn(String) -> ExportedError + '_ {
    move |problem| ExportedError::Refused {
        pointer: shorten_sentence(pointer),
        problem: shorten_sentence(problem),
    }
}

impl<'a> Walk<'a> {
    /// Adds the nodes of a graph. A node that is not understood is noted, and what it makes is taken as it is
    /// recorded, so that all that is wrong is found at once.
    pub(super) fn nodes(&mut self, graph: &'a GraphText<'a>, scope: &mut Scope<'a>, at: &str) {
        // Values that nothing is known of, because the nodes that make them are not understood.
        let mut lost: HashSet<&'a str> = HashSet::new();
        // Values whose types are as recorded, for the same reason: what reads them may seem to be wrong too.
        let mut doubted: HashSet<&'a str> = HashSet::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            if self.problems.is_full() || is_cancelled() {
                return;
            }
            // The pointer is only made where it is needed: on the way to an error.
            let pointer = || format!("{at}/nodes/{index}");
            if let Err(problem) = self.builder.room_for(0) {
                self.problems.note(pointer(), String::new(), problem);
                return;
            }
            let target = node
                .target
                .strip_prefix("torch.ops.")
                .unwrap_or(&node.target);
            if let Some(region) = target.strip_prefix("higher_order.") {
                let read = unknown::tensors_of(&node.inputs);
                self.functions.depth += 1;
                let ended = self.region(region, node, scope, pointer);
                self.functions.depth -= 1;
                if let Err(problem) = ended {
                    if !read.iter().any(|name| lost.contains(name)) {
                        let module = self.path_of(node);
                        self.problems.note(pointer(), module, problem);
                    }
                    lost.extend(node.outputs.iter().flat_map(tensor_names));
                }
                self.end_function(scope);
                continue;
            }
            if !IGNORED.contains(&target) && !makes_only_sizes(node) {
                let added = self.operator(target, node, scope, pointer);
                if let Err(failure) = added {
                    let read = unknown::tensors_of(&node.inputs);
                    let follows = match &failure {
                        Failure::Node(_) => read.iter().any(|name| lost.contains(name)),
                        Failure::Record(_) => read.iter().any(|name| doubted.contains(name)),
                    };
                    let (Failure::Node(problem) | Failure::Record(problem)) = failure;
                    if !follows {
                        let module = self.path_of(node);
                        self.problems.note(pointer(), module, problem);
                    }
                    doubted.extend(node.outputs.iter().flat_map(tensor_names));
                    self.stand_in(node, scope, &mut lost);
                }
            }
            self.flat.operators.push(self.builder.nodes().len());
            let results = node.outputs.iter().flat_map(tensor_names);
            let ids = results.map(|name| scope.tensors.get(name).copied());
            self.flat.values.extend(ids);
            self.end_function(scope);
        }
    }

    /// The path of the module that runs a node; empty where it cannot be told.
    pub(super) fn path_of(&mut self, node: &'a ExportedNode<'a>) -> String {
        let stack = &node.metadata.nn_module_stack;
        let call = self.modules.call(stack, &mut self.builder);
        call.map_or_else(|_| String::new(), |call| call.path)
    }

    /// Adds one ATen operator.
    fn operator(
        &mut self,
        target: &'a str,
        node: &'a ExportedNode<'a>,
        scope: &mut Scope<'a>,
        pointer: impl Fn() -> String,
    ) -> Result<(), Failure> {
        let call = match &self.inside_function {
            Some(call) => call.clone(),
            None => self
                .modules
                .call(&node.metadata.nn_module_stack, &mut self.builder)?,
        };
        self.size_arguments(target, node, scope)?;
        let rows = self.known_rows(node, scope);
        let names = output_names(node)?;
        let builder = &self.builder;
        let types = |id: ValueId| {
            let value = builder.value(id);
            (value.dtype, value.shape.clone())
        };
        let arguments = Arguments {
            target,
            types: &types,
            inputs: &node.inputs,
            scope,
            rows,
            chosen_percent: self.chosen_percent,
            most_results: names.len() as u64,
        };
        if target == ops::BROADCAST_TENSORS {
            let operands = arguments.tensors("tensors")?;
            let outputs = self.broadcast(&call, &operands)?;
            return self.bind_results(target, node, scope, outputs);
        }
        let lowered =
            ops::read(&arguments).map_err(|problem| format!("cannot read {target}: {problem}"))?;
        let written = unknown::out_tensors(&node.inputs);
        let (op, operands) = if let Some(lowered) = lowered {
            lowered
        } else if let Some(written) = written {
            let operands = written.iter().map(|name| arguments.value(name));
            let operands = operands.collect::<Result<Vec<_>, _>>()?;
            let results = self.recorded(node, scope)?;
            (Op::from(Written { results }), operands)
        } else {
            let read = unknown::tensors_of(&node.inputs).into_iter();
            let operands = read.map(|name| arguments.value(name));
            let operands = operands.collect::<Result<Vec<_>, _>>();
            self.unknown.note(target, pointer, &call.path);
            let results = self.recorded(node, scope)?;
            let op = Op::from(Opaque { results });
            (op, operands?)
        };
        if let Some(what) = op.estimate() {
            self.estimated.entry(what).or_default().insert(op.name());
        }
        let outputs = self
            .builder
            .apply_many(call.id, &names, op, &operands)
            .map_err(|error| error.to_string())?;
        self.in_wrapper.push(call.in_wrapper);
        self.bind_results(target, node, scope, outputs)
    }

    /// `broadcast_tensors`: each operand expanded to the common shape; one that has it already is itself.
    fn broadcast(&mut self, call: &Call, operands: &[ValueId]) -> Result<Vec<ValueId>, Failure> {
        let weights = operands.iter().map(|id| self.builder.weight_of(*id));
        self.builder.room_for(weights.sum())?;
        let shape = |id: &ValueId| self.builder.value(*id).shape.clone();
        let shapes: Vec<Vec<Extent>> = operands.iter().map(shape).collect();
        let common = shapes
            .iter()
            .try_fold(Vec::new(), |common, shape| broadcast(&common, shape))?;
        let mut outputs = Vec::new();
        for (operand, shape) in operands.iter().zip(shapes) {
            let op = if shape == common {
                View::Alias
            } else {
                View::Expand(common.clone())
            };
            let expanded = self
                .builder
                .apply_many(call.id, &["expanded"], op, &[*operand])
                .map_err(|error| error.to_string())?;
            self.in_wrapper.push(call.in_wrapper);
            outputs.extend(expanded);
        }
        Ok(outputs)
    }

    /// Gives a node's results the names that it writes, after a look at the types that PyTorch recorded.
    fn bind_results(
        &mut self,
        target: &str,
        node: &'a ExportedNode<'a>,
        scope: &mut Scope<'a>,
        outputs: Vec<ValueId>,
    ) -> Result<(), Failure> {
        let names = output_names(node)?;
        if outputs.len() != names.len() {
            return Err(Failure::Node(format!(
                "{target} has {} results, not {}",
                outputs.len(),
                names.len()
            )));
        }
        for (name, id) in names.into_iter().zip(outputs) {
            let recorded = scope
                .types
                .get(name)
                .ok_or_else(|| format!("its result {name:?} is not in tensor_values"))?;
            self.bind_rows(target, node, id, recorded);
            self.check(name, id, recorded).map_err(Failure::Record)?;
            scope.tensors.insert(name, id);
        }
        Ok(())
    }

    fn loss(&self, graph: &GraphText<'_>, scope: &Scope<'_>) -> Result<ValueId, ExportedError> {
        let at = format!("{GRAPH}/outputs");
        let [Arg::Tensor(name)] = &*graph.outputs else {
            return Err(refused(&at)(format!(
                "the graph returns {} values; export the model with its loss, which is one scalar",
                graph.outputs.len()
            )));
        };
        let loss = scope.tensors.get(name.as_ref()).copied();
        let loss = loss.ok_or_else(|| refused(&at)(format!("no node makes {name:?}")))?;
        let value = self.builder.value(loss);
        if !value.shape.is_empty() || !value.dtype.is_float() {
            return Err(refused(&at)(format!(
                "the graph returns {name:?}, which is {} {:?}; export the model with its loss, which is \
                 one scalar",
                value.dtype, value.shape
            )));
        }
        Ok(loss)
    }
}

/// Why a node was not added.
enum Failure {
    /// It is not understood.
    Node(String),
    /// What it makes is not what was recorded.
    Record(String),
}

impl From<String> for Failure {
    fn from(problem: String) -> Failure {
        Failure::Node(problem)
    }
}

/// Whether a node computes sizes, which the graph lists with their values.
fn makes_only_sizes(node: &ExportedNode<'_>) -> bool {
    !node.outputs.is_empty()
        && node
            .outputs
            .iter()
            .all(|output| matches!(output, Arg::SymInt(_) | Arg::SymFloat(_) | Arg::Symbolic))
}

fn output_names<'a>(node: &'a ExportedNode<'a>) -> Result<Vec<&'a str>, String> {
    let mut names = Vec::new();
    for output in &node.outputs {
        match output {
            Arg::Tensor(name) => names.push(name.as_ref()),
            Arg::Tensors(list) => names.extend(list.iter().map(Text::as_ref)),
            _ => {
                return Err("it has a result that is not a tensor".into());
            }
        }
    }
    Ok(names)
}

/// The tensors that an output names.
pub(super) fn tensor_names<'a>(output: &'a Arg<'_>) -> Vec<&'a str> {
    match output {
        Arg::Tensor(name) => vec![name.as_ref()],
        Arg::Tensors(list) => list.iter().map(Text::as_ref).collect(),
        _ => Vec::new(),
    }
}

/// A key as a JSON pointer token.
pub(super) fn escape(key: &str) -> String {
    shorten(key).replace('~', "~0").replace('/', "~1")
}
