//! Calls of custom functions in the side table.
//!
//! `clients/python/src/batchfit/export/function_calls.py` writes them and says what each member means.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::ExportedError;
use super::lower::{Walk, refused};
use super::modules::Call;
use super::recorded::types;
use super::side_table::{self, Flat, TABLE};
use crate::aten::schema::{GraphText, TensorMeta};
use crate::aten::{Scope, dtype};
use crate::graph::{Builder, Content, FunctionCall, FunctionOutput, UntracedFunction, ValueId};
use crate::limits::{List, clause, shorten, shorten_sentence};
use crate::shape::{DType, Extent, broadcast};

/// How many functions a note names.
const NAMED: usize = 8;

/// A call as the table has it.
#[derive(Debug, Deserialize)]
pub(super) struct FunctionText<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    /// The first and the last operator.
    operators: [usize; 2],
    /// Why nothing else is known.
    #[serde(borrow, default)]
    reason: Option<Cow<'a, str>>,
    #[serde(default)]
    depth: usize,
    #[serde(borrow, default)]
    inputs: List<Cow<'a, str>>,
    #[serde(borrow, default)]
    outputs: List<Cow<'a, str>>,
    #[serde(default)]
    differentiable: List<bool>,
    #[serde(borrow, default)]
    saved: List<Cow<'a, str>>,
    #[serde(borrow, default)]
    held: List<Cow<'a, str>>,
    #[serde(default)]
    cast_inputs: Option<u32>,
    #[serde(default)]
    backward_autocast: bool,
    #[serde(borrow, default)]
    backward: Option<BackwardText<'a>>,
}

#[derive(Debug, Deserialize)]
struct BackwardText<'a> {
    /// For each output, the name of its gradient.
    #[serde(borrow)]
    gradients: List<Option<Cow<'a, str>>>,
    /// For each input, the name of its gradient.
    #[serde(borrow)]
    results: List<Option<Cow<'a, str>>>,
    #[serde(borrow)]
    graph: GraphText<'a>,
    operators: usize,
    values: usize,
    releases: List<List<usize>>,
}

/// The calls that are to be read while the graph is walked.
#[derive(Debug, Default)]
pub(super) struct Functions<'a> {
    texts: &'a [FunctionText<'a>],
    /// How many of them were passed.
    passed: usize,
    /// How many nested graphs the walk is inside of.
    pub(super) depth: usize,
    calls: Vec<FunctionCall>,
    untraced: Vec<UntracedFunction>,
    untraced_names: HashSet<&'a str>,
    /// The first call that does not fit the graph.
    refused: Option<ExportedError>,
}

/// The calls among the members of a side table.
#[derive(Debug, Default, Deserialize)]
struct Calls<'a> {
    #[serde(borrow, default)]
    functions: List<FunctionText<'a>>,
}

/// Reads the calls in a side table.
pub(super) fn texts(table: Option<&RawValue>) -> Result<List<FunctionText<'_>>, ExportedError> {
    let Some(table) = table else {
        return Ok(List::default());
    };
    let mut json = serde_json::Deserializer::from_str(table.get());
    let calls: Calls<'_> = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // Without the position, which is that in the table; the path says it better.
        refused(TABLE)(format!("in `{}`: {}", error.path(), clause(error.inner())))
    })?;
    let texts = calls.functions;
    let mut next = 0;
    for (index, text) in texts.iter().enumerate() {
        let [begin, end] = text.operators;
        if begin < next || end < begin {
            return Err(refused(&format!("{TABLE}/functions/{index}/operators"))(
                format!(
                    "a call has the operators {begin} to {end}; calls follow one another, and the next \
                 begins at {next} or later"
                ),
            ));
        }
        next = end.saturating_add(1);
    }
    Ok(texts)
}

