//! Which module call a node belongs to.

use std::collections::HashMap;

use super::signature::spec_path;
use crate::aten::schema::{Arg, GraphText, Signature};
use crate::graph::{self, Builder, ModuleId};
use crate::limits::is_hidden;

/// What tracing writes for nodes that no module ran.
const NO_STACK: &str = "_empty_nn_module_stack_from_metadata_hook";

/// Deepest nesting of module calls read. The deepest models in use nest ten deep; how long values live is worked
/// out call by call.
const DEEPEST: usize = 64;

/// Longest path of a module or a parameter read. Those of the deepest models in use have a hundred bytes.
pub(super) const LONGEST_PATH: usize = 512;

/// Module calls by the text of their `nn_module_stack`.
#[derive(Debug)]
pub(super) struct Modules<'a> {
    root_class: &'a str,
    /// Whether the exported module is a wrapper that holds the model as `model` and adds the loss.
    wrapped: bool,
    calls: HashMap<&'a str, Call>,
    /// How many calls each is inside of.
    depths: HashMap<ModuleId, usize>,
}

/// A module call, as nodes refer to it.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) id: ModuleId,
    pub(super) path: String,
    /// Whether this is the loss wrapper's own code, outside the model.
    pub(super) in_wrapper: bool,
}

impl<'a> Modules<'a> {
    /// Decides whether there is a wrapper and what the model's class is.
    ///
    /// A wrapper is there when all parameters and all modules are under `model.`: a bare Hugging Face
    /// decoder also calls its inner part `model`, but its head is beside it.
    pub(super) fn of(graph: &'a GraphText<'a>, signature: &Signature<'_>) -> Modules<'a> {
        let mut stacks = Vec::new();
        collect(graph, &mut stacks);
        let under = |path: &str| path == "model" || path.starts_with("model.");
        let wrapped = signature
            .input_specs
            .iter()
            .filter_map(|spec| spec_path(spec))
            .all(under)
            && stacks
                .iter()
                .flat_map(|stack| entries(stack).skip(1))
                .all(|entry| under(entry.path))
            && stacks.iter().any(|stack| entries(stack).nth(1).is_some());
        let depth = usize::from(wrapped);
        let root_class = stacks
            .iter()
            .find_map(|stack| {
                entries(stack)
                    .filter(|entry| !entry.is_checkpoint())
                    .nth(depth)
            })
            .map_or("Model", |entry| entry.class);
        Modules {
            root_class,
            wrapped,
            calls: HashMap::new(),
            depths: HashMap::new(),
        }
    }

    /// The model's class.
    pub(super) fn root_class(&self) -> &'a str {
        self.root_class
    }

    /// A parameter's or module's path from the model.
    pub(super) fn strip<'p>(&self, path: &'p str) -> &'p str {
        match path.strip_prefix("model") {
            Some(rest) if self.wrapped => rest.strip_prefix('.').unwrap_or(rest),
            _ => path,
        }
    }

    /// The call that `stack` ends in; its callers are made on the way.
    pub(super) fn call(&mut self, stack: &'a str, builder: &mut Builder) -> Result<Call, String> {
        if let Some(call) = self.calls.get(stack) {
            return Ok(call.clone());
        }
        if stack.contains(is_hidden) {
            return Err("the name of its module has a control character".to_owned());
        }
        let mut call = Call {
            id: Builder::ROOT,
            path: String::new(),
            in_wrapper: self.wrapped && entries(stack).skip(1).all(|entry| entry.is_checkpoint()),
        };
        // The model itself is the root, also where the loss's code calls it under a checkpoint.
        let mut roots = 1 + usize::from(self.wrapped);
        for entry in entries(stack) {
            let path = self.strip(entry.path);
            if path.len().max(entry.class.len()) > LONGEST_PATH {
                return Err(format!(
                    "its module's path or class is longer than {LONGEST_PATH} bytes"
                ));
            }
            if roots > 0 && !entry.is_checkpoint() {
                roots -= 1;
                continue;
            }
            let depth = self.depths.get(&call.id).map_or(1, |depth| depth + 1);
            if depth > DEEPEST {
                return Err(format!("its module is more than {DEEPEST} calls deep"));
            }
            call.id = builder.call(path, entry.class, call.id, entry.earlier_calls());
            // The first caller counts, as in the graph.
            self.depths.entry(call.id).or_insert(depth);
            path.clone_into(&mut call.path);
        }
        self.calls.insert(stack, call.clone());
        Ok(call)
    }
}

/// One entry of an `nn_module_stack`.
struct Entry<'a> {
    key: &'a str,
    path: &'a str,
    class: &'a str,
}

impl Entry<'_> {
    /// Whether it is no module, but a call of `torch.utils.checkpoint.checkpoint`, which batchfit's exporter puts there.
    fn is_checkpoint(&self) -> bool {
        graph::is_checkpoint(self.class)
    }

    /// Tracing marks the second call of a module with `@1`, the third with `@2`, …
    fn earlier_calls(&self) -> u32 {
        let count = self.key.rsplit_once('@').map(|(_, count)| count);
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

fn entries(stack: &str) -> impl Iterator<Item = Entry<'_>> {
    stack.split(';').filter_map(|entry| {
        let mut parts = entry.splitn(3, ',');
        let (key, path, class) = (parts.next()?, parts.next()?, parts.next()?);
        (path != NO_STACK).then_some(Entry { key, path, class })
    })
}

fn collect<'a>(graph: &'a GraphText<'a>, stacks: &mut Vec<&'a str>) {
    for node in &graph.nodes {
        let stack = node.metadata.nn_module_stack.as_ref();
        if stacks.last() != Some(&stack) {
            stacks.push(stack);
        }
        for input in &node.inputs {
            if let Arg::Graph(nested) = &input.arg {
                collect(&nested.graph, stacks);
            }
        }
    }
}
