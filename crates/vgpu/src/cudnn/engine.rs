//! Descriptors of the real cuDNN that are made here: the card in its own words, and what is read of engines.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use super::{INTERNAL_ERROR, Opaque, Status, check, real};
use crate::config;

/// What an attribute's elements are: `cudnnBackendAttributeType_t`.
pub(super) mod kind {
    pub const HANDLE: i32 = 0;
    pub const DATA_TYPE: i32 = 1;
    pub const INT64: i32 = 3;
    pub const KNOB_TYPE: i32 = 9;
    pub const NUMERICAL_NOTE: i32 = 11;
    pub const DESCRIPTOR: i32 = 15;
    pub const CHAR: i32 = 24;
}

/// What a descriptor is of: `cudnnBackendDescriptorType_t`.
pub(super) mod of {
    pub const CONVOLUTION: i32 = 1;
    pub const ENGINE: i32 = 2;
    pub const CONFIGURATION: i32 = 3;
    pub const HEURISTICS: i32 = 4;
    pub const PLAN: i32 = 5;
    pub const KNOB_CHOICE: i32 = 7;
    pub const GRAPH: i32 = 15;
    pub const TENSOR: i32 = 17;
    pub const DEVICE: i32 = 38;
}

/// What engines note of themselves, as bits: `cudnnBackendNumericalNote_t`. PyTorch passes over those that lower the precision of their inputs,
/// and so do recordings; over the others where the program forbids TF32, or what is not deterministic.
pub(super) mod note {
    pub const TENSOR_CORE: u32 = 1 << 0;
    pub const DOWN_CONVERT_INPUTS: u32 = 1 << 1;
    pub const NONDETERMINISTIC: u32 = 1 << 4;
}

/// Attributes: `cudnnBackendAttributeName_t`, without `CUDNN_ATTR_`.
pub(super) mod name {
    pub const CONVOLUTION_DILATIONS: i32 = 102;
    pub const CONVOLUTION_FILTER_STRIDES: i32 = 103;
    pub const CONVOLUTION_PRE_PADDINGS: i32 = 105;
    pub const HEURISTICS_GRAPH: i32 = 201;
    pub const HEURISTICS_RESULTS: i32 = 202;
    pub const HEURISTICS_DEVICE: i32 = 204;
    pub const CONFIGURATION_ENGINE: i32 = 300;
    pub const CONFIGURATION_KNOBS: i32 = 302;
    pub const CONFIGURATION_WORKSPACE: i32 = 303;
    pub const PLAN_CONFIGURATION: i32 = 401;
    pub const PLAN_WORKSPACE: i32 = 402;
    pub const PLAN_TEXT: i32 = 405;
    pub const KNOB_TYPE: i32 = 600;
    pub const KNOB_VALUE: i32 = 601;
    pub const GRAPH_OPERATIONS: i32 = 801;
    pub const TENSOR_TYPE: i32 = 901;
    pub const TENSOR_DIMENSIONS: i32 = 902;
    pub const TENSOR_STRIDES: i32 = 903;
    pub const ENGINE_INDEX: i32 = 1301;
    pub const ENGINE_NUMERICAL_NOTES: i32 = 1303;
    pub const ENGINE_DEVICE: i32 = 1307;
    pub const DEVICE_JSON: i32 = 2702;
}

/// A descriptor of the real cuDNN, which ends with this value.
#[derive(Debug)]
pub(super) struct Descriptor(pub Opaque);

// SAFETY: cuDNN's descriptors belong to no thread; who shares one only reads it.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(super) fn new(of: i32) -> Result<Descriptor, Status> {
        let mut made: Opaque = null_mut();
        // SAFETY: a place for the descriptor.
        unsafe { real!(cudnnBackendCreateDescriptor(of => c_int, &raw mut made => *mut Opaque)) }?;
        check(!made.is_null(), INTERNAL_ERROR)?;
        Ok(Descriptor(made))
    }

    fn set<T>(&self, name: i32, kind: i32, values: &[T]) -> Option<()> {
        // SAFETY: so many elements of that kind, which the callers below name.
        unsafe { set(self.0, name, kind, values.len() as i64, values.as_ptr().cast()) }.ok()
    }

    fn finalize(self) -> Option<Descriptor> {
        // SAFETY: made above.
        unsafe { real!(cudnnBackendFinalize(self.0 => Opaque)) }.ok().map(|()| self)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made above, and used by nobody after this.
        let _ = unsafe { real!(cudnnBackendDestroyDescriptor(self.0 => Opaque)) };
    }
}

