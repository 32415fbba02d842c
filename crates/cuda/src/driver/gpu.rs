//! One opened GPU: its primary context, one stream, and what there is to know about the card.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;
use std::ptr;
use std::rc::Rc;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUevent, CUstream};

use crate::device::Capability;
use crate::units::Bytes;

use super::error::{GpuError, check};
use super::libraries::{self, Library};
use super::mapped_ranges::MappedRanges;
use crate::cudnn;

/// What a card and its driver say about themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The product, such as `NVIDIA H200`.
    pub name: String,
    /// Names the card itself, as NVML does: `GPU-` and a UUID, or `MIG-` and one for a part of a card.
    pub uuid: String,
    /// What the rules for scratch memory look at.
    pub capability: Capability,
    /// All of its memory.
    pub total: Bytes,
    /// The newest CUDA version that the driver serves, such as `13.0`.
    pub cuda: String,
    /// The version of cuDNN, such as `9.19.0`, where it is installed.
    pub cudnn: Option<String>,
}

/// A GPU with a context of this process on it. Belongs to the thread that opened it.
pub struct Gpu {
    device: CUdevice,
    stream: CUstream,
    /// Another stream beside it, made when it is first needed; null until then.
    side: Cell<CUstream>,
    facts: Facts,
    /// `cuEventElapsedTime_v2` came with CUDA 12.8; cudarc panics where it is missing.
    has_event_times: bool,
    /// Its memory that this process holds.
    held: RefCell<MappedRanges>,
}

