//! Graphs, which captures and programs make. A node is what it depends on; of what it does only calls of the host are kept, because nothing
//! else would run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

use super::{is_13, launch, passed, streams};
use crate::handle::{Handles, fresh};
use crate::names::same;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, Status, check, out};

/// A function of the host that a stream calls (`cudaHostFn_t`).
pub type HostFunction = unsafe extern "C" fn(*mut c_void);
/// One, and its argument.
pub type Call = (HostFunction, usize);

#[derive(Debug, Clone)]
struct Node {
    before: Vec<u64>,
    call: Option<Call>,
}

#[derive(Debug, Default)]
struct Graph {
    nodes: BTreeMap<u64, Node>,
    /// Objects of the program that it keeps (`cudaGraphRetainUserObject`), and how often.
    keeps: BTreeMap<u64, usize>,
}

static GRAPHS: Handles<Graph> = Handles::new();

/// What graphs became by instantiation.
static EXECUTABLES: Handles<Graph> = Handles::new();

/// Objects of programs that graphs keep alive: how often they are kept, and what ends them.
static OBJECTS: Handles<(usize, Call)> = Handles::new();

/// Makes an empty graph.
pub fn create() -> u64 {
    GRAPHS.insert(Graph::default())
}

/// Adds a node to a graph.
pub fn add(graph: u64, before: Vec<u64>, call: Option<Call>) -> Result<u64, Status> {
    let node = fresh();
    GRAPHS.with(graph, |graph| graph.nodes.insert(node, Node { before, call })).ok_or(INVALID_HANDLE)?;
    Ok(node)
}

/// Takes a graph away, and what only it kept.
pub fn destroy(graph: u64) -> bool {
    GRAPHS.remove(graph).is_some()
}

/// All that these nodes come after, and themselves.
pub fn before(mut open: Vec<u64>) -> BTreeSet<u64> {
    let graphs = GRAPHS.lock();
    let mut seen = BTreeSet::new();
    while let Some(node) = open.pop() {
        if seen.insert(node) {
            let found = graphs.values().find_map(|graph| graph.nodes.get(&node));
            open.extend(found.into_iter().flat_map(|node| &node.before));
        }
    }
    seen
}

/// A list of nodes that a caller passes, all of this graph.
/// Safety: `nodes` is null or has `count` of them.
pub unsafe fn nodes_of(graph: u64, nodes: *const u64, count: usize) -> Result<Vec<u64>, Status> {
    let graphs = GRAPHS.lock();
    let graph = graphs.get(&graph).ok_or(INVALID_HANDLE)?;
    check((!nodes.is_null() || count == 0) && count <= graph.nodes.len(), INVALID_VALUE)?;
    let list = (0..count).map(|index| nodes.add(index).read_unaligned());
    list.map(|node| if graph.nodes.contains_key(&node) { Ok(node) } else { Err(INVALID_VALUE) }).collect()
}

impl Clone for Graph {
    /// What this one keeps is kept once more.
    fn clone(&self) -> Self {
        for (&object, &times) in &self.keeps {
            OBJECTS.with(object, |kept| kept.0 += times);
        }
        Graph { nodes: self.nodes.clone(), keeps: self.keeps.clone() }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        for (&object, &times) in &self.keeps {
            let _ = release(object, times);
        }
    }
}

/// Keeps an object less often, which ends it where nothing keeps it any more.
fn release(object: u64, times: usize) -> Result<(), Status> {
    let left = OBJECTS.with(object, |kept| {
        let left = kept.0.checked_sub(times)?;
        kept.0 = left;
        Some(left)
    });
    if left.flatten().ok_or(INVALID_VALUE)? == 0
        && let Some((_, (end, data))) = OBJECTS.remove(object)
    {
        // SAFETY: the program passed them for this.
        unsafe { end(data as *mut c_void) };
    }
    Ok(())
}

/// A list as CUDA gives it: without a place only how long it is; with one as much as there is room for, and the rest as zeros.
unsafe fn list(found: &[u64], to: *mut u64, count: *mut usize) -> Result<(), Status> {
    check(!count.is_null(), INVALID_VALUE)?;
    if to.is_null() {
        return out(count, found.len());
    }
    let room = count.read_unaligned();
    for (index, handle) in found.iter().take(room).enumerate() {
        out(to.add(index), *handle)?;
    }
    out(count, found.len().min(room))
}

unsafe fn list_nodes(graph: u64, is_wanted: impl Fn(&Node) -> bool, to: *mut u64, count: *mut usize) -> Result<(), Status> {
    let all = GRAPHS.with(graph, |graph| graph.nodes.clone()).ok_or(INVALID_HANDLE)?;
    let found: Vec<u64> = all.into_iter().filter(|(_, node)| is_wanted(node)).map(|(handle, _)| handle).collect();
    list(&found, to, count)
}

unsafe fn add_to(to: *mut u64, graph: u64, nodes: *const u64, count: usize, call: Option<Call>) -> Result<(), Status> {
    check(!to.is_null(), INVALID_VALUE)?;
    let before = nodes_of(graph, nodes, count)?;
    out(to, add(graph, before, call)?)
}