pub(super) unsafe fn set(of: Opaque, name: i32, kind: i32, count: i64, values: *const c_void) -> Result<(), Status> {
    real!(cudnnBackendSetAttribute(of => Opaque, name => c_int, kind => c_int, count => i64, values => *const c_void))
}

pub(super) unsafe fn get(of: Opaque, name: i32, kind: i32, room: i64, count: *mut i64, to: *mut c_void) -> Result<(), Status> {
    real!(cudnnBackendGetAttribute(of => Opaque, name => c_int, kind => c_int, room => i64, count => *mut i64, to => *mut c_void))
}

/// Reads up to `room.len()` elements; how many there are.
fn read<T>(of: Opaque, name: i32, kind: i32, room: &mut [T]) -> Option<usize> {
    let mut count = 0;
    // SAFETY: room for so many elements of that kind; `of` is a descriptor that lives.
    unsafe { get(of, name, kind, room.len() as i64, &raw mut count, room.as_mut_ptr().cast()) }.ok()?;
    Some(usize::try_from(count).unwrap_or(0).min(room.len()))
}

/// One number of 64 bits.
fn number(of: Opaque, name: i32) -> Option<i64> {
    let mut value = [0_i64];
    (read(of, name, kind::INT64, &mut value)? == 1).then_some(value[0])
}

/// The engine of a configuration.
fn engine(configuration: Opaque) -> Option<Descriptor> {
    let engine = Descriptor::new(of::ENGINE).ok()?;
    let mut room = [engine.0];
    (read(configuration, name::CONFIGURATION_ENGINE, kind::DESCRIPTOR, &mut room)? == 1).then_some(engine)
}

/// The number of a configuration's engine.
pub(super) fn engine_number(configuration: Opaque) -> Option<i64> {
    number(engine(configuration)?.0, name::ENGINE_INDEX)
}

/// What a configuration's engine notes of how it computes, a bit each.
pub(super) fn notes(configuration: Opaque) -> u32 {
    let mut notes = [u32::MAX; 32];
    let count = engine(configuration).and_then(|engine| read(engine.0, name::ENGINE_NUMERICAL_NOTES, kind::NUMERICAL_NOTE, &mut notes));
    notes[..count.unwrap_or(0)].iter().fold(0, |all, note| all | 1_u32.checked_shl(*note).unwrap_or(0))
}

/// What a plan of a configuration would be given; it is not built.
pub(super) fn workspace(configuration: Opaque) -> Option<u64> {
    number(configuration, name::CONFIGURATION_WORKSPACE).and_then(|bytes| u64::try_from(bytes).ok())
}

/// The knobs of a configuration: `cudnnBackendKnobType_t` and value.
pub(super) fn knobs(configuration: Opaque) -> Option<Vec<(u32, i64)>> {
    /// cuDNN 9 has some 45 kinds. Asked how many are set, it says none.
    const MOST: usize = 64;
    let choices: Vec<Descriptor> = (0..MOST).map(|_| Descriptor::new(of::KNOB_CHOICE).ok()).collect::<Option<_>>()?;
    let mut room: Vec<Opaque> = choices.iter().map(|choice| choice.0).collect();
    let count = read(configuration, name::CONFIGURATION_KNOBS, kind::DESCRIPTOR, &mut room)?;
    let knob = |choice: &Descriptor| {
        let mut knob = [0_u32];
        read(choice.0, name::KNOB_TYPE, kind::KNOB_TYPE, &mut knob)?;
        Some((knob[0], number(choice.0, name::KNOB_VALUE)?))
    };
    choices[..count].iter().map(knob).collect()
}