impl Gpu {
    /// Opens the device of this index among those that `CUDA_VISIBLE_DEVICES` shows, and makes its
    /// primary context, the one PyTorch uses, current on this thread. Takes some 0.3 s and as much
    /// device memory as the driver needs for a context.
    pub fn open(index: u32) -> Result<Rc<Gpu>, GpuError> {
        let count = count_devices()?;
        if index >= count {
            return Err(GpuError::NoSuchDevice { index, count });
        }
        let device = device_of(index)?;
        let (facts, has_event_times) = read_facts(device)?;
        libraries::expect_one_release(&facts.cuda)?;
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: the device came from the driver, and `context` is a place for the handle.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&raw mut context, device)
        })?;
        let mut gpu = Gpu {
            device,
            stream: ptr::null_mut(),
            side: Cell::new(ptr::null_mut()),
            facts,
            has_event_times,
            held: RefCell::default(),
        };
        // SAFETY: the context was just retained; `gpu` releases it when it is dropped.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })?;
        gpu.stream = create_stream()?;
        Ok(Rc::new(gpu))
    }

    /// What every card says about itself, in CUDA's order, without a context on any.
    pub fn inventory() -> Result<Vec<Facts>, GpuError> {
        let facts = |ordinal: u32| read_facts(device_of(ordinal)?).map(|(facts, _)| facts);
        (0..count_devices()?).map(facts).collect()
    }

    /// What the card says about itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Free memory, and all of it, as the driver counts.
    pub fn free_and_total(&self) -> Result<(Bytes, Bytes), GpuError> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: this type's context is current on its thread, and both are places for a number.
        check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&raw mut free, &raw mut total)
        })?;
        Ok((Bytes(free as u64), Bytes(total as u64)))
    }

    /// Waits for everything queued, on both streams. Errors of kernels that ran since the last wait surface here.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let side = Some(self.side.get()).filter(|side| !side.is_null());
        for stream in [self.stream].into_iter().chain(side) {
            // SAFETY: the streams live as long as `self`.
            check("cuStreamSynchronize", unsafe {
                sys::cuStreamSynchronize(stream)
            })?;
        }
        Ok(())
    }

    /// The stream beside the one that everything else runs on, valid while `self` lives.
    pub(crate) fn side(&self) -> Result<CUstream, GpuError> {
        if self.side.get().is_null() {
            self.side.set(create_stream()?);
        }
        Ok(self.side.get())
    }

    /// Takes down that this process holds memory of the card: see Note [Addresses] in `held`.
    pub(crate) fn enter(&self, start: u64, bytes: u64) {
        self.held.borrow_mut().enter(start, bytes);
    }

    /// Takes down that memory is about to go back.
    pub(crate) fn leave(&self, start: u64, bytes: u64) {
        self.held.borrow_mut().leave(start, bytes);
    }

    /// Fails unless all of this is memory of the card that this process holds. Who goes on is on this thread, as is
    /// who gives memory back, so it stays held until then.
    pub(crate) fn expect_held(
        &self,
        call: &'static str,
        start: u64,
        bytes: u64,
    ) -> Result<(), GpuError> {
        if self.held.borrow().contains(start, bytes) {
            return Ok(());
        }
        Err(GpuError::Call {
            call,
            detail: format!("{bytes} bytes at {start:#x} are not memory of the GPU that is held"),
        })
    }

    /// Whether the driver can tell the time between events.
    pub(crate) fn has_event_times(&self) -> bool {
        self.has_event_times
    }

    /// The driver's number for the card.
    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// The stream that everything runs on, valid while `self` lives.
    pub(crate) fn stream(&self) -> CUstream {
        self.stream
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        for stream in [self.stream, self.side.get()] {
            if !stream.is_null() {
                // SAFETY: created by this value; everything that queues on it holds this value alive. An error
                // of earlier work may surface here, where nothing is left to act on it.
                unsafe { sys::cuStreamDestroy_v2(stream) };
            }
        }
        // SAFETY: retained once in `open`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A point in a stream.
pub(crate) struct Event {
    raw: CUevent,
}

impl Event {
    /// An event on the current context, with times.
    pub(crate) fn create() -> Result<Event, GpuError> {
        Event::with(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// One that is only waited for.
    pub(crate) fn without_time() -> Result<Event, GpuError> {
        Event::with(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(flags: sys::CUevent_flags) -> Result<Event, GpuError> {
        let mut raw: CUevent = ptr::null_mut();
        // SAFETY: a context is current wherever a `Gpu` is; `raw` is a place for the handle.
        check("cuEventCreate", unsafe {
            sys::cuEventCreate(&raw mut raw, flags as u32)
        })?;
        Ok(Event { raw })
    }

    /// Marks the present point of a stream of the same card.
    pub(crate) fn record(&self, stream: CUstream) -> Result<(), GpuError> {
        // SAFETY: event and stream are live and of the same context.
        check("cuEventRecord", unsafe {
            sys::cuEventRecord(self.raw, stream)
        })
    }

    /// Has a stream of the same card wait for the point that was marked.
    pub(crate) fn hold(&self, stream: CUstream) -> Result<(), GpuError> {
        // SAFETY: event and stream are live and of the same context.
        check("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(stream, self.raw, 0)
        })
    }

    /// Milliseconds from `self` to `end`, both recorded and passed.
    pub(crate) fn elapsed_ms(&self, end: &Event) -> Result<f64, GpuError> {
        let mut milliseconds = 0_f32;
        // SAFETY: both events are live, and the caller asked `has_event_times` for the symbol.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&raw mut milliseconds, self.raw, end.raw)
        })?;
        Ok(f64::from(milliseconds))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `cuEventCreate` and not used after this.
        unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// A stream of the context that is current.
fn create_stream() -> Result<CUstream, GpuError> {
    let mut stream: CUstream = ptr::null_mut();
    // SAFETY: callers made a context current, and `stream` is a place for the handle.
    check("cuStreamCreate", unsafe {
        sys::cuStreamCreate(
            &raw mut stream,
            sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32,
        )
    })?;
    Ok(stream)
}

/// How many GPUs the process sees.
fn count_devices() -> Result<u32, GpuError> {
    Library::Driver.expect_present()?;
    // SAFETY: the library is present, and initialisation may be repeated.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    let mut count: c_int = 0;
    // SAFETY: the driver is initialised, and `count` is a place for the number.
    check("cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&raw mut count)
    })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The device of an index below [`count_devices`], which was asked before.
fn device_of(index: u32) -> Result<CUdevice, GpuError> {
    let mut device: CUdevice = 0;
    // SAFETY: the driver is initialised, and `device` is a place for the handle.
    check("cuDeviceGet", unsafe {
        sys::cuDeviceGet(&raw mut device, index.cast_signed())
    })?;
    Ok(device)
}

fn read_facts(device: CUdevice) -> Result<(Facts, bool), GpuError> {
    let mut name = [0_u8; 128];
    // SAFETY: the buffer is as long as is said; the driver ends the text with a zero inside it.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 128, device)
    })?;
    let name = CStr::from_bytes_until_nul(&name)
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` is a place for the identifier.
    check("cuDeviceGetUuid", unsafe {
        sys::cuDeviceGetUuid_v2(&raw mut uuid, device)
    })?;
    let mut total = 0_usize;
    // SAFETY: `total` is a place for the number.
    check("cuDeviceTotalMem", unsafe {
        sys::cuDeviceTotalMem_v2(&raw mut total, device)
    })?;
    let mut version: c_int = 0;
    // SAFETY: `version` is a place for the number.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&raw mut version)
    })?;
    let major = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    )?;
    let minor = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )?;
    let multiprocessors = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    )?;
    let threads = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    )?;
    // The driver tells parts of a card (MIG) from whole ones in the name alone: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    let is_part = name.contains(" MIG ");
    let facts = Facts {
        name,
        uuid: format_uuid(&uuid.bytes, is_part),
        capability: Capability {
            compute: (major, minor),
            multiprocessors: u64::from(multiprocessors),
            threads_per_multiprocessor: u64::from(threads),
        },
        total: Bytes(total as u64),
        cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
        cudnn: cudnn::version().ok().map(libraries::three_parts),
    };
    Ok((facts, version >= 12080))
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<u32, GpuError> {
    let mut value: c_int = 0;
    // SAFETY: the device came from the driver, and `value` is a place for the number.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&raw mut value, attribute, device)
    })?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// NVML's way to write the identifier of a card, or of a part of one.
fn format_uuid(bytes: &[c_char; 16], is_part: bool) -> String {
    let mut text = if is_part { "MIG-" } else { "GPU-" }.to_owned();
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        write!(text, "{:02x}", u8::from_ne_bytes(byte.to_ne_bytes()))
            .expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        // `c_char` has a sign on x86-64 and none on aarch64.
        let mut bytes: [c_char; 16] = [0; 16];
        bytes[0] = c_char::from_ne_bytes([0xff]);
        bytes[15] = 0x2a;

        assert_eq!(
            format_uuid(&bytes, false),
            "GPU-ff000000-0000-0000-0000-00000000002a"
        );
        assert_eq!(
            format_uuid(&bytes, true),
            "MIG-ff000000-0000-0000-0000-00000000002a"
        );
    }
}
