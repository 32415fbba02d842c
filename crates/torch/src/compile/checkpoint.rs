//! Which nodes run under a checkpoint.
//!
//! See Note [Checkpointing].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use super::forward::{Environment, Forward};
use crate::eager::{
    Eager, Elements, History, INPUTS, Leaf, OpRecord, Saved, Stop, Tensor, TensorBody, backward_of,
};
use crate::graph::{Graph, ModuleId, REENTRANT, ValueId};
use crate::shape::DType;
use batchfit_step::{Checkpointing, Globs};

/// The node ranges that run under a checkpoint, by their first node.
///
/// See Note [Which blocks are checkpointed].
pub(super) fn regions(graph: &Graph, checkpointing: &Checkpointing) -> Vec<Range<usize>> {
    let asked: Vec<bool> = match checkpointing {
        Checkpointing::None => vec![false; graph.modules.len()],
        Checkpointing::PerBlock => repeated_blocks(graph),
        Checkpointing::Modules(globs) => {
            let globs = Globs::new(globs);
            outermost(graph, |id| globs.matches(&graph.module(id).path))
        }
    };
    // Beside what is asked for, what the model's code checkpoints itself.
    let chosen = outermost(graph, |id| {
        asked[id.0 as usize] || graph.module(id).is_checkpoint()
    });
    // A region is what follows each other inside of one block.
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut open: Option<ModuleId> = None;
    for (index, node) in graph.nodes.iter().enumerate() {
        let block = graph.callers(node.module).find(|id| chosen[id.0 as usize]);
        match ranges.last_mut() {
            Some(range) if block.is_some() && block == open => range.end = index + 1,
            _ if block.is_some() => ranges.push(index..index + 1),
            _ => {}
        }
        open = block;
    }
    ranges
}

/// Whether a region runs as `use_reentrant=True` has it.
pub(super) fn is_reentrant(graph: &Graph, region: &Range<usize>) -> bool {
    let mut callers = graph.callers(graph.nodes[region.start].module);
    callers.any(|id| graph.module(id).class == REENTRANT)
}

/// A call of `torch.utils.checkpoint.CheckpointFunction`: what its backward pass runs again.
struct Reentrant {
    forward: Rc<Forward>,
    nodes: Range<usize>,
    /// How many of the scopes that begin with the first node are open.
    opened: usize,
    /// What it reads, and whether that gets a gradient.
    inputs: Vec<(ValueId, bool)>,
    outputs: Vec<ValueId>,
    autocast: Option<DType>,
}

impl Forward {
    /// Runs nodes without gradients, and keeps what they read until their backward pass.
    pub(super) fn checkpoint_function(
        self: &Rc<Self>,
        eager: &mut Eager,
        environment: &mut Environment,
        (nodes, opened): (Range<usize>, usize),
    ) -> Result<(), Stop> {
        let inputs = self.read_from_outside(&nodes, environment);
        let operands: Vec<_> = inputs.iter().map(|(_, tensor)| Some(tensor)).collect();
        let mut draft = OpRecord::new(eager, &operands);
        for (_, tensor) in &inputs {
            draft.save(eager, "input", tensor)?;
        }
        let before = std::mem::replace(&mut eager.grad_enabled, false);
        let ended = self.run_inside(eager, environment, nodes.clone(), opened);
        eager.grad_enabled = before;
        ended?;
        let made = self.graph.nodes[nodes.clone()].iter();
        let made = made.flat_map(|node| &node.outputs).filter_map(|id| {
            let tensor = environment.get(id).filter(|tensor| tensor.dtype.is_float());
            Some((*id, tensor?.same()))
        });
        let (outputs, bodies): (Vec<ValueId>, Vec<TensorBody>) = made.unzip();
        let wants = |(id, tensor): &(ValueId, Tensor)| (*id, tensor.requires_grad());
        let call = Reentrant {
            forward: Rc::clone(self),
            nodes,
            opened,
            inputs: inputs.iter().map(wants).collect(),
            outputs: outputs.clone(),
            autocast: eager.autocast,
        };
        let results = draft.finish_many(eager, bodies, move |eager, gradients, saved| {
            call.backward(eager, gradients, saved)
        });
        environment.extend(outputs.into_iter().zip(results));
        Ok(())
    }
}

