//! Capture of streams: what is launched becomes nodes of a graph. Events carry a capture from stream to stream.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::errors::{
    CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_MERGE, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD,
    CAPTURED_EVENT, ILLEGAL_STATE,
};
use super::streams::{self, LEGACY};
use super::{graph, is_13, passed};
use crate::handle::Lock;
use crate::names::same;
use crate::status::{INVALID_VALUE, Status, check, out, out_if};

/// `cudaStreamCaptureModeGlobal` and `cudaStreamCaptureModeRelaxed`; between them lies thread-local.
const GLOBAL: c_int = 0;
const RELAXED: c_int = 2;

thread_local! {
    /// Which captures keep this thread from calls that may wait (`cudaThreadExchangeStreamCaptureMode`); its address tells threads apart.
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// A place in a capture: what comes next depends on these nodes.
#[derive(Debug, Clone)]
pub struct Point {
    /// The capture.
    pub capture: u64,
    /// Nodes of its graph.
    pub nodes: Vec<u64>,
}

/// A capture that goes on.
struct Capture {
    graph: u64,
    /// Whether the graph is the program's own (`cudaStreamBeginCaptureToGraph`).
    is_given: bool,
    origin: u64,
    mode: c_int,
    thread: usize,
    is_valid: bool,
}

struct Captures {
    next: u64,
    all: BTreeMap<u64, Capture>,
    streams: BTreeMap<u64, Point>,
}

static CAPTURES: Lock<Captures> = Lock::new(Captures { next: 1, all: BTreeMap::new(), streams: BTreeMap::new() });

/// How many captures go on. Where none does, nothing is looked up.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

fn thread() -> usize {
    MODE.with(|mode| std::ptr::from_ref(mode) as usize)
}

impl Captures {
    /// The capture that a stream is part of.
    fn of(&mut self, stream: u64) -> Option<(&mut Capture, &mut Point)> {
        let point = self.streams.get_mut(&stream)?;
        Some((self.all.get_mut(&point.capture)?, point))
    }

    fn end(&mut self, id: u64) {
        self.all.remove(&id);
        self.streams.retain(|_, point| point.capture != id);
        ACTIVE.store(self.all.len(), Ordering::Release);
    }
}

/// Whether nothing captures. What is computed in a capture is not what a launch of the graph will leave.
pub fn is_idle() -> bool {
    ACTIVE.load(Ordering::Acquire) == 0
}

/// Looks at the capture of a stream, or changes it; `None` where it has none.
fn with<T>(stream: u64, act: impl FnOnce(&mut Capture, &mut Point) -> Result<T, Status>) -> Result<Option<T>, Status> {
    if is_idle() {
        return Ok(None);
    }
    CAPTURES.lock().of(stream).map(|(capture, point)| act(capture, point)).transpose()
}

/// Where a stream's capture is, if it is part of one.
pub fn point(stream: u64) -> Result<Option<Point>, Status> {
    with(stream, |capture, point| check(capture.is_valid, CAPTURE_INVALIDATED).map(|()| point.clone()))
}

/// Adds to the capture of a stream; `false` where it has none.
pub fn add(stream: u64, call: Option<graph::Call>) -> Result<bool, Status> {
    let added = with(stream, |capture, point| {
        check(capture.is_valid, CAPTURE_INVALIDATED)?;
        point.nodes = vec![graph::add(capture.graph, std::mem::take(&mut point.nodes), call)?];
        Ok(())
    });
    Ok(added?.is_some())
}

/// A call that waits for a stream: an error while it captures, which also spoils the capture.
pub fn refuse(stream: u64) -> Result<(), Status> {
    spoil(stream, CAPTURE_UNSUPPORTED)
}

/// Spoils the capture of a stream, which is an error; of a stream without one nothing comes.
pub fn spoil(stream: u64, status: Status) -> Result<(), Status> {
    let spoilt = with::<()>(stream, |capture, _| {
        capture.is_valid = false;
        Err(status)
    });
    spoilt.map(drop)
}

/// A call that may wait for everything (`cudaMalloc`, `cudaEventQuery`): an error while a capture forbids it to this thread.
pub fn forbid() -> Result<(), Status> {
    if is_idle() || MODE.get() == RELAXED {
        return Ok(());
    }
    let mut forbidden = Ok(());
    for capture in CAPTURES.lock().all.values_mut() {
        let is_own = capture.thread == thread() && capture.mode != RELAXED;
        if is_own || (capture.mode == GLOBAL && MODE.get() == GLOBAL) {
            capture.is_valid = false;
            forbidden = Err(CAPTURE_UNSUPPORTED);
        }
    }
    forbidden
}

/// Spoils a capture.
pub fn invalidate(id: u64) {
    if let Some(capture) = CAPTURES.lock().all.get_mut(&id) {
        capture.is_valid = false;
    }
}

/// A stream waits for a captured event: it is part of that capture from now on.
pub fn join(stream: u64, point: &Point) -> Result<(), Status> {
    let mut captures = CAPTURES.lock();
    let capture = captures.all.get(&point.capture).ok_or(CAPTURED_EVENT)?;
    check(capture.is_valid, CAPTURE_INVALIDATED)?;
    check(stream > LEGACY, CAPTURE_IMPLICIT)?;
    let own = captures.streams.entry(stream).or_insert_with(|| point.clone());
    check(own.capture == point.capture, CAPTURE_MERGE)?;
    for node in &point.nodes {
        if !own.nodes.contains(node) {
            own.nodes.push(*node);
        }
    }
    Ok(())
}

/// A stream is no more.
pub fn forget(stream: u64) {
    if !is_idle() {
        CAPTURES.lock().streams.remove(&stream);
    }
}

fn begin(stream: u64, mode: c_int, given: Option<u64>, nodes: Vec<u64>) -> Result<(), Status> {
    check((GLOBAL..=RELAXED).contains(&mode), INVALID_VALUE)?;
    streams::check(stream)?;
    check(stream > LEGACY, CAPTURE_UNSUPPORTED)?;
    let mut captures = CAPTURES.lock();
    check(captures.of(stream).is_none(), ILLEGAL_STATE)?;
    let id = captures.next;
    captures.next += 1;
    let graph = given.unwrap_or_else(graph::create);
    let capture = Capture { graph, is_given: given.is_some(), origin: stream, mode, thread: thread(), is_valid: true };
    captures.all.insert(id, capture);
    captures.streams.insert(stream, Point { capture: id, nodes });
    ACTIVE.store(captures.all.len(), Ordering::Release);
    Ok(())
}

/// Ends the capture that a stream began, and gives its graph.
fn end(stream: u64) -> Result<u64, Status> {
    streams::check(stream)?;
    let mut captures = CAPTURES.lock();
    let (capture, point) = captures.of(stream).ok_or(ILLEGAL_STATE)?;
    if capture.origin != stream {
        capture.is_valid = false;
        return Err(CAPTURE_UNMATCHED);
    }
    check(capture.mode == RELAXED || capture.thread == thread(), CAPTURE_WRONG_THREAD)?;
    let (id, graph, is_given, is_valid) = (point.capture, capture.graph, capture.is_given, capture.is_valid);
    let joined = graph::before(point.nodes.clone());
    let is_joined = captures.streams.values().filter(|other| other.capture == id).flat_map(|other| &other.nodes).all(|node| joined.contains(node));
    captures.end(id);
    drop(captures);
    if is_valid && is_joined {
        return Ok(graph);
    }
    if !is_given {
        graph::destroy(graph);
    }
    Err(if is_valid { CAPTURE_UNJOINED } else { CAPTURE_INVALIDATED })
}

/// Whether and what a stream captures.
/// Safety: places for the answers; all but the first are null where one is not wanted.
pub unsafe fn info(
    stream: u64,
    to: *mut c_int,
    to_id: *mut u64,
    to_graph: *mut u64,
    to_nodes: *mut *const u64,
    to_count: *mut usize,
) -> Result<(), Status> {
    streams::check(stream)?;
    check(!to.is_null(), INVALID_VALUE)?;
    // The list of nodes stays where it is until the stream captures more, which is as long as CUDA's does.
    let (mut status, mut id, mut graph, mut nodes, mut count) = (0, 0, 0, std::ptr::null(), 0);
    if !is_idle()
        && let Some((capture, point)) = CAPTURES.lock().of(stream)
    {
        (status, id) = (if capture.is_valid { 1 } else { 2 }, point.capture);
        (graph, nodes, count) = (capture.graph, point.nodes.as_ptr(), point.nodes.len());
    }
    out(to, status)?;
    out_if(to_id, id);
    out_if(to_graph, graph);
    out_if(to_nodes, nodes);
    out_if(to_count, count);
    Ok(())
}

runtime! {
    cudaStreamBeginCapture(stream: u64, mode: c_int) { begin(stream, mode, None, Vec::new()) }
    cudaStreamBeginCaptureToGraph(stream: u64, graph: u64, nodes: *const u64, _edges: *const c_void, count: usize, mode: c_int) {
        let nodes = graph::nodes_of(graph, nodes, count)?;
        begin(stream, mode, Some(graph), nodes)
    }
    cudaStreamEndCapture(stream: u64, to: *mut u64) {
        check(!to.is_null(), INVALID_VALUE)?;
        let graph = end(stream);
        out(to, graph.unwrap_or(0))?;
        graph.map(drop)
    }
    cudaStreamIsCapturing(stream: u64, to: *mut c_int) { info(stream, to, null_mut(), null_mut(), null_mut(), null_mut()) }
    cudaStreamGetCaptureInfo_v3(
        stream: u64, status: *mut c_int, id: *mut u64, graph: *mut u64, nodes: *mut *const u64, edges: *mut *const c_void, count: *mut usize,
    ) {
        // No edge says more than that it is one.
        out_if(edges, std::ptr::null());
        info(stream, status, id, graph, nodes, count)
    }
    cudaStreamGetCaptureInfo_v2(stream: u64, status: *mut c_int, id: *mut u64, graph: *mut u64, nodes: *mut *const u64, count: *mut usize) {
        info(stream, status, id, graph, nodes, count)
    }
    // In 12's library this name has only the first three arguments; the others are not looked at then.
    cudaStreamGetCaptureInfo(
        stream: u64, status: *mut c_int, id: *mut u64, graph: *mut u64, nodes: *mut *const u64, edges: *mut *const c_void, count: *mut usize,
    ) {
        if is_13() {
            return passed(cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, edges, count));
        }
        info(stream, status, id, null_mut(), null_mut(), null_mut())
    }
    cudaStreamUpdateCaptureDependencies_v2(stream: u64, nodes: *const u64, _edges: *const c_void, count: usize, flags: c_uint) {
        streams::check(stream)?;
        let mut captures = CAPTURES.lock();
        let (capture, point) = captures.of(stream).ok_or(ILLEGAL_STATE)?;
        let nodes = graph::nodes_of(capture.graph, nodes, count)?;
        match flags {
            // `cudaStreamAddCaptureDependencies` and `cudaStreamSetCaptureDependencies`
            0 => point.nodes.extend(nodes),
            1 => point.nodes = nodes,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
    // 13's has a list of edges before the count; flags come after.
    cudaStreamUpdateCaptureDependencies(stream: u64, nodes: *const u64, third: usize, fourth: usize, fifth: usize) {
        let (count, flags) = if is_13() { (fourth, fifth) } else { (third, fourth) };
        passed(cudaStreamUpdateCaptureDependencies_v2(stream, nodes, std::ptr::null(), count, flags as c_uint))
    }
    cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        check(!mode.is_null() && (GLOBAL..=RELAXED).contains(&mode.read_unaligned()), INVALID_VALUE)?;
        out(mode, MODE.replace(mode.read_unaligned()))
    }
}

same! {
    cudaStreamBeginCapture_ptsz = cudaStreamBeginCapture, cudaStreamBeginCaptureToGraph_ptsz = cudaStreamBeginCaptureToGraph,
    cudaStreamEndCapture_ptsz = cudaStreamEndCapture, cudaStreamIsCapturing_ptsz = cudaStreamIsCapturing,
    cudaStreamGetCaptureInfo_ptsz = cudaStreamGetCaptureInfo, cudaStreamGetCaptureInfo_v2_ptsz = cudaStreamGetCaptureInfo_v2,
    cudaStreamGetCaptureInfo_v3_ptsz = cudaStreamGetCaptureInfo_v3,
    cudaStreamUpdateCaptureDependencies_ptsz = cudaStreamUpdateCaptureDependencies,
    cudaStreamUpdateCaptureDependencies_v2_ptsz = cudaStreamUpdateCaptureDependencies_v2,
}

#[cfg(test)]
mod tests {
    use super::{RELAXED, cudaStreamBeginCapture, cudaStreamEndCapture, cudaStreamGetCaptureInfo_v2};
    use crate::runtime::errors::{
        CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, ILLEGAL_STATE,
    };
    use crate::runtime::graph::{cudaGraphDestroy, cudaGraphGetNodes};
    use crate::runtime::launch::enqueue;
    use crate::runtime::streams::{
        cudaEventCreateWithFlags, cudaEventQuery, cudaEventRecord, cudaStreamCreate, cudaStreamSynchronize, cudaStreamWaitEvent,
    };
    use crate::status::{INVALID_HANDLE, Status};

    /// What a function that makes something gives.
    fn made(make: impl FnOnce(*mut u64) -> Status) -> u64 {
        let mut handle = 0;
        assert_eq!(make(&raw mut handle), 0);
        handle
    }

    fn stream() -> u64 {
        made(|to| unsafe { cudaStreamCreate(to) })
    }

    fn event() -> u64 {
        made(|to| unsafe { cudaEventCreateWithFlags(to, 2) })
    }

    #[test]
    fn events_carry_a_capture_to_other_streams_and_back() {
        let (origin, side, fork, join) = (stream(), stream(), event(), event());
        unsafe {
            assert_eq!(cudaStreamBeginCapture(origin, RELAXED), 0);
            assert_eq!(enqueue(origin, 0), Ok(true));
            assert_eq!(cudaEventRecord(fork, origin), 0);
            assert_eq!(enqueue(side, 0), Ok(false));
            assert_eq!(cudaStreamWaitEvent(side, fork, 0), 0);
            assert_eq!(enqueue(side, 0), Ok(true));
            assert_eq!(cudaEventRecord(join, side), 0);
            assert_eq!(enqueue(origin, 0), Ok(true));
            assert_eq!(cudaStreamWaitEvent(origin, join, 0), 0);
            let (mut status, mut count) = (0, 0);
            let null = std::ptr::null_mut();
            assert_eq!(cudaStreamGetCaptureInfo_v2(origin, &raw mut status, null, null, std::ptr::null_mut(), &raw mut count), 0);
            assert_eq!((status, count), (1, 2));
            let graph = made(|to| cudaStreamEndCapture(origin, to));
            assert_eq!(cudaGraphGetNodes(graph, null, &raw mut count), 0);
            assert_eq!(count, 3);
            assert_eq!(enqueue(side, 0), Ok(false));
            assert_eq!(cudaEventQuery(join), CAPTURED_EVENT);
            assert_eq!(cudaGraphDestroy(graph), 0);
            assert_eq!(cudaGraphDestroy(graph), INVALID_HANDLE);
        }
    }

    #[test]
    fn what_a_card_does_not_capture_is_not_captured_here() {
        let (origin, side, outside, fork) = (stream(), stream(), event(), event());
        let end = |stream| {
            let mut graph = 1;
            let status = unsafe { cudaStreamEndCapture(stream, &raw mut graph) };
            assert!(status == 0 || graph == 0);
            status
        };
        unsafe {
            assert_eq!(end(origin), ILLEGAL_STATE);
            assert_eq!(cudaStreamBeginCapture(0, RELAXED), CAPTURE_UNSUPPORTED);
            assert_eq!(cudaEventRecord(outside, side), 0);
            assert_eq!(cudaStreamBeginCapture(origin, RELAXED), 0);
            assert_eq!(cudaStreamWaitEvent(origin, outside, 0), CAPTURE_ISOLATION);
            assert_eq!(end(origin), CAPTURE_INVALIDATED);
            assert_eq!(cudaStreamBeginCapture(origin, RELAXED), 0);
            assert_eq!(cudaStreamSynchronize(origin), CAPTURE_UNSUPPORTED);
            assert_eq!(enqueue(origin, 0), Err(CAPTURE_INVALIDATED));
            assert_eq!(end(origin), CAPTURE_INVALIDATED);
            for ends in [&[(side, CAPTURE_UNMATCHED), (origin, CAPTURE_INVALIDATED)][..], &[(origin, CAPTURE_UNJOINED)]] {
                assert_eq!(cudaStreamBeginCapture(origin, RELAXED), 0);
                assert_eq!(cudaEventRecord(fork, origin), 0);
                assert_eq!(cudaStreamWaitEvent(side, fork, 0), 0);
                assert_eq!(enqueue(side, 0), Ok(true));
                assert!(ends.iter().all(|&(stream, status)| end(stream) == status));
            }
        }
    }
}
