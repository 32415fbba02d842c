//! Walks the nodes of an exported graph and rebuilds them through a [`Builder`].

use std::borrow::Cow;
use std::collections::HashMap;

use super::arguments::{Arguments, Scope, dtype};
use super::error::ExportedError;
use super::families;
use super::modules::{Call, Modules};
use super::operator;
use super::schema::{Arg, Document, GraphText, Node, Size, SymInt, Tensor};
use super::side_table::{self, Flat};
use super::signature::{self, Declared};
use super::symbol::BatchSymbol;
use super::unknown::{self, UnknownOperator, UnknownOps};
use super::{Exported, prediction};
use crate::graph::{Builder, DType, Extent, Op, ValueId, broadcast, is_oversize};

/// Operators that compute nothing: checks left by tracing.
const IGNORED: &[&str] = &[
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
];

/// Rebuilds the graph of `document`.
pub(super) fn lower(
    document: &Document<'_>,
    assume: UnknownOps,
) -> Result<Exported, ExportedError> {
    let graph = &document.graph_module.graph;
    let modules = Modules::of(graph, &document.graph_module.signature);
    let mut walk = Walk {
        builder: Builder::new(modules.root_class()),
        modules,
        symbol: BatchSymbol::default(),
        grad_enabled: true,
        autocast_enabled: true,
        in_wrapper: Vec::new(),
        flat: Flat::default(),
        unknown: Vec::new(),
    };
    let mut scope = walk.scope(graph, GRAPH)?;
    let Declared { tensors, mut notes } =
        signature::declare(&document.graph_module, &mut walk, "/graph_module")?;
    scope.tensors = tensors;
    let walked = walk.nodes(graph, &mut scope, GRAPH);
    // What follows from an unknown operator may fail in turn; the operators are what to report.
    if assume == UnknownOps::AssumeElementwise {
        // Those that may be assumed are, and no part of what is wrong.
        let not_elementwise = |operator: &&UnknownOperator| operator.not_elementwise.is_some();
        let operators: Vec<_> = walk
            .unknown
            .iter()
            .filter(not_elementwise)
            .cloned()
            .collect();
        if !operators.is_empty() {
            return Err(ExportedError::UnknownOperators { operators });
        }
    } else if !walk.unknown.is_empty() {
        let operators = walk.unknown;
        return Err(ExportedError::UnknownOperators { operators });
    }
    walked?;
    notes.extend(unknown::assumption(&walk.unknown));

    let loss = walk.loss(graph, &scope)?;
    let prediction = prediction::prediction(walk.builder.nodes(), &walk.in_wrapper, loss);
    let mut graph = walk.builder.finish(prediction.unwrap_or(loss), loss);
    prediction::fill_inputs(&mut graph);
    side_table::read(document.batchfit.as_ref(), &walk.flat, &mut graph)?;
    Ok(Exported { graph, notes })
}

/// Where the outer graph is in the document.
const GRAPH: &str = "/graph_module/graph";

pub(super) struct Walk<'a> {
    pub(super) builder: Builder,
    pub(super) modules: Modules<'a>,
    symbol: BatchSymbol,
    grad_enabled: bool,
    autocast_enabled: bool,
    /// For each node of the builder: whether the loss wrapper runs it, not the model.
    in_wrapper: Vec<bool>,
    flat: Flat,
    /// Operators that are not known, each once.
    unknown: Vec<UnknownOperator>,
}

/// Makes a [`ExportedError::Refused`] of a clause.
pub(super) fn refused(pointer: &str) -> impl Fn(String) -> ExportedError + '_ {
    move |problem| ExportedError::Refused {
        pointer: pointer.to_owned(),
        problem,
    }
}

