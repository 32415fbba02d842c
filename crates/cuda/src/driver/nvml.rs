//! What the management library knows of the machine's cards, without opening a context on any.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::error::GpuError;
use crate::units::Bytes;

/// A card of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its index in the management library's order, which is that of the PCI bus.
    pub index: u32,
    /// The product, such as `NVIDIA H200`.
    pub name: String,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// All of its memory.
    pub total: Bytes,
    /// What is free.
    pub free: Bytes,
    /// What other processes hold on it. In a container they may be invisible; then this is zero.
    pub used_by_others: Bytes,
    /// The driver's version, such as `580.159.03`.
    pub driver: String,
    /// Whether it is divided into instances; `None` where it cannot be.
    pub mig: Option<bool>,
}

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_t` of version 3: memory in bytes, all ones where it is not known.
#[repr(C)]
#[derive(Clone, Default)]
struct Process {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlDevice_t`.
type Device = *mut c_void;

/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const INSUFFICIENT_SIZE: c_int = 7;

c_library! {
    /// What is used of the library, by the C names of nvml.h without their prefix.
    Nvml from ["libnvidia-ml.so.1"];
    error_string = b"nvmlErrorString" fn(c_int) -> *const c_char;
    init = b"nvmlInit_v2" fn() -> c_int;
    system_get_driver_version = b"nvmlSystemGetDriverVersion" fn(*mut c_char, c_uint) -> c_int;
    device_get_count = b"nvmlDeviceGetCount_v2" fn(*mut c_uint) -> c_int;
    device_get_handle_by_index = b"nvmlDeviceGetHandleByIndex_v2" fn(c_uint, *mut Device) -> c_int;
    device_get_handle_by_uuid = b"nvmlDeviceGetHandleByUUID" fn(*const c_char, *mut Device) -> c_int;
    device_get_name = b"nvmlDeviceGetName" fn(Device, *mut c_char, c_uint) -> c_int;
    device_get_uuid = b"nvmlDeviceGetUUID" fn(Device, *mut c_char, c_uint) -> c_int;
    device_get_memory_info = b"nvmlDeviceGetMemoryInfo" fn(Device, *mut Memory) -> c_int;
    device_get_processes = b"nvmlDeviceGetComputeRunningProcesses_v3" fn(Device, *mut c_uint, *mut Process) -> c_int;
    device_get_mig_mode = b"nvmlDeviceGetMigMode" fn(Device, *mut c_uint, *mut c_uint) -> c_int;
}

impl Nvml {
    /// The library, initialised, which it counts.
    fn open() -> Result<&'static Nvml, GpuError> {
        let nvml = Nvml::loaded().ok_or_else(|| GpuError::LibrariesMissing {
            libraries: "libnvidia-ml.so.1".to_owned(),
        })?;
        // SAFETY: it has no preconditions.
        nvml.check("nvmlInit", unsafe { (nvml.init)() })?;
        Ok(nvml)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), GpuError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: any number is taken, and the text is the library's own.
        let detail = unsafe { CStr::from_ptr((self.error_string)(status)) };
        let detail = detail.to_string_lossy().into_owned();
        Err(GpuError::Call { call, detail })
    }

    /// A text that a function writes into so many bytes (`NVML_DEVICE_UUID_V2_BUFFER_SIZE` and others: 96 at most).
    fn text(
        &self,
        call: &'static str,
        write: impl FnOnce(*mut c_char, c_uint) -> c_int,
    ) -> Result<String, GpuError> {
        let mut bytes = [0_u8; 96];
        self.check(call, write(bytes.as_mut_ptr().cast(), 96))?;
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn memory(&self, device: Device) -> Result<Memory, GpuError> {
        let mut memory = Memory::default();
        // SAFETY: the device is the library's, and there is room for what it writes.
        let status = unsafe { (self.device_get_memory_info)(device, &raw mut memory) };
        self.check("nvmlDeviceGetMemoryInfo", status)?;
        Ok(memory)
    }

    /// Who uses the card. None where it does not say.
    fn processes(&self, device: Device) -> Vec<Process> {
        let mut room: c_uint = 64;
        loop {
            let mut found = vec![Process::default(); room as usize];
            let mut count = room;
            // SAFETY: the device is the library's, and there is room for as many as `count` says.
            let status =
                unsafe { (self.device_get_processes)(device, &raw mut count, found.as_mut_ptr()) };
            match status {
                0 => {
                    found.truncate(count as usize);
                    return found;
                }
                INSUFFICIENT_SIZE if room < 1 << 16 => room *= 4,
                _ => return Vec::new(),
            }
        }
    }
}

