//! Virtual memory management: addresses that are reserved, memory that is created, and the one mapped into the other. PyTorch's expandable
//! segments are made of it.
//!
//! Memory counts from its creation until its handle is released and nothing maps it any more, as on a card.

#![allow(missing_docs, reason = "functions of CUDA's names are documented by CUDA")]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{self, BASE, GRANULARITY, SPAN};
use crate::runtime::devices::current_device;
use crate::status::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, Status, give};

use super::is_a_device;

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Location {
    kind: c_int,
    id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

/// `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    windows: *const c_void,
    flags: [u8; 8],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;

/// `CU_MEM_HANDLE_TYPE_FABRIC`: to other hosts over `NVLink`; PyTorch asks for it first and does without.
const FABRIC: c_int = 8;

#[derive(Debug)]
struct Created {
    device: usize,
    bytes: u64,
    handle_types: c_int,
    /// Handles and mappings.
    references: u64,
}

#[derive(Debug)]
struct Mapping {
    bytes: u64,
    handle: u64,
}

#[derive(Debug)]
struct Mapped {
    created: BTreeMap<u64, Created>,
    mappings: BTreeMap<u64, Mapping>,
}

static MAPPED: Mutex<Mapped> = Mutex::new(Mapped { created: BTreeMap::new(), mappings: BTreeMap::new() });

fn mapped() -> MutexGuard<'static, Mapped> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mapped {
    /// The mappings that lie in a range, if the range is made of whole ones; with `full`, of nothing else.
    fn covering(&self, start: u64, bytes: u64, full: bool) -> Option<Vec<u64>> {
        let end = start.checked_add(bytes)?;
        let mut at = start;
        let mut found = Vec::new();
        for (&address, mapping) in self.mappings.range(start..end) {
            if full && address != at {
                return None;
            }
            at = address + mapping.bytes;
            found.push(address);
        }
        let is_whole = !found.is_empty() && at <= end && (!full || at == end);
        is_whole.then_some(found)
    }

    /// The mapping that an address lies in.
    fn around(&self, address: u64) -> Option<&Mapping> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some(mapping)
    }

    /// Takes a reference from memory; gives the handle back if it was the last.
    fn let_go(&mut self, handle: u64) -> Option<u64> {
        let created = self.created.get_mut(&handle)?;
        created.references -= 1;
        if created.references > 0 {
            return None;
        }
        self.created.remove(&handle);
        Some(handle)
    }
}

fn status(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(SUCCESS)
}

