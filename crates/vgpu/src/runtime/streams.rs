//! Streams and events.
//!
//! There is a clock, which nobody's speed moves: each call takes the host a time, kernels and copies take their streams a time that follows from their
//! sizes, and an event is complete when its stream's work before it is over. Handles are numbers; 0, 1 and 2 are the default streams (null, legacy, per thread), as CUDA defines them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::devices::current_device;
use super::errors::{CAPTURE_ISOLATION, CAPTURED_EVENT};
use super::memory::IpcHandle;
use super::{capture, graph, launch, pool, trace};
use crate::handle::{Handles, Lock};
use crate::names::same;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, Status, check as check_that, out};

/// `cudaStreamLegacy` and `cudaStreamPerThread`; 0 is one of the two.
pub const LEGACY: u64 = 1;
pub const PER_THREAD: u64 = 2;

/// `cudaErrorNotReady`
const NOT_READY: Status = 600;

/// `cudaEventDisableTiming`
const DISABLE_TIMING: c_uint = 2;
/// `cudaEventInterprocess`
const INTERPROCESS: c_uint = 4;
/// `cudaEventRecordExternal`, `cudaEventWaitExternal`: not part of a capture.
const EXTERNAL: c_uint = 1;

/// What a launch counts for between two events, in each nanosecond of the host. Nothing is measured: kernels that are compared are equal, and a run is
/// repeatable. Larger than most kernels take, so that programs that repeat a kernel for some time (Triton's autotuner) are soon done.
const MILLISECONDS: f32 = 0.1 / launch::CALL as f32;

struct Stream {
    device: usize,
    flags: c_uint,
    priority: c_int,
}

static STREAMS: Handles<Stream> = Handles::new();

struct Event {
    flags: c_uint,
    device: usize,
    recorded: Recorded,
}

/// How an event was last recorded.
#[derive(Debug, Clone)]
enum Recorded {
    Never,
    /// When the host recorded it, and when it is complete.
    Until(u64, u64),
    /// In a capture.
    Captured(capture::Point),
}

static EVENTS: Handles<Event> = Handles::new();

/// Whether there is such a stream.
pub fn check(stream: u64) -> Result<(), Status> {
    device_of(stream).map(drop)
}

/// The device of a stream.
pub fn device_of(stream: u64) -> Result<usize, Status> {
    if stream <= PER_THREAD {
        return Ok(current_device());
    }
    STREAMS.with(stream, |stream| stream.device).ok_or(INVALID_HANDLE)
}

unsafe fn create(to: *mut u64, flags: c_uint, priority: c_int) -> Result<(), Status> {
    // `cudaStreamNonBlocking` is the only flag.
    check_that(!to.is_null() && flags <= 1, INVALID_VALUE)?;
    // Priorities beyond the range are its ends.
    out(to, STREAMS.insert(Stream { device: current_device(), flags, priority: priority.clamp(-5, 0) }))
}

unsafe fn create_event(to: *mut u64, flags: c_uint) -> Result<(), Status> {
    let is_wrong = flags > 7 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0);
    check_that(!to.is_null() && !is_wrong, INVALID_VALUE)?;
    out(to, EVENTS.insert(Event { flags, device: current_device(), recorded: Recorded::Never }))
}

fn recorded(event: u64) -> Result<Recorded, Status> {
    EVENTS.with(event, |event| event.recorded.clone()).ok_or(INVALID_HANDLE)
}

fn record(event: u64, stream: u64, flags: c_uint) -> Result<(), Status> {
    check_that(flags <= EXTERNAL, INVALID_VALUE)?;
    launch::spend(launch::CALL);
    let device = device_of(stream)?;
    check_that(EVENTS.with(event, |event| event.device) == Some(device), INVALID_HANDLE)?;
    let captured = if flags == EXTERNAL { None } else { capture::point(stream)? };
    let recorded = captured.map_or_else(|| Recorded::Until(launch::now(), over(stream) + lag()), Recorded::Captured);
    EVENTS.with(event, |event| event.recorded = recorded).ok_or(INVALID_HANDLE)
}

/// Whether an event is complete, which all are that can be asked.
fn complete(event: u64) -> Result<(), Status> {
    match recorded(event)? {
        Recorded::Never => Ok(()),
        Recorded::Until(..) => capture::forbid(),
        Recorded::Captured(point) => {
            capture::invalidate(point.capture);
            Err(CAPTURED_EVENT)
        }
    }
}

/// Bytes that are copied between a device and pinned memory in a nanosecond, about what an H200 took either way.
const COPIED: u64 = 54;

/// When the work of each stream is over, and that of the two that copy for all: to devices and from them.
static BUSY: Lock<BTreeMap<u64, u64>> = Lock::new(BTreeMap::new());

