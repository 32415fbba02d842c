//! The graph that is being traced, and the names that hold its tensors.

mod function;
mod making;
mod order;
mod tensor;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::adapters::{ADAPTED_MODEL, Trained};
use super::argument::{ArgText, Argument};
use super::module_path::ModulePath;
use crate::aten::schema::NamedArg;
use crate::aten::{Arguments, MOST_PARTS, Scope};
use crate::exported::{fill_inputs, prediction};
use crate::graph::{
    Builder, Content, FunctionCall, Graph, GraphError, ModuleId, ParameterKind, Releases, ValueId,
};
use crate::limits::Text;
use crate::ops::{self, Cast, Op};
use crate::shape::{DType, Extent, Type, is_oversize};
use batchfit_step::unwrapped;

use order::in_order_of_exports;
use tensor::Shared;
pub(crate) use tensor::Tensor;

/// Traces one model. Clones trace the same one.
#[derive(Debug, Clone)]
pub(crate) struct Tracer(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    builder: Builder,
    /// The modules being called, outermost first.
    calls: Vec<ModuleId>,
    /// How often modules were called, by path.
    earlier: HashMap<String, u32>,
    /// How many results were named after each operator.
    named: HashMap<&'static str, u32>,
    releases: Releases,
    /// Calls of custom functions.
    functions: Vec<FunctionCall>,
    /// Parameters, buffers and constants by their paths.
    held: HashMap<String, ValueId>,
    /// Modules, parameters and buffers by their paths, in the order in which they are made.
    made: HashMap<String, usize>,
    /// How many constants there are.
    constants: u32,
    /// The dtype of parameters: `torch.get_default_dtype()` while the model is made.
    dtype: DType,
    trained: Trained,
    attending: Attending,
    /// What modules returned and their callers name till they end, by how many calls these are in.
    kept: Vec<(usize, Tensor)>,
    /// What cannot be made, and where.
    unmade: Vec<(String, GraphError)>,
    error: Option<GraphError>,
    /// Whether modules are made and not called.
    only_makes: bool,
    /// Whether the loss exists: what is let go of now was alive with it.
    is_over: bool,
}

/// How `eager_attention_forward` makes probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Eager {
    /// The type that its softmax names, if it names one.
    pub(crate) softmax: Option<DType>,
    /// Whether they are cast to the type of queries then.
    pub(crate) casts: bool,
}

/// How all attention runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attending {
    /// How it is written out, where it is.
    pub(crate) eager: Option<Eager>,
    /// `attention_mask` of texts that are padded, where causal masks are to be made of it.
    pub(crate) padding: Option<Tensor>,
    /// The mask that all layers are given.
    pub(crate) mask: Option<Tensor>,
}

/// Whose dtype a cast asks for: `x.dtype`, which may be kept longer than `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsksFor {
    pub(crate) dtype: DType,
    of: Option<ValueId>,
}

impl Tracer {
    /// A model whose root is of this class, with parameters of this dtype.
    pub(crate) fn new(class: &str, dtype: DType) -> Tracer {
        Tracer(Rc::new(RefCell::new(State {
            builder: Builder::new(class),
            calls: vec![Builder::ROOT],
            earlier: HashMap::new(),
            named: HashMap::new(),
            releases: Releases::default(),
            functions: Vec::new(),
            held: HashMap::new(),
            made: HashMap::new(),
            constants: 0,
            dtype,
            trained: Trained::default(),
            attending: Attending::default(),
            kept: Vec::new(),
            unmade: Vec::new(),
            error: None,
            only_makes: false,
            is_over: false,
        })))
    }

    /// The dtype of parameters.
    pub(crate) fn dtype(&self) -> DType {
        self.0.borrow().dtype
    }

    /// Says what of the model is trained, before any of its modules is made; all of it by default.
    pub(crate) fn train(&self, trained: Trained) {
        let mut state = self.0.borrow_mut();
        if trained.lora.is_some() {
            let model = state.builder.module_name(Builder::ROOT).1.to_owned();
            let mut wrapped = Builder::new("peft.peft_model.PeftModelForCausalLM");
            let outer = wrapped.module(
                "base_model",
                "peft.tuners.lora.model.LoraModel",
                Builder::ROOT,
            );
            let inner = wrapped.module(ADAPTED_MODEL, &model, outer);
            state.builder = wrapped;
            state.calls = vec![inner];
        }
        state.trained = trained;
    }