/// The cards of this machine, or why that cannot be said: usually that it has none.
pub fn cards() -> Result<Vec<Card>, GpuError> {
    let nvml = Nvml::open()?;
    // SAFETY: each call below gets devices of the library and room for what it writes, as its signature says.
    let driver = nvml.text("nvmlSystemGetDriverVersion", |text, room| unsafe {
        (nvml.system_get_driver_version)(text, room)
    })?;
    let mut count = 0;
    // SAFETY: as above.
    nvml.check("nvmlDeviceGetCount", unsafe {
        (nvml.device_get_count)(&raw mut count)
    })?;
    let own_pid = std::process::id();
    (0..count)
        .map(|index| {
            let mut device = null_mut();
            // SAFETY: as above.
            let status = unsafe { (nvml.device_get_handle_by_index)(index, &raw mut device) };
            nvml.check("nvmlDeviceGetHandleByIndex", status)?;
            let memory = nvml.memory(device)?;
            let processes = nvml.processes(device);
            let others = processes.iter().filter(|process| process.pid != own_pid);
            let (mut mig, mut pending) = (0, 0);
            // SAFETY: as above.
            let status =
                unsafe { (nvml.device_get_mig_mode)(device, &raw mut mig, &raw mut pending) };
            Ok(Card {
                index,
                // SAFETY: as above.
                name: nvml.text("nvmlDeviceGetName", |text, room| unsafe {
                    (nvml.device_get_name)(device, text, room)
                })?,
                // SAFETY: as above.
                uuid: nvml.text("nvmlDeviceGetUUID", |text, room| unsafe {
                    (nvml.device_get_uuid)(device, text, room)
                })?,
                total: Bytes(memory.total),
                free: Bytes(memory.free),
                used_by_others: others.filter_map(held).sum(),
                driver: driver.clone(),
                mig: (status == 0).then_some(mig != 0),
            })
        })
        .collect()
}

fn held(process: &Process) -> Option<Bytes> {
    Some(process.used)
        .filter(|used| *used != u64::MAX)
        .map(Bytes)
}

/// How a card's memory is used at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// What is free.
    pub free: Bytes,
    /// What this process holds. In most containers processes are not listed, or by numbers that they do not
    /// know themselves by; then this is unknown.
    pub own: Option<Bytes>,
}

/// Reads one card's memory again and again.
pub struct Meter {
    nvml: &'static Nvml,
    uuid: CString,
}

impl Meter {
    /// A meter of the card of this UUID.
    pub fn of(uuid: &str) -> Result<Meter, GpuError> {
        let meter = Meter {
            nvml: Nvml::open()?,
            uuid: CString::new(uuid).unwrap_or_default(),
        };
        meter.read()?;
        Ok(meter)
    }

    /// How the card's memory is used now.
    pub fn read(&self) -> Result<Usage, GpuError> {
        let mut device = null_mut();
        // SAFETY: the text ends in a zero byte, and there is room for a device.
        let status =
            unsafe { (self.nvml.device_get_handle_by_uuid)(self.uuid.as_ptr(), &raw mut device) };
        self.nvml.check("nvmlDeviceGetHandleByUUID", status)?;
        let free = Bytes(self.nvml.memory(device)?.free);
        let processes = self.nvml.processes(device);
        let own = own_number().and_then(|own| processes.iter().find(|process| process.pid == own));
        Ok(Usage {
            free,
            own: own.and_then(held),
        })
    }
}

/// This process's number on the machine. Unknown inside a container with numbers of its own, where the same number
/// may be another process's outside.
fn own_number() -> Option<u32> {
    /// The first namespace of process numbers; Linux gives it this name for good (`PROC_PID_INIT_INO`).
    const FIRST: &str = "pid:[4026531836]";
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    (namespace.as_os_str() == FIRST).then(std::process::id)
}
