//! Which parameters are gathered together, and which operations need them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::compile::checkpoint::repeated_blocks;
use crate::compile::construction::construction_order;
use crate::graph::{Graph, ModuleId, ParameterKind};
use batchfit_step::{FullyShard, Globs, unwrapped};

/// A module that `fully_shard` is called on, with what it manages: what no inner unit does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Its path; empty for the model.
    pub(super) path: String,
    /// Places in the graph's list, children before parents.
    pub(super) parameters: Vec<usize>,
    pub(super) buffers: Vec<usize>,
}

/// A call of a unit: the operations in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::compile) struct UnitCall {
    pub(in crate::compile) nodes: Range<usize>,
    /// Its place in the list of units.
    pub(in crate::compile) unit: usize,
}

/// The paths of the modules that are units, without the model itself.
pub(super) fn unit_paths(graph: &Graph, options: &FullyShard) -> Vec<String> {
    let mut paths: Vec<String> = match &options.units {
        None => {
            let modules = graph.modules.iter().zip(repeated_blocks(graph));
            let blocks = modules.filter(|(_, is_block)| *is_block);
            blocks.map(|(module, _)| module.path.clone()).collect()
        }
        Some(globs) => {
            let globs = Globs::new(globs);
            let paths = modules(graph).into_iter();
            let paths = paths.filter(|path| globs.matches(path));
            paths.map(str::to_owned).collect()
        }
    };
    // A module and what wraps it are one unit.
    paths.sort_unstable_by_key(|path| (unwrapped(path).into_owned(), path.len()));
    paths.dedup_by(|later, kept| unwrapped(later) == unwrapped(kept));
    paths
}

/// The paths of modules that can be units: those that are called, and those of parameters that no operation reads. What holds
/// modules that are called without being called itself is a list of them.
pub(in crate::compile) fn modules(graph: &Graph) -> BTreeSet<&str> {
    let called = graph.modules.iter().map(|module| module.path.as_str());
    let called: BTreeSet<&str> = called.filter(|path| !path.is_empty()).collect();
    let around = |path| std::iter::successors(parent(path), |path| parent(path));
    let lists: BTreeSet<&str> = called.iter().flat_map(|path| around(path)).collect();
    let holders = graph.parameters.iter();
    let holders = holders.flat_map(|parameter| around(parameter.path.as_str()));
    let others = holders.filter(|path| !lists.contains(path));
    called.iter().copied().chain(others).collect()
}

/// The path of what holds this.
fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('.').map(|(parent, _)| parent)
}

/// Units in the order in which `fully_shard` is called on them: inner ones first, the model last.
pub(super) fn units(graph: &Graph, paths: &[String]) -> Vec<Unit> {
    let mut units: BTreeMap<&str, Unit> = BTreeMap::new();
    let paths: Vec<_> = paths.iter().map(|path| (path, unwrapped(path))).collect();
    // The last of a unit's parameters in registration order, those of inner units too.
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for index in construction_order(&graph.parameters) {
        let parameter = &graph.parameters[index];
        let own = unwrapped(&parameter.path);
        let around = |(_, bare): &&(&String, Cow<'_, str>)| {
            let inside = own.strip_prefix(bare.as_ref());
            inside.is_some_and(|rest| rest.starts_with('.'))
        };
        let mut innermost = "";
        for (path, _) in paths.iter().filter(around) {
            let at = last.entry(path).or_default();
            *at = index.max(*at);
            if path.len() > innermost.len() {
                innermost = path;
            }
        }
        let unit = units.entry(innermost).or_insert_with(|| Unit {
            path: innermost.to_owned(),
            parameters: Vec::new(),
            buffers: Vec::new(),
        });
        match parameter.kind {
            ParameterKind::Trained | ParameterKind::Frozen => unit.parameters.push(index),
            ParameterKind::Buffer => unit.buffers.push(index),
        }
    }
    let mut units: Vec<Unit> = units.into_values().collect();
    crate::order::by_key(&mut units, |unit| {
        let at = last.get(unit.path.as_str()).copied();
        (at.unwrap_or(usize::MAX), std::cmp::Reverse(unit.path.len()))
    });
    if units.last().is_none_or(|unit| !unit.path.is_empty()) {
        units.push(Unit {
            path: String::new(),
            parameters: Vec::new(),
            buffers: Vec::new(),
        });
    }
    units
}

/// Calls of units, in the order in which they begin, outer ones first. One ends inside of another or not at all.
pub(super) fn calls(graph: &Graph, units: &[Unit]) -> Vec<UnitCall> {
    let unit_of = |id: ModuleId| {
        let path = &graph.module(id).path;
        let is_it = |unit: &Unit| unit.path == *path && !path.is_empty();
        units.iter().position(is_it)
    };
    let modules = (0_u32..).map(ModuleId).take(graph.modules.len());
    let unit_of: Vec<Option<usize>> = modules.map(unit_of).collect();
    let mut ranges: BTreeMap<ModuleId, UnitCall> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in graph.callers(node.module) {
            let Some(unit) = unit_of[id.0 as usize] else {
                continue;
            };
            let call = ranges.entry(id).or_insert_with(|| UnitCall {
                nodes: index..index,
                unit,
            });
            call.nodes.end = index + 1;
        }
    }
    let mut calls: Vec<UnitCall> = ranges.into_values().collect();
    crate::order::by_key(&mut calls, |call| {
        (call.nodes.start, std::cmp::Reverse(call.nodes.end))
    });
    let mut open: Vec<usize> = Vec::new();
    for call in &mut calls {
        open.retain(|end| *end > call.nodes.start);
        if let Some(end) = open.last() {
            call.nodes.end = call.nodes.end.min(*end);
        }
        open.push(call.nodes.end);
    }
    calls
}