    /// Says how all attention runs from now on.
    pub(crate) fn attend(&self, how: Attending) {
        let before = std::mem::replace(&mut self.0.borrow_mut().attending, how);
        drop(before);
    }

    /// How all attention runs.
    pub(crate) fn attending(&self) -> Attending {
        self.0.borrow().attending.clone()
    }

    /// Looks at what is trained.
    pub(super) fn trained<T>(&self, look: impl FnOnce(&Trained) -> T) -> T {
        look(&self.0.borrow().trained)
    }

    /// A parameter, which is made unless it was before.
    pub(crate) fn parameter(&self, path: &str, shape: &[u64]) -> Tensor {
        let kind = self.0.borrow().trained.kind(path);
        self.held(path, shape, self.dtype(), kind)
    }

    /// A parameter that is never trained, as one with `requires_grad=False`.
    pub(crate) fn frozen_parameter(&self, path: &str, shape: &[u64]) -> Tensor {
        self.held(path, shape, self.dtype(), ParameterKind::Frozen)
    }

    /// A parameter of an adapter.
    pub(super) fn adapter_parameter(&self, path: &str, shape: &[u64], dtype: DType) -> Tensor {
        self.held(path, shape, dtype, ParameterKind::Trained)
    }

    /// A buffer.
    pub(crate) fn buffer(&self, path: &str, shape: &[u64], dtype: DType) -> Tensor {
        self.held(path, shape, dtype, ParameterKind::Buffer)
    }

    /// A tensor that Python code makes of numbers, such as the index in `x[:, [0]]`; exported graphs hold it.
    pub(crate) fn constant(&self, shape: &[u64], dtype: DType) -> Tensor {
        let path = {
            let mut state = self.0.borrow_mut();
            let name = format!("lifted_tensor_{}", state.constants);
            state.constants += 1;
            match state.module() {
                root if root.is_empty() => name,
                module => unwrapped(&format!("{module}.{name}")).into_owned(),
            }
        };
        self.stored(&path, shape, dtype, ParameterKind::Buffer)
    }

    fn held(&self, path: &str, shape: &[u64], dtype: DType, kind: ParameterKind) -> Tensor {
        self.register(path);
        self.stored(path, shape, dtype, kind)
    }

    fn stored(&self, path: &str, shape: &[u64], dtype: DType, kind: ParameterKind) -> Tensor {
        let mut state = self.0.borrow_mut();
        let path = &state.in_wrapper(path);
        if let Some(id) = state.held.get(path).copied() {
            drop(state);
            return self.named(vec![id], false);
        }
        let mut extents: Vec<Extent> = shape.iter().copied().map(Extent::fixed).collect();
        if is_oversize(&extents) {
            let error = GraphError {
                op: "parameter",
                module: path.to_owned(),
                problem: format!("{shape:?} is too large for any device"),
            };
            state.unmade.push((path.to_owned(), error));
            extents.clear();
        }
        let id = state.builder.parameter(path, kind, dtype, extents);
        state.held.insert(path.clone(), id);
        drop(state);
        self.named(vec![id], false)
    }

    /// A tensor of the batch; call in the order in which the training loop makes them.
    pub(crate) fn input(&self, name: &str, shape: &[Extent], dtype: DType) -> Tensor {
        let content = if dtype.is_float() {
            Content::Normal
        } else {
            Content::Below(1)
        };
        let mut state = self.0.borrow_mut();
        let mut shape = shape.to_vec();
        if is_oversize(&shape) {
            state.fail(GraphError {
                op: "input",
                module: String::new(),
                problem: format!("{name} of {shape:?} is too large for any device"),
            });
            shape.clear();
        }
        let id = state.builder.input(name, dtype, shape, content);
        drop(state);
        self.named(vec![id], false)
    }

    fn named(&self, values: Vec<ValueId>, is_made: bool) -> Tensor {
        Tensor(Rc::new(Shared {
            state: Rc::clone(&self.0),
            values: RefCell::new(values),
            is_made,
        }))
    }

