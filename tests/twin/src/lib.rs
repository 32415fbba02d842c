//! batchfit's allocator over the real `cudaMalloc`, for `torch.cuda.memory.CUDAPluggableAllocator`.
//!
//! Environment, read at the first request: `BATCHFIT_TWIN_EVENTS` (a file that gets each event, as `action address size stream`),
//! `BATCHFIT_TWIN_LIMIT` (bytes that may be reserved) and `PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_ALLOC_CONF`.
//! One device, 0. Expandable segments and private pools are not driven; the former are refused, and of the latter PyTorch does
//! not ask a pluggable allocator.

mod cuda;
mod log;
mod torch;

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::ffi::{c_char, c_double, c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use batchfit_card::alloc::{
    BlockId, CachingAllocator, OutOfMemory, Settings, Stream, limit_of_fraction,
};
use batchfit_step::units::Bytes;
use cuda::{CudaMalloc, Runtime};
use log::{Log, OfStream};

static TWIN: Mutex<Option<Twin>> = Mutex::new(None);

struct Twin {
    allocator: CachingAllocator<CudaMalloc, Log>,
    runtime: &'static Runtime,
    /// By address, what PyTorch holds.
    live: HashMap<u64, BlockId>,
    /// The streams that were ever recorded on a block of another one.
    recorded: BTreeSet<u64>,
    /// What the log says about the request that is being served.
    stream: OfStream,
}

impl Twin {
    fn new() -> Twin {
        let conf = env::var("PYTORCH_CUDA_ALLOC_CONF").or_else(|_| env::var("PYTORCH_ALLOC_CONF"));
        let conf = conf.unwrap_or_default();
        let settings: Settings = match conf.parse() {
            Ok(settings) => settings,
            Err(error) => die(&format!("the allocator's settings `{conf}`: {error}")),
        };
        if settings.expandable() {
            die("expandable segments are not driven through a pluggable allocator");
        }
        let limit = env::var("BATCHFIT_TWIN_LIMIT").ok().map(|text| {
            let bytes = text.parse().map(Bytes);
            bytes.unwrap_or_else(|error| die(&format!("BATCHFIT_TWIN_LIMIT={text}: {error}")))
        });
        let runtime = Runtime::get();
        let stream = OfStream::default();
        let log = Log::create(env::var_os("BATCHFIT_TWIN_EVENTS"), stream.clone());
        Twin {
            allocator: CachingAllocator::observed(CudaMalloc(runtime), settings, limit, log),
            runtime,
            live: HashMap::new(),
            recorded: BTreeSet::new(),
            stream,
        }
    }

    fn malloc(&mut self, size: u64, stream: u64) -> Result<u64, OutOfMemory> {
        // PyTorch asks its events at each request; these streams are asked as a whole.
        for &other in &self.recorded {
            if self.runtime.is_done(other) {
                self.allocator.synchronize(Stream(other));
            }
        }
        self.stream.set(stream);
        let id = self.allocator.malloc_on(Stream(stream), Bytes(size))?;
        let address = self.allocator.address(id).0;
        self.live.insert(address, id);
        Ok(address)
    }

    fn free(&mut self, address: u64) {
        let Some(id) = self.live.remove(&address) else {
            die(&format!("{address:x} is freed, which is not allocated"));
        };
        self.allocator.free(id);
    }

    fn record_stream(&mut self, address: u64, stream: u64) {
        if let Some(&id) = self.live.get(&address) {
            self.recorded.insert(stream);
            self.allocator.record_stream(id, Stream(stream));
        }
    }
}

/// Ends the process: what follows would be no comparison.
fn die(problem: &str) -> ! {
    eprintln!("batchfit-twin: {problem}");
    std::process::abort();
}

/// The allocator, which begins with the first who asks.
struct TwinGuard(MutexGuard<'static, Option<Twin>>);

impl TwinGuard {
    fn twin(&mut self) -> &mut Twin {
        self.0.get_or_insert_with(Twin::new)
    }
}

fn hold() -> TwinGuard {
    match TWIN.lock() {
        Ok(guard) => TwinGuard(guard),
        Err(_) => die("a request failed before"),
    }
}

fn only_device(device: c_int) {
    if device > 0 {
        die(&format!("device {device}: only device 0 is driven"));
    }
}

/// Memory for PyTorch. Without room it raises `torch.OutOfMemoryError`: PyTorch takes a null pointer for memory.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn batchfit_twin_malloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    only_device(device);
    let Ok(size) = u64::try_from(size) else {
        die(&format!("a request of {size} bytes"));
    };
    if size == 0 {
        return std::ptr::null_mut();
    }
    // The lock is given back before an exception passes through here.
    let served = hold().twin().malloc(size, stream as u64);
    match served {
        Ok(address) => address as *mut c_void,
        Err(refused) => torch::raise_out_of_memory(&format!(
            "CUDA out of memory. Tried to allocate {} bytes. batchfit's allocator has {} allocated and {} reserved",
            refused.segment.0, refused.allocated.0, refused.reserved.0
        )),
    }
}

/// Memory that PyTorch gives back.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn batchfit_twin_free(
    address: *mut c_void,
    _size: usize,
    device: c_int,
    _stream: *mut c_void,
) {
    only_device(device);
    if !address.is_null() {
        hold().twin().free(address as u64);
    }
}

/// `torch.cuda.empty_cache()`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn batchfit_twin_empty_cache() {
    hold().twin().allocator.empty_cache();
}

/// `Tensor.record_stream`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn batchfit_twin_record_stream(address: *mut c_void, stream: *mut c_void) {
    hold().twin().record_stream(address as u64, stream as u64);
}

/// `torch.cuda.set_per_process_memory_fraction`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn batchfit_twin_memory_fraction(fraction: c_double, device: c_int) {
    only_device(device);
    let mut held = hold();
    let twin = held.twin();
    let total = twin.runtime.total();
    twin.allocator.set_limit(limit_of_fraction(fraction, total));
}

/// Writes the log out, and `torch.cuda.memory_stats()` as JSON into a buffer; gives the length of the text, which is cut
/// where the buffer ends.
///
/// # Safety
///
/// `buffer` must have room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn batchfit_twin_stats(buffer: *mut c_char, length: usize) -> usize {
    let mut held = hold();
    let twin = held.twin();
    twin.allocator.observer().flush();
    let text = serde_json::to_string(&twin.allocator.stats().memory_stats())
        .unwrap_or_else(|error| die(&error.to_string()));
    let copied = text.len().min(length);
    // SAFETY: the caller has room for `length` bytes, and `copied` is no more.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), copied) };
    text.len()
}
