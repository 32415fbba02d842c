//! The side table that batchfit's exporter puts beside PyTorch's graph, as the member `batchfit`: when Python
//! lets go of values, which no graph shows.
//!
//! It numbers operators and values in the order in which they run, nested graphs in the place of the node
//! that has them. `clients/python/src/batchfit/export/document.py` writes it.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::ExportedError;
use super::lower::refused;
use crate::graph::{Graph, Releases, ValueId};
use crate::limits::{List, clause, shorten};
use crate::ops::Op;

/// Where it is in the document.
pub(super) const TABLE: &str = "/batchfit";

/// The versions that are read: without and with calls of custom functions.
const VERSIONS: [&str; 2] = ["1", "2"];

/// What the numbers of the table stand for, collected while the graph is read.
#[derive(Debug, Default)]
pub(super) struct Flat {
    /// For each operator: how many nodes the graph has once it has been added.
    pub(super) operators: Vec<usize>,
    /// The tensors that operators give.
    pub(super) values: Vec<Option<ValueId>>,
}

/// The one member that every version has.
#[derive(Debug, Default, Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    version: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Table {
    operators: usize,
    values: usize,
    /// An operator, and the values that Python lets go of after it.
    releases: List<List<usize>>,
    /// An operator after which eager code looks for packed sequences, and the value of the position ids.
    #[serde(default)]
    packed_checks: List<[usize; 2]>,
    /// The first and the last operator of a region where the code switches autocast off.
    #[serde(default)]
    without_autocast: List<[usize; 2]>,
    /// A conversion, and the value whose type its code asks for; alone, where that is a parameter's or the batch's.
    #[serde(default)]
    dtypes_of: List<List<usize>>,
}

/// Refuses a table of another version.
pub(super) fn check_version(table: Option<&RawValue>) -> Result<(), ExportedError> {
    let Some(table) = table else {
        return Ok(());
    };
    let head: Head<'_> = serde_json::from_str(table.get()).unwrap_or_default();
    let given = head.version.map_or("null", RawValue::get);
    if !VERSIONS.contains(&given) {
        let given = shorten(given);
        let [without, with] = VERSIONS;
        return Err(refused(&format!("{TABLE}/version"))(format!(
            "the side table has version {given}; this batchfit reads {without} and {with}: export the \
             model again with the exporter of this release, or remove the member \"batchfit\""
        )));
    }
    Ok(())
}

/// Reads the releases of a graph that has no further table: the backward pass of a custom function.
pub(super) fn read_releases(
    (operators, values): (usize, usize),
    releases: &[List<usize>],
    flat: &Flat,
    graph: &mut Graph,
    at: &str,
) -> Result<(), ExportedError> {
    flat.check(operators, values, at)?;
    graph.releases = Some(Reader::new(flat, graph).read(releases, at)?);
    Ok(())
}

/// Reads the table, if there is one, into a graph that has been read.
pub(super) fn read(
    table: Option<&RawValue>,
    flat: &Flat,
    graph: &mut Graph,
) -> Result<(), ExportedError> {
    let Some(table) = table else {
        return Ok(());
    };
    let mut json = serde_json::Deserializer::from_str(table.get());
    let table: Table = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // Without the position, which is that in the table; the path says it better.
        refused(TABLE)(format!("in `{}`: {}", error.path(), clause(error.inner())))
    })?;
    flat.check(table.operators, table.values, TABLE)?;
    let watched = Reader::new(flat, graph).read(&table.releases, TABLE)?;
    // Eager code looks once after an operator.
    if table.packed_checks.len() > flat.operators.len() {
        return Err(refused(&format!("{TABLE}/packed_checks"))(
            "there are more checks than operators".into(),
        ));
    }
    let mut packed_checks = Vec::new();
    for (index, [operator, value]) in table.packed_checks.iter().enumerate() {
        let at = format!("{TABLE}/packed_checks/{index}");
        let (node, id) = (node_of(flat, *operator, &at)?, value_of(flat, *value, &at)?);
        packed_checks.extend(node.zip(id));
    }
    graph.releases = Some(Releases {
        packed_checks,
        dtypes_of: read_dtypes(&table.dtypes_of, flat, graph)?,
        ..watched
    });
    // How many regions begin at each node, less how many have ended before it.
    let mut begins = vec![0_isize; graph.nodes.len() + 1];
    for (index, [first, last]) in table.without_autocast.iter().enumerate() {
        let at = format!("{TABLE}/without_autocast/{index}");
        let start = match first.checked_sub(1) {
            Some(before) => nodes_until(flat, before, &at)?,
            None => 0,
        };
        let end = nodes_until(flat, *last, &at)?;
        if start < end {
            begins[start] += 1;
            begins[end] -= 1;
        }
    }
    let mut inside = 0;
    for (node, begins) in graph.nodes.iter_mut().zip(begins) {
        inside += begins;
        node.autocast_enabled &= inside == 0;
    }
    Ok(())
}

