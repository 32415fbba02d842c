//! Which nodes run under a checkpoint.
//!
//! See Note [Checkpointing].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::graph::{CHECKPOINTED, Graph, ModuleId};
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
        asked[id.0 as usize] || graph.module(id).class == CHECKPOINTED
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