/// A stream works.
pub fn work(stream: u64, nanoseconds: u64) {
    let end = over(stream) + nanoseconds;
    BUSY.lock().insert(stream, end);
}

/// A stream copies between a device and the host. The most that waits (7 GB) keeps a program that polls an event no longer than as many questions.
pub fn copies(stream: u64, bytes: u64, is_home: bool, is_pinned: bool) {
    const MOST: u64 = 131_000_000;
    launch::spend(launch::CALL);
    if is_pinned {
        let engine = u64::MAX - u64::from(is_home);
        let end = (over(stream).max(over(engine)) + 2_000 + bytes / COPIED).min(launch::now() + MOST);
        BUSY.lock().extend([(stream, end), (engine, end)]);
    } else if is_home || bytes > 64 << 10 {
        // The host waits, and copies 4 GB/s.
        launch::pass(over(stream));
        launch::spend(bytes / 4);
    }
}

/// When all of a stream so far is over.
fn over(stream: u64) -> u64 {
    BUSY.lock().get(&stream).map_or(0, |until| *until).max(launch::now())
}

/// By how much a card lags behind this clock: not, unless the run is told to be late (`BATCHFIT_VGPU_LATE`); then by as many launches as its queue has room for.
fn lag() -> u64 {
    static LAG: OnceLock<u64> = OnceLock::new();
    *LAG.get_or_init(|| if std::env::var_os("BATCHFIT_VGPU_LATE").is_some_and(|late| late == "1") { 1024 * launch::CALL } else { 0 })
}

/// The host waits for all that was launched so far.
pub fn settle() {
    let last = BUSY.lock().values().copied().max().unwrap_or(0);
    launch::pass(last.max(launch::now()) + lag());
}

/// Whether a card is done with an event. Who asks over and over sees it complete.
fn query(event: u64) -> Result<(), Status> {
    complete(event)?;
    if let Recorded::Until(_, end) = recorded(event)?
        && end > launch::now()
    {
        launch::spend(1_000);
        return Err(NOT_READY);
    }
    Ok(())
}

fn wait(stream: u64, event: u64, flags: c_uint) -> Result<(), Status> {
    check_that(flags <= EXTERNAL, INVALID_VALUE)?;
    check(stream)?;
    launch::spend(launch::CALL);
    match recorded(event)? {
        Recorded::Until(_, end) => {
            if end > over(stream) + lag() {
                BUSY.lock().insert(stream, end - lag());
            }
            if flags == 0 { capture::spoil(stream, CAPTURE_ISOLATION) } else { Ok(()) }
        }
        Recorded::Captured(point) => capture::join(stream, &point),
        Recorded::Never => Ok(()),
    }
}

const IPC_EVENT: u64 = u64::from_le_bytes(*b"bf-event");