/// What a plan of the same engine with these knobs would be given.
pub(super) fn workspace_with(configuration: Opaque, knobs: &[(u32, i64)]) -> Option<u64> {
    let choice = |&(knob, value): &(u32, i64)| {
        let choice = Descriptor::new(of::KNOB_CHOICE).ok()?;
        choice.set(name::KNOB_TYPE, kind::KNOB_TYPE, &[knob])?;
        choice.set(name::KNOB_VALUE, kind::INT64, &[value])?;
        choice.finalize()
    };
    let choices: Vec<Descriptor> = knobs.iter().map(choice).collect::<Option<_>>()?;
    let raw: Vec<Opaque> = choices.iter().map(|choice| choice.0).collect();
    let engine = engine(configuration)?;
    let made = Descriptor::new(of::CONFIGURATION).ok()?;
    made.set(name::CONFIGURATION_ENGINE, kind::DESCRIPTOR, &[engine.0])?;
    made.set(name::CONFIGURATION_KNOBS, kind::DESCRIPTOR, &raw)?;
    workspace(made.finalize()?.0)
}

/// Has heuristics look for so many configurations, which are not kept: their log says what they refused on the way.
pub(super) fn look_for(heuristics: &Descriptor, count: usize) {
    let room: Vec<Descriptor> = (0..count).map_while(|_| Descriptor::new(of::CONFIGURATION).ok()).collect();
    let mut raw: Vec<Opaque> = room.iter().map(|room| room.0).collect();
    let _ = read(heuristics.0, name::HEURISTICS_RESULTS, kind::DESCRIPTOR, &mut raw);
}

/// The card, as cuDNN takes it where a handle is otherwise; null where it does not. It lives as long as the process.
pub(super) fn card() -> Opaque {
    static CARD: OnceLock<usize> = OnceLock::new();
    let describe = || {
        let card = Descriptor::new(of::DEVICE).ok()?;
        card.set(name::DEVICE_JSON, kind::CHAR, in_words(config::card()).as_bytes())?;
        let card = card.finalize()?;
        let raw = card.0;
        std::mem::forget(card);
        Some(raw as usize)
    };
    *CARD.get_or_init(|| describe().unwrap_or(0)) as Opaque
}

/// Tells heuristics or an engine of the card.
pub(super) fn tell_of_card(of: Opaque, name: i32) -> Result<(), Status> {
    let card = [card()];
    // SAFETY: one descriptor that lives.
    unsafe { set(of, name, kind::DESCRIPTOR, 1, card.as_ptr().cast()) }
}

/// All members of `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`, each of which cuDNN wants: they are `cudaDeviceProp`'s.
fn in_words(card: &config::Card) -> String {
    // By compute capability: what a block may not have of its shared memory (CUDA programming guide, Technical Specifications).
    let reserved = if card.major >= 8 { 1024 } else { 0 };
    let name: String = card.name.chars().filter(|c| !matches!(c, '"' | '\\') && !c.is_control()).collect();
    format!(
        "{{\"deviceName\": \"{name}\", \"deviceVer\": {}, \"multiProcessorCount\": {}, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, \
         \"maxSharedMemoryPerBlockOptin\": {}, \"reservedSharedMemoryPerBlock\": {reserved}, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": {}, \
         \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": {}, \"regsPerBlock\": 65536, \"totalGlobalMem\": {}, \"smClockRateKHz\": {}, \
         \"memClockRateKHz\": {}, \"l2CacheSize\": {}, \"maxBlockSize\": [1024, 1024, 64], \"maxGridSize\": [2147483647, 65535, 65535], \
         \"supportCoopLaunch\": 1, \"pciDeviceId\": 0, \"isTccDriver\": 0, \"cudaDeviceId\": 0, \"driverVer\": 13000}}",
        100 * card.major + 10 * card.minor,
        card.multiprocessors,
        card.shared_per_block_optin,
        card.blocks_per_multiprocessor,
        card.threads_per_multiprocessor,
        card.memory,
        card.clock,
        card.memory_clock,
        card.l2_cache,
    )
}