    /// Runs a module's `forward`.
    pub(crate) fn in_module<T>(&self, place: &ModulePath, forward: impl FnOnce() -> T) -> T {
        if self.0.borrow().only_makes {
            return forward();
        }
        {
            let mut state = self.0.borrow_mut();
            let path = state.in_wrapper(&place.path);
            let earlier = state.earlier.entry(path.clone()).or_insert(0);
            let before = *earlier;
            *earlier += 1;
            let parent = *state.calls.last().expect("the root is always being called");
            let call = state.builder.call(&path, &place.class, parent, before);
            state.calls.push(call);
        }
        let result = forward();
        let mut state = self.0.borrow_mut();
        let depth = state.calls.len();
        state.calls.pop();
        let is_kept = |(until, _): &mut (usize, Tensor)| *until >= depth;
        let gone: Vec<_> = state.kept.extract_if(.., is_kept).collect();
        drop(state);
        drop(gone);
        result
    }

    /// Names a tensor until the caller of the module that runs now ends, as `output, _ = self.attention(...)` does.
    pub(crate) fn keep_for_caller(&self, x: Tensor) {
        let mut state = self.0.borrow_mut();
        let caller = state.calls.len().saturating_sub(1);
        state.kept.push((caller, x));
    }

    /// Runs code under `torch.no_grad()`.
    pub(crate) fn no_grad<T>(&self, code: impl FnOnce() -> T) -> T {
        self.0.borrow_mut().builder.set_grad_enabled(false);
        let result = code();
        self.0.borrow_mut().builder.set_grad_enabled(true);
        result
    }

    /// Runs code under `torch.autocast(enabled=False)`.
    pub(crate) fn without_autocast<T>(&self, code: impl FnOnce() -> T) -> T {
        self.0.borrow_mut().builder.set_autocast_enabled(false);
        let result = code();
        self.0.borrow_mut().builder.set_autocast_enabled(true);
        result
    }

    /// Notes that eager code looks for packed sequences in these position ids now, as transformers' masks do.
    pub(crate) fn look_for_packed_sequences(&self, position_ids: &Tensor) {
        let mut state = self.0.borrow_mut();
        if let Some(last) = state.builder.nodes().len().checked_sub(1) {
            let id = position_ids.id();
            state.releases.packed_checks.push((last, id));
        }
    }

    /// Says that the model cannot be built.
    pub(crate) fn fail(&self, op: &'static str, problem: impl Into<String>) {
        let module = self.0.borrow().module();
        self.fail_at(module, op, problem);
    }

    /// Says that the module at this path cannot be built.
    pub(crate) fn fail_at(&self, module: String, op: &'static str, problem: impl Into<String>) {
        self.0.borrow_mut().fail(GraphError {
            op,
            module,
            problem: problem.into(),
        });
    }

    /// What did not fit until now, if anything.
    pub(crate) fn check(&self) -> Result<(), GraphError> {
        self.0.borrow_mut().check()
    }