impl FunctionText<'_> {
    fn check_counts(&self, backward: &BackwardText<'_>, at: &str) -> Result<(), ExportedError> {
        let counts = [
            (
                "differentiable",
                self.differentiable.len(),
                self.outputs.len(),
            ),
            (
                "backward/gradients",
                backward.gradients.len(),
                self.outputs.len(),
            ),
            (
                "backward/results",
                backward.results.len(),
                self.inputs.len(),
            ),
        ];
        for (member, given, wanted) in counts {
            if given != wanted {
                return Err(refused(&format!("{at}/{member}"))(format!(
                    "it has {given} items, not {wanted}"
                )));
            }
        }
        Ok(())
    }
}

impl<'a> Functions<'a> {
    pub(super) fn new(texts: &'a [FunctionText<'a>]) -> Functions<'a> {
        Functions {
            texts,
            ..Functions::default()
        }
    }

    /// What was read, once the walk has ended.
    pub(super) fn finish(
        self,
    ) -> Result<(Vec<FunctionCall>, Vec<UntracedFunction>), ExportedError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        if self.passed < self.texts.len() {
            let at = format!("{TABLE}/functions/{}/operators", self.passed);
            return Err(refused(&at)(
                "no graph at this depth ends a call with this operator".into(),
            ));
        }
        Ok((self.calls, self.untraced))
    }

    fn add_untraced(&mut self, name: &'a str, reason: &str) {
        if self.untraced_names.insert(name) {
            self.untraced.push(UntracedFunction {
                name: shorten(name),
                reason: shorten_sentence(reason),
            });
        }
    }
}

/// A sentence for the answer about functions that autograd is taken to look inside of.
pub(super) fn assumption(untraced: &[UntracedFunction]) -> Option<String> {
    let with_reason =
        |function: &UntracedFunction| format!("{} ({})", function.name, function.reason);
    let mut names: Vec<String> = untraced.iter().take(NAMED).map(with_reason).collect();
    if untraced.len() > NAMED {
        names.push(format!("and {} more", untraced.len() - NAMED));
    }
    (!names.is_empty()).then(|| {
        format!(
            "batchfit could not see what these custom autograd functions save and what their backward passes \
             allocate, and assumed what PyTorch's own operators inside of them would: {}",
            names.join(", ")
        )
    })
}

impl<'a> Walk<'a> {
    /// Reads the call that ends with the operator added last, if one does.
    pub(super) fn end_function(&mut self, scope: &mut Scope<'a>) {
        let texts = self.functions.texts;
        let Some(text) = texts.get(self.functions.passed) else {
            return;
        };
        let ended = self.flat.operators.len() == text.operators[1].saturating_add(1);
        if !ended || (text.reason.is_none() && text.depth != self.functions.depth) {
            return;
        }
        let at = format!("{TABLE}/functions/{}", self.functions.passed);
        self.functions.passed += 1;
        if let Some(reason) = &text.reason {
            self.functions.add_untraced(&text.name, reason);
            return;
        }
        match self.function(text, scope, &at) {
            Ok(Ok(call)) => self.functions.calls.push(call),
            Ok(Err(reason)) => self.functions.add_untraced(&text.name, &reason),
            Err(error) => {
                self.functions.refused.get_or_insert(error);
            }
        }
    }

