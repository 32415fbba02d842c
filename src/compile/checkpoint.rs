//! Activation checkpointing, as `torch.utils.checkpoint` with `use_reentrant=False` does it.
//!
//! See Note [Checkpointing].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use super::eager::{Eager, Stop};
use super::forward::{Environment, Forward};
use super::tensor::Tensor;
use crate::graph::{DType, Graph, ModuleId, ValueId};
use crate::model::Checkpointing;

/// A checkpointed call: what it takes to run it again.
pub(super) struct Frame {
    forward: Rc<Forward>,
    nodes: Range<usize>,
    /// Tensors from outside that the region reads. They live as long as the frame.
    inputs: Vec<(ValueId, Tensor)>,
    autocast: Option<DType>,
    /// How many tensors the forward pass saved.
    noted: Cell<usize>,
    /// What the second run put back, each until it is used.
    restored: RefCell<Option<Vec<Option<Tensor>>>>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "checkpoint of nodes {:?}", self.nodes)
    }
}

impl Frame {
    /// A frame for these nodes.
    pub(super) fn new(
        forward: &Rc<Forward>,
        nodes: Range<usize>,
        inputs: Vec<(ValueId, Tensor)>,
        autocast: Option<DType>,
    ) -> Rc<Frame> {
        Rc::new(Frame {
            forward: Rc::clone(forward),
            nodes,
            inputs,
            autocast,
            noted: Cell::new(0),
            restored: RefCell::new(None),
        })
    }

    /// Notes that one more tensor was saved and dropped; gives its number.
    pub(super) fn note(&self) -> usize {
        self.noted.replace(self.noted.get() + 1)
    }

    /// The tensor of this number, after running the region again if that has not happened.
    pub(super) fn unpack(
        frame: &Rc<Frame>,
        eager: &mut Eager,
        index: usize,
    ) -> Result<Tensor, Stop> {
        if frame.restored.borrow().is_none() {
            frame.recompute(eager)?;
        }
        let mut restored = frame.restored.borrow_mut();
        let slot = restored.as_mut().and_then(|slots| slots.get_mut(index));
        let tensor = slot.and_then(Option::take);
        Ok(tensor.expect("the second run saves what the first one noted"))
    }

    fn recompute(self: &Rc<Frame>, eager: &mut Eager) -> Result<(), Stop> {
        *self.restored.borrow_mut() = Some(vec![None; self.noted.get()]);
        let outside = (eager.autocast, eager.grad_enabled, eager.casts.take());
        eager.autocast = self.autocast;
        eager.grad_enabled = true;
        let mut environment = Environment::default();
        for (id, tensor) in &self.inputs {
            environment.insert(*id, Tensor::clone(tensor));
        }
        let forward = Rc::clone(&self.forward);
        let nodes = self.nodes.clone();
        let ended = eager.restoring(self, |eager| forward.run(eager, &mut environment, nodes));
        // Early stop is how a recomputation normally ends; a region that saves nothing runs through.
        match ended {
            Err(Stop::Cancelled) => return Err(Stop::Cancelled),
            Err(Stop::Restored) => {}
            Ok(()) => debug_assert!(self.noted.get() == 0, "the second run saved less"),
        }
        drop(environment);
        eager.casts.clear();
        (eager.autocast, eager.grad_enabled, eager.casts) = outside;
        Ok(())
    }
}

/// A second run under way.
#[derive(Debug)]
pub(super) struct Recomputation {
    frame: Rc<Frame>,
    done: usize,
}

impl Recomputation {
    pub(super) fn of(frame: &Rc<Frame>) -> Recomputation {
        Recomputation {
            frame: Rc::clone(frame),
            done: 0,
        }
    }

    /// Puts the next saved tensor in its place; stops after the last.
    pub(super) fn restore(&mut self, tensor: &Tensor) -> Result<(), Stop> {
        let mut restored = self.frame.restored.borrow_mut();
        let slots = restored.as_mut().expect("made before the second run");
        slots[self.done] = Some(tensor.detached());
        self.done += 1;
        if self.done == slots.len() {
            Err(Stop::Restored)
        } else {
            Ok(())
        }
    }
}

/// The node ranges that run under a checkpoint, by their first node.
///
/// See Note [Which blocks are checkpointed].
pub(super) fn regions(graph: &Graph, checkpointing: &Checkpointing) -> Vec<Range<usize>> {
    let chosen: Vec<ModuleId> = match checkpointing {
        Checkpointing::None => return Vec::new(),
        Checkpointing::PerBlock => repeated_blocks(graph),
        Checkpointing::Modules(globs) => outermost(graph, |id| {
            globs
                .iter()
                .any(|glob| matches(glob, &graph.module(id).path))
        }),
    };
    let inside = |node: usize, block: ModuleId| {
        graph
            .callers(graph.nodes[node].module)
            .any(|caller| caller == block)
    };
    let mut ranges = Vec::new();
    for block in chosen {
        let mut node = 0;
        while let Some(start) = (node..graph.nodes.len()).find(|n| inside(*n, block)) {
            let end = (start..graph.nodes.len())
                .find(|n| !inside(*n, block))
                .unwrap_or(graph.nodes.len());
            ranges.push(start..end);
            node = end;
        }
    }
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// Modules that pass the test and are inside of none that does.
fn outermost(graph: &Graph, test: impl Fn(ModuleId) -> bool) -> Vec<ModuleId> {
    (0..graph.modules.len())
        .map(|index| ModuleId(u32::try_from(index).expect("fewer than 2^32 modules")))
        .filter(|id| test(*id) && !graph.callers(*id).skip(1).any(&test))
        .collect()
}

/// Elements of lists or Sequentials that share their class with a sibling and have modules inside.
fn repeated_blocks(graph: &Graph) -> Vec<ModuleId> {
    let has_parts = |id: ModuleId| graph.modules.iter().any(|module| module.parent == Some(id));
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

/// Whether a path matches a glob: `*` stands for any characters but dots, `**` for any at all.
fn matches(glob: &str, path: &str) -> bool {
    fn go(glob: &[u8], path: &[u8]) -> bool {
        match glob {
            [] => path.is_empty(),
            [b'*', b'*', rest @ ..] => (0..=path.len()).any(|skip| go(rest, &path[skip..])),
            [b'*', rest @ ..] => {
                let end = path.iter().position(|b| *b == b'.').unwrap_or(path.len());
                (0..=end).any(|skip| go(rest, &path[skip..]))
            }
            [b'?', rest @ ..] => path.first().is_some_and(|b| *b != b'.') && go(rest, &path[1..]),
            [c, rest @ ..] => path.first() == Some(c) && go(rest, &path[1..]),
        }
    }
    go(glob.as_bytes(), path.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_stop_at_dots() {
        assert!(matches("layer*.0", "layer3.0"));
        assert!(matches("transformer.h.*", "transformer.h.11"));
        assert!(!matches("transformer.h.*", "transformer.h.11.mlp"));
        assert!(matches("transformer.**", "transformer.h.11.mlp"));
        assert!(!matches("layer?", "layer10"));
    }

    #[test]
    fn only_numbered_modules_are_list_elements() {
        assert_eq!(list_of("layer1.0"), Some("layer1"));
        assert_eq!(list_of("3"), Some(""));
        assert_eq!(list_of("layer1.0.conv1"), None);
    }
}