impl Reentrant {
    /// Runs all of the nodes again, and a backward pass of their own from what they make.
    fn backward(
        self,
        eager: &mut Eager,
        gradients: &[Option<Tensor>],
        saved: &Saved,
    ) -> Vec<Option<Tensor>> {
        let mut environment = Environment::default();
        let mut leaves = Vec::new();
        for (place, ((id, wants), tensor)) in self.inputs.iter().zip(saved.iter()).enumerate() {
            let mut input = TensorBody::from(Elements::clone(tensor));
            let leaf = wants.then(|| {
                Rc::new(Leaf {
                    index: INPUTS + place,
                    path: eager.label(),
                    strides: tensor.strides.clone(),
                    grad: None.into(),
                })
            });
            input.history = leaf.clone().map(History::Leaf).into();
            environment.insert(*id, Rc::new(input));
            leaves.push(leaf);
        }
        let outside = (eager.grad_enabled, eager.autocast, eager.casts.take());
        (eager.grad_enabled, eager.autocast) = (true, self.autocast);
        let ended = self
            .forward
            .run_inside(eager, &mut environment, self.nodes, self.opened);
        eager.casts.clear();
        (eager.grad_enabled, eager.autocast, eager.casts) = outside;
        let roots = self
            .outputs
            .iter()
            .zip(gradients)
            .filter_map(|(id, gradient)| {
                Some((Tensor::clone(environment.get(id)?), gradient.clone()?))
            });
        // Cancelled, both tell nothing: the engine notices too before it goes on.
        if ended.is_ok() {
            let _ = backward_of(eager, roots.collect());
        }
        drop(environment);
        let gradient = |leaf: Option<Rc<Leaf>>| leaf.and_then(|leaf| leaf.grad.take());
        leaves.into_iter().map(gradient).collect()
    }
}

/// For each module: whether it passes the test and is inside of none that does.
fn outermost(graph: &Graph, test: impl Fn(ModuleId) -> bool) -> Vec<bool> {
    let modules = (0_u32..).map(ModuleId).take(graph.modules.len());
    let passes: Vec<bool> = modules.clone().map(test).collect();
    let is_inside = |id| {
        graph
            .callers(id)
            .skip(1)
            .any(|caller| passes[caller.0 as usize])
    };
    modules
        .map(|id| passes[id.0 as usize] && !is_inside(id))
        .collect()
}

/// Elements of lists or Sequentials that share their class with a sibling and have modules inside.
pub(super) fn repeated_blocks(graph: &Graph) -> Vec<bool> {
    let parents: BTreeSet<ModuleId> = graph
        .modules
        .iter()
        .filter_map(|module| module.parent)
        .collect();
    let has_parts = |id: ModuleId| parents.contains(&id);
    // By path: a module that is called twice is still one element.
    let mut classes: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for module in &graph.modules {
        if let Some(list) = list_of(&module.path) {
            let class = module.class.as_str();
            classes
                .entry((list, class))
                .or_default()
                .insert(&module.path);
        }
    }
    outermost(graph, |id| {
        let module = graph.module(id);
        list_of(&module.path).is_some_and(|list| {
            classes
                .get(&(list, module.class.as_str()))
                .is_some_and(|paths| paths.len() > 1)
                && has_parts(id)
        })
    })
}

/// The list that a module is an element of: its path without the trailing number.
fn list_of(path: &str) -> Option<&str> {
    let (list, index) = path.rsplit_once('.').unwrap_or(("", path));
    (!index.is_empty() && index.bytes().all(|b| b.is_ascii_digit())).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbered_modules_are_list_elements() {
        assert_eq!(list_of("layer1.0"), Some("layer1"));
        assert_eq!(list_of("3"), Some(""));
        assert_eq!(list_of("layer1.0.conv1"), None);
    }
}