impl<'a> Walk<'a> {
    /// The symbolic sizes that a graph defines; its tensors are added as its nodes make them.
    fn scope(&mut self, graph: &'a GraphText<'a>, at: &str) -> Result<Scope<'a>, ExportedError> {
        let mut sizes = HashMap::new();
        for (name, size) in &graph.sym_int_values {
            let extent = self
                .extent(size)
                .map_err(refused(&format!("{at}/sym_int_values/{}", escape(name))))?;
            sizes.insert(name.as_ref(), extent);
        }
        Ok(Scope {
            tensors: HashMap::new(),
            sizes,
        })
    }

    fn nodes(
        &mut self,
        graph: &'a GraphText<'a>,
        scope: &mut Scope<'a>,
        at: &str,
    ) -> Result<(), ExportedError> {
        for (index, node) in graph.nodes.iter().enumerate() {
            // The pointer is only made where it is needed: on the way to an error.
            let pointer = || format!("{at}/nodes/{index}");
            let target = node
                .target
                .strip_prefix("torch.ops.")
                .unwrap_or(&node.target);
            if let Some(region) = target.strip_prefix("higher_order.") {
                self.region(region, node, scope, &pointer())?;
                continue;
            }
            if !IGNORED.contains(&target) && !makes_only_sizes(node) {
                self.operator(target, node, graph, scope, pointer())
                    .map_err(|Failure::Clause(problem)| refused(&pointer())(problem))?;
            }
            self.flat.operators.push(self.builder.nodes().len());
            let results = node.outputs.iter().flat_map(tensor_names);
            let ids = results.map(|name| scope.tensors.get(name).copied());
            self.flat.values.extend(ids);
        }
        Ok(())
    }

    /// Adds one ATen operator.
    fn operator(
        &mut self,
        target: &'a str,
        node: &'a Node<'a>,
        graph: &'a GraphText<'a>,
        scope: &mut Scope<'a>,
        pointer: String,
    ) -> Result<(), Failure> {
        let call = self
            .modules
            .call(&node.metadata.nn_module_stack, &mut self.builder);
        let arguments = Arguments {
            inputs: &node.inputs,
            scope,
        };
        if target == operator::BROADCAST_TENSORS {
            let operands = arguments.tensors("tensors").map_err(Failure::Clause)?;
            let outputs = self.broadcast(&call, &operands)?;
            return self.bind_results(target, node, graph, scope, outputs);
        }
        let builder = &self.builder;
        let typed = |id: ValueId| {
            let value = builder.value(id);
            (value.dtype, value.shape.clone())
        };
        let lowered = operator::lower(target, &arguments, typed)
            .map_err(|problem| Failure::Clause(format!("cannot read {target}: {problem}")))?;
        let (op, operands) = if let Some(lowered) = lowered {
            lowered
        } else {
            let read = unknown::tensors_of(&node.inputs).into_iter();
            let operands = read.map(|name| arguments.value(name));
            let operands = operands.collect::<Result<Vec<_>, _>>();
            self.note_unknown(target, pointer, &call.path);
            let results = self.recorded(node, graph).map_err(Failure::Clause)?;
            let op = Op::Opaque(results);
            (op, operands.map_err(Failure::Clause)?)
        };
        let names = output_names(node)?;
        let outputs = self
            .builder
            .apply_many(call.id, &names, op, &operands)
            .map_err(|error| Failure::Clause(error.to_string()))?;
        self.in_wrapper.push(call.in_wrapper);
        self.bind_results(target, node, graph, scope, outputs)
    }

    /// `broadcast_tensors`: each operand expanded to the common shape; one that has it already is itself.
    fn broadcast(&mut self, call: &Call, operands: &[ValueId]) -> Result<Vec<ValueId>, Failure> {
        let shape = |id: &ValueId| self.builder.value(*id).shape.clone();
        let shapes: Vec<Vec<Extent>> = operands.iter().map(shape).collect();
        let common = shapes
            .iter()
            .try_fold(Vec::new(), |common, shape| broadcast(&common, shape))
            .map_err(Failure::Clause)?;
        let mut outputs = Vec::new();
        for (operand, shape) in operands.iter().zip(shapes) {
            let op = if shape == common {
                Op::Alias
            } else {
                Op::Expand(common.clone())
            };
            let expanded = self
                .builder
                .apply_many(call.id, &["expanded"], op, &[*operand])
                .map_err(|error| Failure::Clause(error.to_string()))?;
            self.in_wrapper.push(call.in_wrapper);
            outputs.extend(expanded);
        }
        Ok(outputs)
    }

    /// Gives a node's results the names that it writes, after a look at the types that PyTorch recorded.
    fn bind_results(
        &mut self,
        target: &str,
        node: &'a Node<'a>,
        graph: &'a GraphText<'a>,
        scope: &mut Scope<'a>,
        outputs: Vec<ValueId>,
    ) -> Result<(), Failure> {
        let names = output_names(node)?;
        if outputs.len() != names.len() {
            return Err(Failure::Clause(format!(
                "{target} has {} results, not {}",
                outputs.len(),
                names.len()
            )));
        }
        for (name, id) in names.into_iter().zip(outputs) {
            let recorded = graph.tensor_values.get(name).ok_or_else(|| {
                Failure::Clause(format!("its result {name:?} is not in tensor_values"))
            })?;
            self.check(name, id, recorded).map_err(Failure::Clause)?;
            scope.tensors.insert(name, id);
        }
        Ok(())
    }

    fn note_unknown(&mut self, op: &str, pointer: String, module: &str) {
        if let Some(known) = self.unknown.iter_mut().find(|known| known.op == op) {
            known.count += 1;
            return;
        }
        self.unknown.push(UnknownOperator {
            op: op.to_owned(),
            count: 1,
            pointer,
            module: module.to_owned(),
            nearest: nearest(op),
            not_elementwise: families::not_elementwise(op),
        });
    }

    /// The types of a node's results as PyTorch recorded them.
    fn recorded(
        &mut self,
        node: &Node<'_>,
        graph: &GraphText<'_>,
    ) -> Result<Vec<(DType, Vec<Extent>)>, String> {
        let names = node.outputs.iter().flat_map(tensor_names);
        names
            .map(|name| {
                let tensor = graph
                    .tensor_values
                    .get(name)
                    .ok_or_else(|| format!("its result {name:?} is not in tensor_values"))?;
                self.typed(tensor)
            })
            .collect()
    }

    /// Compares an inferred type with the one PyTorch recorded.
    fn check(&mut self, name: &str, id: ValueId, recorded: &Tensor<'_>) -> Result<(), String> {
        let (dtype, shape) = self.typed(recorded)?;
        let value = self.builder.value(id);
        if value.shape != shape || value.dtype != dtype {
            return Err(format!(
                "the value {name:?} is {} {:?} by its operands, but recorded as {dtype} {shape:?}",
                value.dtype, value.shape
            ));
        }
        Ok(())
    }

    /// A recorded dtype and shape.
    pub(super) fn typed(&mut self, tensor: &Tensor<'_>) -> Result<(DType, Vec<Extent>), String> {
        let sizes = tensor.sizes.iter().map(|size| self.extent(size));
        let shape = sizes.collect::<Result<Vec<_>, _>>()?;
        if is_oversize(&shape) {
            return Err(format!("the shape {shape:?} is too large for any device"));
        }
        Ok((dtype(tensor.dtype)?, shape))
    }

    fn extent(&mut self, size: &Size<'_>) -> Result<Extent, String> {
        match size {
            Size::AsInt(length) => u64::try_from(*length)
                .map(Extent::fixed)
                .map_err(|_| format!("a length is {length}")),
            Size::AsExpr(expression) => self.symbol.extent(&expression.expr_str),
        }
    }

    /// Runs the nested graph of a region in place, as eager mode would.
    fn region(
        &mut self,
        region: &str,
        node: &'a Node<'a>,
        scope: &mut Scope<'a>,
        at: &str,
    ) -> Result<(), ExportedError> {
        let args: Vec<&'a Arg<'a>> = node.inputs.iter().map(|input| &input.arg).collect();
        let before = (self.grad_enabled, self.autocast_enabled);
        let (inside, graph_at) = match (region, args.as_slice()) {
            ("wrap_with_set_grad_enabled", [Arg::Bool(enabled), ..]) => ((*enabled, before.1), 1),
            // Arguments: device type, dtype, enabled, cache enabled, graph.
            ("wrap_with_autocast", [Arg::Text(device), _, Arg::Bool(false), ..]) => {
                let of_host = device == "cpu";
                ((before.0, before.1 && of_host), 4)
            }
            ("wrap_with_autocast", _) => {
                return Err(refused(at)(
                    "the graph was exported under autocast; export without it, and ask for the \
                     precision in the request"
                        .into(),
                ));
            }
            _ => {
                let call = self
                    .modules
                    .call(&node.metadata.nn_module_stack, &mut self.builder);
                let operator = UnknownOperator {
                    op: format!("higher_order.{region}"),
                    count: 1,
                    pointer: at.to_owned(),
                    module: call.path,
                    nearest: None,
                    not_elementwise: Some("it runs code of its own"),
                };
                return Err(ExportedError::UnknownOperators {
                    operators: vec![operator],
                });
            }
        };
        let Some(Arg::Graph(nested)) = args.get(graph_at) else {
            return Err(refused(&format!("{at}/inputs/{graph_at}/arg"))(
                "it is not a graph".into(),
            ));
        };
        let nested = &nested.graph;
        let nested_at = format!("{at}/inputs/{graph_at}/arg/as_graph/graph");
        let mut inner = self.scope(nested, &nested_at)?;
        bind(&nested.inputs, &args[graph_at + 1..], scope, &mut inner).map_err(refused(at))?;

        self.switch(inside);
        self.nodes(nested, &mut inner, &nested_at)?;
        self.switch(before);

        let results: Vec<&Arg<'_>> = nested.outputs.iter().collect();
        bind(&node.outputs, &results, &inner, scope).map_err(refused(at))
    }

    /// Sets whether operations from here on run with gradients and under autocast.
    fn switch(&mut self, (grad_enabled, autocast_enabled): (bool, bool)) {
        self.grad_enabled = grad_enabled;
        self.autocast_enabled = autocast_enabled;
        self.builder.set_grad_enabled(grad_enabled);
        self.builder.set_autocast_enabled(autocast_enabled);
    }

    fn loss(&self, graph: &GraphText<'_>, scope: &Scope<'_>) -> Result<ValueId, ExportedError> {
        let at = format!("{GRAPH}/outputs");
        let [Arg::Tensor(name)] = graph.outputs.as_slice() else {
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

/// Why a node was not added; its place is filled in by the loop over nodes.
enum Failure {
    Clause(String),
}

/// Gives each name in `names` what `values` stand for in another scope.
fn bind<'a>(
    names: &'a [Arg<'a>],
    values: &[&Arg<'_>],
    from: &Scope<'_>,
    to: &mut Scope<'a>,
) -> Result<(), String> {
    if names.len() != values.len() {
        return Err(format!(
            "a nested graph names {} values and gets {}",
            names.len(),
            values.len()
        ));
    }
    for (name, value) in names.iter().zip(values) {
        match (name, value) {
            (Arg::Tensor(name), Arg::Tensor(value)) => {
                let id = from.tensors.get(value.as_ref()).copied();
                let id = id.ok_or_else(|| format!("it reads {value:?}, which nothing makes"))?;
                to.tensors.insert(name.as_ref(), id);
            }
            (Arg::SymInt(SymInt::AsName(name)), Arg::SymInt(SymInt::AsName(value))) => {
                if let Some(size) = from.sizes.get(value.as_ref()) {
                    to.sizes.insert(name.as_ref(), *size);
                }
            }
            _ => return Err("a nested graph takes or gives something other than tensors".into()),
        }
    }
    Ok(())
}

/// Whether a node computes sizes, which the graph lists with their values.
fn makes_only_sizes(node: &Node<'_>) -> bool {
    !node.outputs.is_empty()
        && node
            .outputs
            .iter()
            .all(|output| matches!(output, Arg::SymInt(_) | Arg::Symbolic))
}

fn output_names<'a>(node: &'a Node<'a>) -> Result<Vec<&'a str>, Failure> {
    let mut names = Vec::new();
    for output in &node.outputs {
        match output {
            Arg::Tensor(name) => names.push(name.as_ref()),
            Arg::Tensors(list) => names.extend(list.iter().map(Cow::as_ref)),
            _ => {
                return Err(Failure::Clause(
                    "it has a result that is not a tensor".into(),
                ));
            }
        }
    }
    Ok(names)
}

/// The tensors that an output names.
fn tensor_names<'a>(output: &'a Arg<'_>) -> Vec<&'a str> {
    match output {
        Arg::Tensor(name) => vec![name.as_ref()],
        Arg::Tensors(list) => list.iter().map(Cow::as_ref).collect(),
        _ => Vec::new(),
    }
}

/// The supported operator with the most similar name, when one is similar.
fn nearest(target: &str) -> Option<&'static str> {
    let score = |known: &&str| strsim::jaro_winkler(bare(target), bare(known));
    operator::supported()
        .max_by(|a, b| score(a).total_cmp(&score(b)))
        .filter(|known| score(known) > 0.8)
}

/// `conv2d` of `aten.conv2d.default`.
fn bare(target: &str) -> &str {
    let name = target.strip_prefix("aten.").unwrap_or(target);
    name.split('.').next().unwrap_or(name)
}

/// A key as a JSON pointer token.
pub(super) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