    /// Calls an operator with one result.
    pub(crate) fn call(&self, target: &'static str, arguments: &[(&str, Argument<'_>)]) -> Tensor {
        let mut made = self.call_many(target, arguments);
        if made.is_empty() {
            self.fail(target, "it has no result");
            return self.nothing();
        }
        made.swap_remove(0)
    }

    /// Calls an operator, `aten.add.Tensor` for example, with arguments by the names in its schema.
    pub(crate) fn call_many(
        &self,
        target: &'static str,
        arguments: &[(&str, Argument<'_>)],
    ) -> Vec<Tensor> {
        let outputs = self.0.borrow_mut().apply(target, arguments);
        match outputs {
            Some(outputs) => outputs
                .into_iter()
                .map(|id| self.named(vec![id], true))
                .collect(),
            // Enough for every operator that is taken apart; nothing is added any more.
            None => vec![self.nothing(); MOST_RESULTS],
        }
    }

    /// Stands for a result after something did not fit.
    fn nothing(&self) -> Tensor {
        self.named(vec![ValueId(0)], false)
    }

    /// The graph: `loss` is the scalar that is trained on.
    pub(crate) fn finish(self, loss: &Tensor) -> Result<Graph, GraphError> {
        let mut graph = self.clone().finish_with(None, loss)?;
        let state = self.0.borrow();
        let parameters = &mut graph.parameters;
        parameters.sort_by_cached_key(|parameter| state.rank(&parameter.path));
        Ok(in_order_of_exports(graph))
    }

    /// The graph of a model that returns `result`; `None` for what the loss is computed from.
    pub(crate) fn finish_with(
        self,
        result: Option<&Tensor>,
        loss: &Tensor,
    ) -> Result<Graph, GraphError> {
        let (result, loss) = (result.map(Tensor::id), loss.id());
        let mut state = self.0.borrow_mut();
        state.is_over = true;
        state.check()?;
        let builder = std::mem::replace(&mut state.builder, Builder::new(""));
        let mut releases = std::mem::take(&mut state.releases);
        let made = builder.nodes().iter().flat_map(|node| &node.outputs);
        releases.watched = made.copied().collect::<BTreeSet<_>>();
        let in_wrapper = vec![false; builder.nodes().len()];
        let predicted = result.or_else(|| prediction(builder.nodes(), &in_wrapper, loss));
        let mut graph = builder.finish(predicted.unwrap_or(loss), loss);
        graph.loss_is_model_output = true;
        graph.releases = Some(releases);
        graph.functions = std::mem::take(&mut state.functions);
        fill_inputs(&mut graph);
        Ok(in_order_of_exports(graph))
    }
}

/// More results than any operator has that a model takes apart by position.
const MOST_RESULTS: usize = 64;

impl State {
    /// The path of something in the model, from the root.
    fn in_wrapper(&self, path: &str) -> String {
        match self.trained.lora {
            Some(_) => format!("{ADAPTED_MODEL}.{path}"),
            None => path.to_owned(),
        }
    }

    fn module(&self) -> String {
        let call = *self.calls.last().expect("the root is always being called");
        self.builder.module_name(call).0.to_owned()
    }

    /// Keeps the first error.
    fn fail(&mut self, error: GraphError) {
        self.error.get_or_insert(error);
    }

    fn apply(
        &mut self,
        target: &'static str,
        arguments: &[(&str, Argument<'_>)],
    ) -> Option<Vec<ValueId>> {
        if self.only_makes || self.error.is_some() || !self.unmade.is_empty() {
            return None;
        }
        let applied = self.try_apply(target, arguments);
        applied.map_err(|error| self.fail(error)).ok()
    }

    fn try_apply(
        &mut self,
        target: &'static str,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result<Vec<ValueId>, GraphError> {
        let mut names = ArgText {
            tensors: Vec::new(),
            sizes: Vec::new(),
        };
        let inputs: Vec<NamedArg<'_>> = arguments
            .iter()
            .map(|(name, argument)| NamedArg {
                name: Text::There(name),
                arg: names.spell(argument),
            })
            .collect();
        let tensors = names.tensors.iter();
        let sizes = names.sizes.iter();
        let scope = Scope {
            tensors: tensors
                .map(|(name, tensor)| (name.as_str(), tensor.id()))
                .collect(),
            sizes: sizes.map(|(name, size)| (name.as_str(), *size)).collect(),
            ..Scope::default()
        };
        let builder = &self.builder;
        let types = |id: ValueId| -> Type {
            let value = builder.value(id);
            (value.dtype, value.shape.clone())
        };
        let read = ops::read(&Arguments {
            target,
            types: &types,
            inputs: &inputs,
            scope: &scope,
            rows: None,
            chosen_percent: None,
            most_results: MOST_PARTS,
        });
        let problem = |problem: String| GraphError {
            op: target,
            module: self.module(),
            problem,
        };
        let (op, operands) = read
            .map_err(problem)?
            .ok_or_else(|| problem("there is no such operator".into()))?;
        let name = op.name();
        let earlier = self.named.entry(name).or_default();
        let numbered = match *earlier {
            0 => name.to_owned(),
            earlier => format!("{name}_{earlier}"),
        };
        *earlier += 1;
        let call = *self.calls.last().expect("the root is always being called");
        self.builder.apply_many(call, &[&numbered], op, &operands)
    }

    /// Notes whose dtype the cast that was just added asks for.
    fn note_asked(&mut self, asked: AsksFor) {
        let nodes = self.builder.nodes();
        if let Some(last) = nodes.len().checked_sub(1)
            && let Op::Cast(Cast(..)) = nodes[last].op
        {
            self.releases.dtypes_of.insert(last, asked.of);
        }
    }
}
