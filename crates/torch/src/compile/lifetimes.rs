//! When values of the forward pass die: after their last use, or when Python lets go of them.
//!
//! See Note [How long values live].

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::graph::{Graph, ModuleId, Node, ValueId};
use crate::ops::{Join, Op, Resample, View};
use crate::shape::{DType, Extent};

/// For each node, the values that die once it has run, in the order in which they do.
pub(super) fn deaths(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut deaths = assumed(graph);
    let (Some(releases), Some(last)) = (&graph.releases, graph.nodes.len().checked_sub(1)) else {
        return deaths;
    };
    // Values that Python never had, inside what is one operator to it, follow the rules.
    for dying in &mut deaths {
        dying.retain(|id| !releases.watched.contains(id));
    }
    for (node, released) in &releases.after {
        deaths[*node].extend(released.iter().filter(|id| **id != graph.loss));
    }
    let mut held = releases.watched.clone();
    for id in releases.after.values().flatten().chain([&graph.loss]) {
        held.remove(id);
    }
    deaths[last].extend(held);
    deaths
}

/// The same by rules: what the graph shows of calls and names.
fn assumed(graph: &Graph) -> Vec<Vec<ValueId>> {
    let calls = Calls::of(graph);
    let mut last = vec![0; graph.values.len()];
    let mut named = vec![0; graph.values.len()];
    let mut holder = vec![usize::MAX; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in &node.outputs {
            last[id.0 as usize] = index;
        }
        for id in &node.inputs {
            let (value, name) = (id.0 as usize, calls.named_until(*id, index));
            named[value] = name.max(named[value]);
            let (until, depth) = calls.held_until(*id, index);
            if until > last[value] {
                holder[value] = depth;
            }
            last[value] = name.max(until).max(last[value]);
        }
    }
    // What the model returns is held until the loss exists: it is the loss function's argument, or part
    // of the model's output.
    last[graph.prediction.0 as usize] = graph.nodes.len().saturating_sub(1);
    let mut made: Vec<ValueId> = graph
        .nodes
        .iter()
        .flat_map(|node| node.outputs.clone())
        .collect();
    // What ends at once ends in inner calls first, and arguments before names.
    let outlives_calls = |id: &ValueId| {
        let (value, reader) = (id.0 as usize, calls.readers[id.0 as usize].1);
        named[value] > reader && named[value] == last[value]
    };
    crate::order::by_key(&mut made, |id| {
        let held = Reverse(holder[id.0 as usize]);
        (outlives_calls(id), held, Reverse(calls.depth(*id)), *id)
    });
    let mut deaths = vec![Vec::new(); graph.nodes.len()];
    for id in made.into_iter().filter(|id| *id != graph.loss) {
        deaths[last[id.0 as usize]].push(id);
    }
    deaths
}

/// The nodes after which Hugging Face's decoders look for packed sequences, and the shape of the position
/// ids that they look at: as recorded, or where position ids are expanded to the batch and not read.
pub(super) fn packed_checks(graph: &Graph) -> Vec<(usize, [Extent; 2])> {
    if let Some(releases) = &graph.releases {
        let shape = |id: &ValueId| <[Extent; 2]>::try_from(graph.value(*id).shape.as_slice());
        let checks = releases.packed_checks.iter();
        return checks
            .filter_map(|(node, id)| Some((*node, shape(id).ok()?)))
            .collect();
    }
    let read: HashSet<ValueId> = graph
        .nodes
        .iter()
        .flat_map(|node| node.inputs.iter().copied())
        .collect();
    let unread = |node: &Node| !node.outputs.iter().any(|id| read.contains(id));
    let expanded = |node: &Node| match (&node.op, graph.value(node.outputs[0]).dtype) {
        (Op::View(View::Expand(shape)), DType::Int64) => match shape.as_slice() {
            [Extent::BATCH, positions] => Some([Extent::BATCH, *positions]),
            _ => None,
        },
        _ => None,
    };
    let nodes = graph.nodes.iter().enumerate();
    nodes
        .filter(|(_, node)| unread(node))
        .filter_map(|(index, node)| Some((index, expanded(node)?)))
        .collect()
}

/// Who calls what, and until when.
struct Calls<'a> {
    graph: &'a Graph,
    /// The node that makes each value.
    maker: Vec<Option<usize>>,
    /// How many nodes read each value, and the last one that does.
    readers: Vec<(usize, usize)>,
    /// For each module, its calls in order: the last node of each.
    ends: Vec<Vec<u32>>,
}