runtime! {
    cudaStreamCreate(to: *mut u64) { create(to, 0, 0) }
    cudaStreamCreateWithFlags(to: *mut u64, flags: c_uint) { create(to, flags, 0) }
    cudaStreamCreateWithPriority(to: *mut u64, flags: c_uint, priority: c_int) { create(to, flags, priority) }
    cudaStreamDestroy(stream: u64) {
        STREAMS.remove(stream).ok_or(INVALID_HANDLE)?;
        BUSY.lock().remove(&stream);
        capture::forget(stream);
        Ok(())
    }
    cudaStreamQuery(stream: u64) {
        check(stream)?;
        capture::refuse(stream)
    }
    cudaStreamSynchronize(stream: u64) {
        check(stream)?;
        capture::refuse(stream)?;
        trace::flush();
        launch::pass(over(stream) + lag());
        pool::settle();
        Ok(())
    }
    cudaStreamWaitEvent(stream: u64, event: u64, flags: c_uint) { wait(stream, event, flags) }
    cudaStreamGetPriority(stream: u64, to: *mut c_int) {
        check(stream)?;
        out(to, STREAMS.with(stream, |stream| stream.priority).unwrap_or(0))
    }
    cudaStreamGetFlags(stream: u64, to: *mut c_uint) {
        check(stream)?;
        out(to, STREAMS.with(stream, |stream| stream.flags).unwrap_or(0))
    }
    cudaStreamGetId(stream: u64, to: *mut u64) {
        check(stream)?;
        out(to, stream.max(LEGACY))
    }
    cudaStreamGetDevice(stream: u64, to: *mut c_int) { out(to, device_of(stream)? as c_int) }
    cudaStreamAttachMemAsync(stream: u64, address: u64, _bytes: usize, _flags: c_uint) {
        check(stream)?;
        check_that(address != 0, INVALID_VALUE)
    }
    cudaStreamCopyAttributes(to: u64, from: u64) {
        check(to)?;
        check(from)
    }
    // `cudaStreamAttrValue` is a union of 64 bytes; all that it may say are hints.
    cudaStreamGetAttribute(stream: u64, _attribute: c_int, to: *mut [u8; 64]) {
        check(stream)?;
        out(to, [0; 64])
    }
    cudaStreamSetAttribute(stream: u64, _attribute: c_int, value: *const c_void) {
        check(stream)?;
        check_that(!value.is_null(), INVALID_VALUE)
    }
    cudaStreamAddCallback(stream: u64, callback: Option<unsafe extern "C" fn(u64, Status, *mut c_void)>, data: *mut c_void, flags: c_uint) {
        let callback = callback.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        check(stream)?;
        capture::refuse(stream)?;
        callback(stream, 0, data);
        Ok(())
    }
    cudaLaunchHostFunc(stream: u64, function: Option<graph::HostFunction>, data: *mut c_void) {
        let function = function.ok_or(INVALID_VALUE)?;
        check(stream)?;
        // A captured one is called by each launch of the graph.
        if !capture::add(stream, Some((function, data as usize)))? {
            function(data);
        }
        Ok(())
    }
    cudaEventCreate(to: *mut u64) { create_event(to, 0) }
    cudaEventCreateWithFlags(to: *mut u64, flags: c_uint) { create_event(to, flags) }
    cudaEventDestroy(event: u64) { EVENTS.remove(event).map(drop).ok_or(INVALID_HANDLE) }
    cudaEventRecord(event: u64, stream: u64) { record(event, stream, 0) }
    cudaEventRecordWithFlags(event: u64, stream: u64, flags: c_uint) { record(event, stream, flags) }
    cudaEventQuery(event: u64) { query(event) }
    cudaEventSynchronize(event: u64) {
        complete(event)?;
        if let Recorded::Until(_, end) = recorded(event)? {
            launch::pass(end);
        }
        Ok(())
    }
    cudaEventElapsedTime(to: *mut f32, start: u64, end: u64) {
        let at = |event| {
            check_that(EVENTS.with(event, |event| event.flags & DISABLE_TIMING) == Some(0), INVALID_HANDLE)?;
            match recorded(event)? {
                Recorded::Never => Err(INVALID_HANDLE),
                Recorded::Until(at, _) => Ok(at),
                Recorded::Captured(_) => Err(CAPTURED_EVENT),
            }
        };
        let between = at(end)? as i64 - at(start)? as i64;
        // Never 0: programs divide by it.
        #[allow(clippy::cast_precision_loss)]
        out(to, if between == 0 { launch::CALL as i64 } else { between } as f32 * MILLISECONDS)
    }
    cudaIpcGetEventHandle(to: *mut IpcHandle, event: u64) {
        let flags = EVENTS.with(event, |event| event.flags).ok_or(INVALID_HANDLE)?;
        check_that(flags & INTERPROCESS != 0, INVALID_VALUE)?;
        out(to, IpcHandle([IPC_EVENT, event, 0, 0, 0, 0, 0, 0]))
    }
    // An event of another process is one that is complete.
    cudaIpcOpenEventHandle(to: *mut u64, handle: IpcHandle) {
        check_that(handle.0[0] == IPC_EVENT, INVALID_VALUE)?;
        create_event(to, INTERPROCESS | DISABLE_TIMING)
    }
}

same! {
    cudaEventElapsedTime_v2 = cudaEventElapsedTime, cudaEventRecord_ptsz = cudaEventRecord, cudaEventRecordWithFlags_ptsz = cudaEventRecordWithFlags,
    cudaLaunchHostFunc_ptsz = cudaLaunchHostFunc, cudaStreamAddCallback_ptsz = cudaStreamAddCallback,
    cudaStreamAttachMemAsync_ptsz = cudaStreamAttachMemAsync, cudaStreamCopyAttributes_ptsz = cudaStreamCopyAttributes,
    cudaStreamGetAttribute_ptsz = cudaStreamGetAttribute, cudaStreamSetAttribute_ptsz = cudaStreamSetAttribute,
    cudaStreamGetDevice_ptsz = cudaStreamGetDevice, cudaStreamGetFlags_ptsz = cudaStreamGetFlags, cudaStreamGetId_ptsz = cudaStreamGetId,
    cudaStreamGetPriority_ptsz = cudaStreamGetPriority, cudaStreamQuery_ptsz = cudaStreamQuery,
    cudaStreamSynchronize_ptsz = cudaStreamSynchronize, cudaStreamWaitEvent_ptsz = cudaStreamWaitEvent,
}