fn copy_of(graph: u64) -> Result<Graph, Status> {
    GRAPHS.with(graph, |graph| graph.clone()).ok_or(INVALID_HANDLE)
}

unsafe fn instantiate(to: *mut u64, graph: u64) -> Result<(), Status> {
    check(!to.is_null(), INVALID_VALUE)?;
    out(to, EXECUTABLES.insert(copy_of(graph)?))
}

fn of_node<T>(node: u64, act: impl FnOnce(&Graph, &Node) -> T) -> Result<T, Status> {
    let graphs = GRAPHS.lock();
    let (graph, node) = graphs.values().find_map(|graph| Some((graph, graph.nodes.get(&node)?))).ok_or(INVALID_VALUE)?;
    Ok(act(graph, node))
}

/// `cudaHostNodeParams`
#[repr(C)]
pub struct HostNode {
    function: Option<HostFunction>,
    data: usize,
}

/// `cudaGraphNodeParams` of a conditional node: which graphs it chooses from is written into it.
#[repr(C)]
pub struct ConditionalNode {
    kind: c_int,
    reserved: [c_int; 3],
    handle: u64,
    condition: c_int,
    size: c_uint,
    graphs: *const u64,
}
/// `cudaGraphNodeTypeConditional`
const CONDITIONAL: c_int = 13;
/// More than CUDA's own bound on the cases of a switch is a wild number.
const MOST_CASES: c_uint = 1 << 10;