    /// A call; or, as a clause, what of its backward pass batchfit cannot read.
    fn function(
        &mut self,
        text: &'a FunctionText<'a>,
        scope: &mut Scope<'a>,
        at: &str,
    ) -> Result<Result<FunctionCall, String>, ExportedError> {
        let Some(backward) = &text.backward else {
            return Err(refused(at)(
                "it has neither a backward pass nor a reason for having none".into(),
            ));
        };
        text.check_counts(backward, at)?;
        let [begin, end] = text.operators;
        let start = begin
            .checked_sub(1)
            .map_or(0, |before| self.flat.operators[before]);
        let nodes = start..self.flat.operators[end];
        let Some(module) = self.builder.nodes()[nodes.clone()]
            .last()
            .map(|node| node.module)
        else {
            return Ok(Err("its forward pass computes nothing".into()));
        };
        let (path, class) = self.builder.module_name(module);
        let mut inside = self.builder.inner(class);
        let inside_module = inside.module(path, class, Builder::ROOT);
        let call = Call {
            id: inside_module,
            path: path.to_owned(),
            in_wrapper: false,
        };

        let value = |name: &'a str| {
            let id = scope.tensors.get(name).copied();
            id.ok_or_else(|| {
                refused(at)(format!("it names {name:?}, which nothing before it makes"))
            })
        };
        let mut tensors: HashMap<&'a str, ValueId> = HashMap::new();
        let mut inputs = Vec::new();
        for name in text.saved.iter().chain(&text.held) {
            let id = value(name)?;
            let of = self.builder.value(id);
            let (dtype, shape) = (of.dtype, of.shape.clone());
            let inner = *tensors
                .entry(name)
                .or_insert_with(|| inside.input(name, dtype, shape, Content::Normal));
            inputs.push((id, inner));
        }
        let types = types(&backward.graph);
        let mut outputs = Vec::new();
        for (index, output) in text.outputs.iter().enumerate() {
            let made = value(output)?;
            inside.room_for(0).map_err(refused(at))?;
            let gradient = match &backward.gradients[index] {
                Some(name) => {
                    let recorded = types.get(name.as_ref()).copied();
                    let (dtype, shape) = self.gradient((name, recorded), (output, made), at)?;
                    let inner = inside.input(name, dtype, shape, Content::Normal);
                    tensors.insert(name, inner);
                    Some(inner)
                }
                None => None,
            };
            outputs.push(FunctionOutput {
                value: made,
                gradient,
                differentiable: text.differentiable[index],
            });
        }
        let arguments = text.inputs.iter().map(|name| value(name));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let Some(any) = outputs.iter().find_map(|output| output.gradient) else {
            return Ok(Err("no gradient reaches it".into()));
        };