fn is_granular(value: u64) -> bool {
    value.is_multiple_of(GRANULARITY)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, _wanted: u64, flags: u64) -> Status {
    let bytes = bytes as u64;
    let is_fair = bytes > 0 && is_granular(bytes) && flags == 0 && (alignment == 0 || alignment.is_power_of_two());
    if address.is_null() || !is_fair {
        return INVALID_VALUE;
    }
    if alignment as u64 > GRANULARITY {
        return NOT_SUPPORTED;
    }
    match memory::reserve(current_device(), bytes) {
        Ok(start) => give(address, start),
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> Status {
    let bytes = bytes as u64;
    let mapped = mapped();
    if !is_reserved(address, bytes)
        || memory::block_of(address) != Some((address, bytes))
        || mapped.mappings.range(address..address + bytes).next().is_some()
    {
        return INVALID_VALUE;
    }
    status(memory::unreserve(address))
}

/// Whether all of a range is reserved, and nothing that `cudaMalloc` gave.
fn is_reserved(address: u64, bytes: u64) -> bool {
    let Some(device) = memory::device_of(address) else {
        return false;
    };
    let is_above = address >= BASE + SPAN * device as u64 + SPAN / 4;
    is_above && bytes > 0 && memory::block_of(address).is_some_and(|(start, all)| address.checked_add(bytes).is_some_and(|end| end <= start + all))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) -> Status {
    if handle.is_null() || properties.is_null() || bytes == 0 || !is_granular(bytes as u64) || flags != 0 {
        return INVALID_VALUE;
    }
    let properties = properties.read_unaligned();
    if properties.location.kind != ON_DEVICE || properties.handle_types & FABRIC != 0 {
        return NOT_SUPPORTED;
    }
    if properties.kind != PINNED {
        return INVALID_VALUE;
    }
    if !is_a_device(properties.location.id) {
        return INVALID_DEVICE;
    }
    let device = properties.location.id as usize;
    match memory::create(device, bytes as u64) {
        Ok(number) => {
            mapped().created.insert(number, Created { device, bytes: bytes as u64, handle_types: properties.handle_types, references: 1 });
            give(handle, number)
        }
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> Status {
    let last = {
        let mut mapped = mapped();
        let mappings = mapped.mappings.values().filter(|mapping| mapping.handle == handle).count() as u64;
        // What only mappings hold has no handle to release.
        if mapped.created.get(&handle).is_none_or(|created| created.references <= mappings) {
            return INVALID_VALUE;
        }
        mapped.let_go(handle)
    };
    last.map_or(SUCCESS, |handle| status(memory::release(handle)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Status {
    let bytes = bytes as u64;
    let is_fair = is_granular(address) && is_granular(bytes) && is_granular(offset as u64) && flags == 0;
    if !is_fair || !is_reserved(address, bytes) {
        return INVALID_VALUE;
    }
    let mut mapped = mapped();
    let is_taken = mapped.around(address).is_some() || mapped.mappings.range(address..address + bytes).next().is_some();
    let Some(created) = mapped.created.get_mut(&handle) else {
        return INVALID_VALUE;
    };
    if is_taken || (offset as u64).checked_add(bytes).is_none_or(|end| end > created.bytes) {
        return INVALID_VALUE;
    }
    created.references += 1;
    mapped.mappings.insert(address, Mapping { bytes, handle });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> Status {
    let bytes = bytes as u64;
    let released: Vec<u64> = {
        let mut mapped = mapped();
        // A range that begins within a mapping has none that begins there.
        let Some(found) = mapped.covering(address, bytes, false) else {
            return INVALID_VALUE;
        };
        if mapped.around(address).is_some() && found[0] != address {
            return INVALID_VALUE;
        }
        let taken = found.iter().filter_map(|start| mapped.mappings.remove(start)).collect::<Vec<_>>();
        for (start, mapping) in found.iter().zip(&taken) {
            let _ = memory::unmap(*start, mapping.bytes);
        }
        taken.iter().filter_map(|mapping| mapped.let_go(mapping.handle)).collect()
    };
    let failed = released.into_iter().find_map(|handle| memory::release(handle).err());
    failed.unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(address: u64, bytes: usize, access: *const c_void, count: usize) -> Status {
    let is_mapped = mapped().covering(address, bytes as u64, true).is_some();
    if access.is_null() || count == 0 || !is_mapped { INVALID_VALUE } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAccess(flags: *mut u64, location: *const Location, address: u64) -> Status {
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    const READ_WRITE: u64 = 3;
    if location.is_null() || mapped().around(address).is_none() {
        return INVALID_VALUE;
    }
    give(flags, READ_WRITE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const Properties, _option: c_uint) -> Status {
    if properties.is_null() {
        return INVALID_VALUE;
    }
    give(granularity, GRANULARITY as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(properties: *mut Properties, handle: u64) -> Status {
    let known = mapped().created.get(&handle).map(|created| (created.device, created.handle_types));
    let Some((device, handle_types)) = known else {
        return INVALID_VALUE;
    };
    let location = Location { kind: ON_DEVICE, id: device as c_int };
    give(properties, Properties { kind: PINNED, handle_types, location, windows: std::ptr::null(), flags: [0; 8] })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(handle: *mut u64, address: u64) -> Status {
    let mut mapped = mapped();
    let found = mapped.around(address).map(|mapping| mapping.handle);
    let Some(created) = found.and_then(|number| mapped.created.get_mut(&number)) else {
        return INVALID_VALUE;
    };
    if handle.is_null() {
        return INVALID_VALUE;
    }
    created.references += 1;
    give(handle, found.unwrap_or(0))
}