runtime! {
    cudaGraphCreate(to: *mut u64, flags: c_uint) {
        check(!to.is_null() && flags == 0, INVALID_VALUE)?;
        out(to, create())
    }
    cudaGraphClone(to: *mut u64, graph: u64) {
        let copy = copy_of(graph)?;
        out(to, GRAPHS.insert(copy))
    }
    cudaGraphDestroy(graph: u64) { check(destroy(graph), INVALID_HANDLE) }
    cudaGraphInstantiate(to: *mut u64, graph: u64, _flags: u64) { instantiate(to, graph) }
    cudaGraphInstantiateWithParams(to: *mut u64, graph: u64, parameters: *mut [u64; 4]) {
        check(!parameters.is_null(), INVALID_VALUE)?;
        instantiate(to, graph)?;
        // `errNode_out` and `result_out`: none, and success.
        out(parameters.cast::<u64>().add(2), 0)?;
        out(parameters.cast::<u64>().add(3).cast::<c_int>(), 0)
    }
    cudaGraphExecDestroy(executable: u64) {
        EXECUTABLES.remove(executable).map(drop).ok_or(INVALID_HANDLE)
    }
    // `cudaGraphExecUpdateResultInfo` begins with its result, and success is 0.
    cudaGraphExecUpdate(executable: u64, graph: u64, result: *mut [u64; 3]) {
        let new = copy_of(graph)?;
        EXECUTABLES.with(executable, |old| std::mem::replace(old, new)).map(drop).ok_or(INVALID_HANDLE)?;
        out(result, [0; 3])
    }
    cudaGraphUpload(executable: u64, stream: u64) {
        streams::check(stream)?;
        EXECUTABLES.with(executable, |_| ()).ok_or(INVALID_HANDLE)
    }
    cudaGraphLaunch(executable: u64, stream: u64) {
        streams::check(stream)?;
        let calls: Vec<Call> = EXECUTABLES.with(executable, |graph| graph.nodes.values().filter_map(|node| node.call).collect()).ok_or(INVALID_HANDLE)?;
        if !launch::enqueue(stream, 0)? {
            for (function, data) in calls {
                function(data as *mut c_void);
            }
        }
        Ok(())
    }
    cudaGraphGetNodes(graph: u64, to: *mut u64, count: *mut usize) { list_nodes(graph, |_| true, to, count) }
    cudaGraphGetRootNodes(graph: u64, to: *mut u64, count: *mut usize) { list_nodes(graph, |node| node.before.is_empty(), to, count) }
    cudaGraphNodeGetDependencies_v2(node: u64, to: *mut u64, edges: *mut u64, count: *mut usize) {
        let before = of_node(node, |_, node| node.before.clone())?;
        list(&before, to, count)?;
        // `cudaGraphEdgeData`: 8 bytes, zero for a plain edge.
        (0..if edges.is_null() || to.is_null() { 0 } else { count.read_unaligned() }).try_for_each(|index| out(edges.add(index), 0))
    }
    cudaGraphNodeGetDependencies(node: u64, to: *mut u64, third: *mut u64, fourth: *mut usize) {
        let null = std::ptr::null_mut();
        let (edges, count) = if is_13() { (third, fourth) } else { (null, third.cast()) };
        passed(cudaGraphNodeGetDependencies_v2(node, to, edges, count))
    }
    cudaGraphNodeGetType(node: u64, to: *mut c_int) {
        // Of a node is known whether it calls the host (3); what it does else is not kept: empty (5).
        out(to, of_node(node, |_, node| if node.call.is_some() { 3 } else { 5 })?)
    }
    cudaGraphDestroyNode(node: u64) {
        let mut graphs = GRAPHS.lock();
        let graph = graphs.values_mut().find(|graph| graph.nodes.contains_key(&node)).ok_or(INVALID_VALUE)?;
        graph.nodes.remove(&node);
        graph.nodes.values_mut().for_each(|other| other.before.retain(|&before| before != node));
        Ok(())
    }
    cudaGraphDebugDotPrint(graph: u64, path: *const c_char, _flags: c_uint) {
        // What its nodes do is not kept.
        check(GRAPHS.lock().contains_key(&graph), INVALID_HANDLE)?;
        check(!path.is_null(), INVALID_VALUE)?;
        std::fs::write(OsStr::from_bytes(CStr::from_ptr(path).to_bytes()), "digraph {}\n").map_err(|_| INVALID_VALUE)
    }
    cudaGraphAddEmptyNode(to: *mut u64, graph: u64, nodes: *const u64, count: usize) { add_to(to, graph, nodes, count, None) }
    cudaGraphAddKernelNode(to: *mut u64, graph: u64, nodes: *const u64, count: usize, parameters: *const c_void) {
        check(!parameters.is_null(), INVALID_VALUE)?;
        add_to(to, graph, nodes, count, None)
    }
    cudaGraphAddHostNode(to: *mut u64, graph: u64, nodes: *const u64, count: usize, parameters: *const HostNode) {
        check(!parameters.is_null(), INVALID_VALUE)?;
        let HostNode { function, data } = parameters.read_unaligned();
        add_to(to, graph, nodes, count, Some((function.ok_or(INVALID_VALUE)?, data)))
    }
    cudaGraphAddNode_v2(to: *mut u64, graph: u64, nodes: *const u64, _edges: *const c_void, count: usize, parameters: *mut c_void) {
        check(!parameters.is_null(), INVALID_VALUE)?;
        let parameters = parameters.cast::<ConditionalNode>();
        if parameters.cast::<c_int>().read_unaligned() == CONDITIONAL {
            let size = (&raw const (*parameters).size).read_unaligned();
            check((1..=MOST_CASES).contains(&size), INVALID_VALUE)?;
            // The list belongs to the node, which lives as long as the program lets it: it stays.
            let bodies: Box<[u64]> = (0..size).map(|_| create()).collect();
            (&raw mut (*parameters).graphs).write_unaligned(Box::leak(bodies).as_ptr());
        }
        add_to(to, graph, nodes, count, None)
    }
    // 13's has a list of edges before the count.
    cudaGraphAddNode(to: *mut u64, graph: u64, nodes: *const u64, fourth: usize, fifth: usize, sixth: *mut c_void) {
        let (count, parameters) = if is_13() { (fifth, sixth) } else { (fourth, fifth as *mut c_void) };
        passed(cudaGraphAddNode_v2(to, graph, nodes, std::ptr::null(), count, parameters))
    }
    cudaGraphConditionalHandleCreate(to: *mut u64, graph: u64, _default: c_uint, _flags: c_uint) {
        check(GRAPHS.lock().contains_key(&graph), INVALID_HANDLE)?;
        out(to, fresh())
    }
    cudaUserObjectCreate(to: *mut u64, data: *mut c_void, end: Option<HostFunction>, times: c_uint, flags: c_uint) {
        // `cudaUserObjectNoDestructorSync` is demanded.
        let end = end.filter(|_| !to.is_null() && times > 0 && flags == 1).ok_or(INVALID_VALUE)?;
        out(to, OBJECTS.insert((times as usize, (end, data as usize))))
    }
    cudaUserObjectRetain(object: u64, times: c_uint) { OBJECTS.with(object, |kept| kept.0 += times as usize).ok_or(INVALID_VALUE) }
    cudaUserObjectRelease(object: u64, times: c_uint) { release(object, times as usize) }
    cudaGraphRetainUserObject(graph: u64, object: u64, times: c_uint, flags: c_uint) {
        let mut graphs = GRAPHS.lock();
        let graph = graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?;
        // With `cudaGraphUserObjectMove` the caller's own become the graph's.
        let more = if flags & 1 == 0 { times as usize } else { 0 };
        OBJECTS.with(object, |kept| kept.0 += more).ok_or(INVALID_VALUE)?;
        *graph.keeps.entry(object).or_default() += times as usize;
        Ok(())
    }
    cudaGraphReleaseUserObject(graph: u64, object: u64, times: c_uint) {
        let mut all = GRAPHS.lock();
        let kept = all.get_mut(&graph).ok_or(INVALID_HANDLE)?.keeps.get_mut(&object).ok_or(INVALID_VALUE)?;
        *kept = kept.checked_sub(times as usize).ok_or(INVALID_VALUE)?;
        drop(all);
        release(object, times as usize)
    }
}

same! {
    cudaGraphLaunch_ptsz = cudaGraphLaunch, cudaGraphUpload_ptsz = cudaGraphUpload,
    cudaGraphInstantiateWithFlags = cudaGraphInstantiate, cudaGraphInstantiateWithParams_ptsz = cudaGraphInstantiateWithParams,
}