        let inside = match self.walk_backward(backward, (inside, call, tensors), scope, at) {
            Ok(inside) => inside,
            Err(reason) => return Ok(Err(reason)),
        };
        let results = inside.results(backward, at)?;
        self.check_results(&inside, text, (&arguments, &results), at)?;
        let mut graph = inside.builder.finish(any, any);
        side_table::read_releases(
            (backward.operators, backward.values),
            &backward.releases,
            &inside.flat,
            &mut graph,
            &format!("{at}/backward"),
        )?;
        let cast_inputs = text.cast_inputs.map(dtype).transpose();
        let held = inputs.split_off(text.saved.len());
        Ok(Ok(FunctionCall {
            name: text.name.clone().into_owned(),
            nodes,
            inputs: arguments.into_iter().zip(results).collect(),
            outputs,
            saved: inputs,
            held,
            cast_inputs: cast_inputs.map_err(refused(&format!("{at}/cast_inputs")))?,
            backward_autocast: text.backward_autocast,
            backward: graph,
        }))
    }

    /// The type of a gradient, which has the shape of what it is of.
    fn gradient(
        &mut self,
        (name, recorded): (&str, Option<&TensorMeta<'_>>),
        (output, made): (&str, ValueId),
        at: &str,
    ) -> Result<(DType, Vec<Extent>), ExportedError> {
        let recorded = recorded
            .ok_or_else(|| refused(at)(format!("the gradient {name:?} is not in tensor_values")))?;
        let (dtype, shape) = self.typed(recorded).map_err(refused(at))?;
        let of = &self.builder.value(made).shape;
        if shape != *of {
            return Err(refused(at)(format!(
                "the gradient {name:?} has the shape {shape:?}, and {output:?}, whose it is, {of:?}"
            )));
        }
        Ok((dtype, shape))
    }

    /// Refuses gradients of arguments that autograd cannot sum up to their shapes.
    fn check_results(
        &self,
        inside: &Inside<'_>,
        text: &FunctionText<'_>,
        (arguments, results): (&[ValueId], &[Option<ValueId>]),
        at: &str,
    ) -> Result<(), ExportedError> {
        for ((input, name), result) in arguments.iter().zip(&text.inputs).zip(results) {
            let Some(result) = result else { continue };
            let [from, to] = [inside.builder.value(*result), self.builder.value(*input)];
            if !matches!(broadcast(&to.shape, &from.shape), Ok(both) if both == from.shape) {
                return Err(refused(at)(format!(
                    "the gradient of {name:?} has the shape {:?}, and {name:?} has {:?}",
                    from.shape, to.shape
                )));
            }
        }
        Ok(())
    }

    /// The same walk, into a graph of its own that shares nothing but sizes; or, as a clause, why not.
    fn walk_backward(
        &mut self,
        backward: &'a BackwardText<'a>,
        (builder, call, tensors): (Builder, Call, HashMap<&'a str, ValueId>),
        scope: &mut Scope<'a>,
        at: &str,
    ) -> Result<Inside<'a>, String> {
        let mut inner = Scope {
            tensors,
            sizes: std::mem::take(&mut scope.sizes),
            types: types(&backward.graph),
            ..Scope::default()
        };
        let outside = (
            std::mem::replace(&mut self.builder, builder),
            std::mem::take(&mut self.flat),
            std::mem::take(&mut self.unknown),
            std::mem::take(&mut self.functions),
            self.in_wrapper.len(),
            std::mem::take(&mut self.problems),
        );
        self.inside_function = Some(call);
        self.nodes(&backward.graph, &mut inner, &format!("{at}/backward/graph"));
        self.inside_function = None;
        scope.sizes = inner.sizes;
        let builder = std::mem::replace(&mut self.builder, outside.0);
        self.builder.keep(&builder);
        let flat = std::mem::replace(&mut self.flat, outside.1);
        let unknown = std::mem::replace(&mut self.unknown, outside.2);
        self.functions = outside.3;
        self.in_wrapper.truncate(outside.4);
        let problems = std::mem::replace(&mut self.problems, outside.5);
        if let Some(operator) = unknown.operators().first() {
            let op = &operator.op;
            return Err(format!(
                "its backward pass uses {op}, which is not supported"
            ));
        }
        if !problems.is_empty() {
            let error = problems.with(Vec::new());
            return Err(format!("its backward pass: {error}"));
        }
        Ok(Inside {
            builder,
            flat,
            tensors: inner.tensors,
        })
    }
}

/// A backward pass that has been walked.
struct Inside<'a> {
    builder: Builder,
    flat: Flat,
    tensors: HashMap<&'a str, ValueId>,
}

impl Inside<'_> {
    /// For each input, its gradient.
    fn results(
        &self,
        backward: &BackwardText<'_>,
        at: &str,
    ) -> Result<Vec<Option<ValueId>>, ExportedError> {
        let made = |name: &Cow<'_, str>| {
            let id = self.tensors.get(name.as_ref()).copied();
            id.ok_or_else(|| refused(at)(format!("its result {name:?} is made by nothing")))
        };
        let results = backward.results.iter();
        results
            .map(|name| name.as_ref().map(made).transpose())
            .collect()
    }
}

impl Flat {
    /// Whether so many operators and values were found; else what differs.
    pub(super) fn check(
        &self,
        operators: usize,
        values: usize,
        at: &str,
    ) -> Result<(), ExportedError> {
        let counts = [
            ("operators", operators, self.operators.len()),
            ("values", values, self.values.len()),
        ];
        for (name, said, found) in counts {
            if said != found {
                return Err(refused(&format!("{at}/{name}"))(format!(
                    "the table is for {said} {name}, but the graph has {found}: it was changed after the export"
                )));
            }
        }
        Ok(())
    }
}