/// Whose type conversions ask for.
fn read_dtypes(
    conversions: &[List<usize>],
    flat: &Flat,
    graph: &Graph,
) -> Result<BTreeMap<usize, Option<ValueId>>, ExportedError> {
    let mut found = BTreeMap::new();
    for (index, conversion) in conversions.iter().enumerate() {
        let at = format!("{TABLE}/dtypes_of/{index}");
        let (operator, value) = match &conversion[..] {
            [operator] => (*operator, None),
            [operator, value] => (*operator, value_of(flat, *value, &at)?),
            other => {
                let given = other.len();
                return Err(refused(&at)(format!(
                    "it has {given} numbers; an operator and a value were expected, or an operator alone"
                )));
            }
        };
        // What an operator that does nothing is noted for has no node of its own.
        let node = node_of(flat, operator, &at)?;
        let node = node.filter(|node| matches!(graph.nodes[*node].op, Op::Cast(_)));
        found.extend(node.map(|node| (node, value)));
    }
    Ok(found)
}

/// How many nodes the graph has after an operator.
fn nodes_until(flat: &Flat, operator: usize, at: &str) -> Result<usize, ExportedError> {
    flat.operators.get(operator).copied().ok_or_else(|| {
        let last = flat.operators.len();
        refused(at)(format!("operator {operator} is not among the {last}"))
    })
}

/// The node that an operator ends in; `None` before the first that does something.
fn node_of(flat: &Flat, operator: usize, at: &str) -> Result<Option<usize>, ExportedError> {
    Ok(nodes_until(flat, operator, at)?.checked_sub(1))
}

fn value_of(flat: &Flat, value: usize, at: &str) -> Result<Option<ValueId>, ExportedError> {
    flat.values.get(value).copied().ok_or_else(|| {
        let last = flat.values.len();
        refused(at)(format!("value {value} is not among the {last}"))
    })
}

struct Reader<'a> {
    flat: &'a Flat,
    /// How many names of each value are still held: an operator that does nothing gives its operand another.
    names: HashMap<ValueId, usize>,
    /// The nodes that make each value and that use it last.
    span: HashMap<ValueId, (usize, usize)>,
}

impl<'a> Reader<'a> {
    fn new(flat: &'a Flat, graph: &Graph) -> Reader<'a> {
        let mut span = HashMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in &node.outputs {
                span.insert(*id, (index, index));
            }
            for id in &node.inputs {
                span.entry(*id).and_modify(|(_, last)| *last = index);
            }
        }
        for call in &graph.functions {
            for id in call.named() {
                let reads =
                    |(_, last): &mut (usize, usize)| *last = (*last).max(call.nodes.end - 1);
                span.entry(id).and_modify(reads);
            }
        }
        let mut names = HashMap::new();
        for id in flat.values.iter().flatten() {
            // A parameter that an operator does nothing to is not made here.
            if span.contains_key(id) {
                *names.entry(*id).or_insert(0) += 1;
            }
        }
        Reader { flat, names, span }
    }

    fn read(mut self, releases: &[List<usize>], table: &str) -> Result<Releases, ExportedError> {
        let watched = self.names.keys().copied().collect();
        let mut after: BTreeMap<usize, Vec<ValueId>> = BTreeMap::new();
        for (index, release) in releases.iter().enumerate() {
            let at = format!("{table}/releases/{index}");
            let Some((operator, values)) = release.split_first() else {
                return Err(refused(&at)("it names no operator".into()));
            };
            let node = node_of(self.flat, *operator, &at)?;
            for (position, value) in values.iter().enumerate() {
                let at = format!("{at}/{}", position + 1);
                let id = value_of(self.flat, *value, &at)?;
                if let Some(node) = node
                    && let Some(id) = id.filter(|id| self.drops_the_last_name(*id))
                {
                    self.check(id, node, &at)?;
                    after.entry(node).or_default().push(id);
                }
            }
        }
        Ok(Releases {
            watched,
            after,
            packed_checks: Vec::new(),
            dtypes_of: BTreeMap::new(),
        })
    }

    fn drops_the_last_name(&mut self, id: ValueId) -> bool {
        let Some(names) = self.names.get_mut(&id) else {
            return false;
        };
        *names = names.saturating_sub(1);
        *names == 0
    }

    fn check(&self, id: ValueId, node: usize, at: &str) -> Result<(), ExportedError> {
        match self.span.get(&id) {
            Some((_, last)) if *last > node => Err(refused(at)(
                "the value is let go of before its last use: the graph was changed after the export"
                    .into(),
            )),
            _ => Ok(()),
        }
    }
}