impl<'a> Calls<'a> {
    fn of(graph: &'a Graph) -> Calls<'a> {
        let mut maker = vec![None; graph.values.len()];
        let mut readers = vec![(0, 0); graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in &node.outputs {
                maker[id.0 as usize] = Some(index);
            }
            for id in &node.inputs {
                let (times, last) = &mut readers[id.0 as usize];
                *times += 1;
                *last = index;
            }
        }
        let mut ends: Vec<Vec<u32>> = vec![Vec::new(); graph.modules.len()];
        // The last node seen inside of each module: a call goes on while nodes follow each other.
        for (index, node) in (0_u32..).zip(&graph.nodes) {
            for caller in graph.callers(node.module) {
                let ends = &mut ends[caller.0 as usize];
                match ends.last_mut() {
                    Some(last) if *last + 1 == index => *last = index,
                    _ => ends.push(index),
                }
            }
        }
        Calls {
            graph,
            maker,
            readers,
            ends,
        }
    }

    fn module(&self, node: usize) -> ModuleId {
        self.graph.nodes[node].module
    }

    /// The last node of the call of a module that a node is in; `None` where it is in none.
    fn end(&self, module: ModuleId, node: usize) -> Option<usize> {
        let within = self
            .graph
            .callers(self.module(node))
            .any(|caller| caller == module);
        let ends = &self.ends[module.0 as usize];
        let call = ends.partition_point(|end| (*end as usize) < node);
        ends.get(call).filter(|_| within).map(|end| *end as usize)
    }

    fn depth(&self, id: ValueId) -> usize {
        let maker = self.maker[id.0 as usize];
        maker.map_or(0, |node| self.graph.callers(self.module(node)).count())
    }

    /// How long the arguments of calls hold a value that `node` reads, and how deep the call that does:
    /// the outermost one that takes it and did not make it holds it until it returns.
    fn held_until(&self, id: ValueId, node: usize) -> (usize, usize) {
        let Some(made) = self.maker[id.0 as usize] else {
            return (node, usize::MAX);
        };
        let did_not_make = |caller: &ModuleId| self.end(*caller, made).is_none_or(|end| end < node);
        let callers = self.graph.callers(self.module(node));
        let taker = callers.filter(did_not_make).last();
        taker.map_or((node, usize::MAX), |taker| {
            let end = self.end(taker, node).unwrap_or(node);
            (end, self.graph.callers(taker).count())
        })
    }

    /// How long the name of a value that `node` reads holds it, where the graph shows that it is not bound
    /// again: a lower bound, since names are not in the graph.
    fn named_until(&self, id: ValueId, node: usize) -> usize {
        let Some(made) = self.maker[id.0 as usize] else {
            return node;
        };
        let frame = self.module(node);
        let ours = self
            .graph
            .callers(self.module(made))
            .any(|caller| caller == frame);
        if !ours {
            return node;
        }
        let is_sum =
            matches!(&self.graph.nodes[node].op, Op::Elementwise(op) if op.is_sum_of_tensors());
        match (&self.graph.nodes[node].op, &self.graph.nodes[made].op) {
            // Query, key and value are three names of one function, and so are what was looked up in tables
            // and summed; `x[:, :]`, which an export shows as an alias, is written of a name.
            // What a segmentation head interpolates and then joins is collected in a list.
            (Op::Attention(_) | Op::View(View::Alias), _)
            | (Op::Join(Join::Cat { .. }), Op::Resample(Resample::Interpolate { .. })) => {
                self.end(frame, node).unwrap_or(node)
            }
            (_, Op::Embedding(_)) if is_sum => self.end(frame, node).unwrap_or(node),
            // `norm(x + residual)`: the sum has no name, so x keeps its own until the call returns.
            _ if is_sum => self.unnamed_until(node).unwrap_or(node),
            _ => node,
        }
    }

    /// For a result that only the next call in its own frame reads: the end of that call.
    fn unnamed_until(&self, node: usize) -> Option<usize> {
        let result = self.graph.nodes[node].outputs.first()?;
        let (1, reader) = self.readers[result.0 as usize] else {
            return None;
        };
        let call = self.module(reader);
        let in_frame = self.graph.module(call).parent == Some(self.module(node));
        (reader == node + 1 && in_frame)
            .then(|| self.end(call, reader))
            .flatten()
    }
}
