//! Virtual memory management: addresses that are reserved, memory that is created, and the one mapped into the other. PyTorch's expandable
//! segments are made of it.
//!
//! Memory counts from its creation until its handle is released and nothing maps it any more, as on a card.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use crate::handle::{Lock, fresh};
use crate::memory::{self, BASE, GRANULARITY, SPAN};
use crate::names::functions;
use crate::runtime::devices::current_device;
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, check, out};

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

struct Created {
    device: usize,
    bytes: u64,
    handle_types: c_int,
    /// Handles and mappings.
    references: u64,
}

struct Mapping {
    bytes: u64,
    handle: u64,
}

struct Mapped {
    created: BTreeMap<u64, Created>,
    mappings: BTreeMap<u64, Mapping>,
}

static MAPPED: Lock<Mapped> = Lock::new(Mapped { created: BTreeMap::new(), mappings: BTreeMap::new() });

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

    /// Takes a reference from memory, which goes with the last.
    fn let_go(&mut self, handle: u64) {
        let Some(created) = self.created.get_mut(&handle) else {
            return;
        };
        created.references -= 1;
        if created.references == 0 {
            memory::release(created.device, created.bytes);
            self.created.remove(&handle);
        }
    }
}

fn is_granular(value: u64) -> bool {
    value.is_multiple_of(GRANULARITY)
}

/// Whether all of a range is reserved, and nothing that `cudaMalloc` gave.
fn is_reserved(address: u64, bytes: u64) -> bool {
    let Some(device) = memory::device_of(address) else {
        return false;
    };
    let is_above = address >= BASE + SPAN * device as u64 + SPAN / 4;
    is_above && bytes > 0 && memory::block_of(address).is_some_and(|(start, all)| address.checked_add(bytes).is_some_and(|end| end <= start + all))
}

functions! {
    cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, _wanted: u64, flags: u64) {
        let bytes = bytes as u64;
        let is_fair = bytes > 0 && is_granular(bytes) && flags == 0 && (alignment == 0 || alignment.is_power_of_two());
        check(!address.is_null() && is_fair, INVALID_VALUE)?;
        check(alignment as u64 <= GRANULARITY, NOT_SUPPORTED)?;
        out(address, memory::reserve(current_device(), bytes)?)
    }
    cuMemAddressFree(address: u64, bytes: usize) {
        let bytes = bytes as u64;
        let mapped = MAPPED.lock();
        let is_whole = is_reserved(address, bytes) && memory::block_of(address) == Some((address, bytes));
        check(is_whole && mapped.mappings.range(address..address + bytes).next().is_none(), INVALID_VALUE)?;
        memory::unreserve(address)
    }
    cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) {
        let bytes = bytes as u64;
        check(!handle.is_null() && !properties.is_null() && bytes > 0 && is_granular(bytes) && flags == 0, INVALID_VALUE)?;
        let Properties { kind, handle_types, location, .. } = properties.read_unaligned();
        check(location.kind == ON_DEVICE && handle_types & FABRIC == 0, NOT_SUPPORTED)?;
        check(kind == PINNED, INVALID_VALUE)?;
        let device = super::device(location.id)?;
        memory::create(device, bytes)?;
        let number = fresh();
        MAPPED.lock().created.insert(number, Created { device, bytes, handle_types, references: 1 });
        out(handle, number)
    }
    cuMemRelease(handle: u64) {
        let mut mapped = MAPPED.lock();
        let mappings = mapped.mappings.values().filter(|mapping| mapping.handle == handle).count() as u64;
        // What only mappings hold has no handle to release.
        check(mapped.created.get(&handle).is_some_and(|created| created.references > mappings), INVALID_VALUE)?;
        mapped.let_go(handle);
        Ok(())
    }
    cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let bytes = bytes as u64;
        let is_fair = is_granular(address) && is_granular(bytes) && is_granular(offset as u64) && flags == 0;
        check(is_fair && is_reserved(address, bytes), INVALID_VALUE)?;
        let mut mapped = MAPPED.lock();
        let is_taken = mapped.around(address).is_some() || mapped.mappings.range(address..address + bytes).next().is_some();
        let created = mapped.created.get_mut(&handle).ok_or(INVALID_VALUE)?;
        check(!is_taken && (offset as u64).checked_add(bytes).is_some_and(|end| end <= created.bytes), INVALID_VALUE)?;
        created.references += 1;
        mapped.mappings.insert(address, Mapping { bytes, handle });
        Ok(())
    }
    cuMemUnmap(address: u64, bytes: usize) {
        let mut mapped = MAPPED.lock();
        // A range that begins within a mapping has none that begins there.
        let found = mapped.covering(address, bytes as u64, false).ok_or(INVALID_VALUE)?;
        check(mapped.around(address).is_none() || found[0] == address, INVALID_VALUE)?;
        for start in found {
            if let Some(mapping) = mapped.mappings.remove(&start) {
                memory::unmap(start, mapping.bytes);
                mapped.let_go(mapping.handle);
            }
        }
        Ok(())
    }
    cuMemSetAccess(address: u64, bytes: usize, access: *const c_void, count: usize) {
        let is_mapped = MAPPED.lock().covering(address, bytes as u64, true).is_some();
        check(!access.is_null() && count > 0 && is_mapped, INVALID_VALUE)
    }
    cuMemGetAccess(flags: *mut u64, location: *const Location, address: u64) {
        check(!location.is_null() && MAPPED.lock().around(address).is_some(), INVALID_VALUE)?;
        // `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
        out(flags, 3)
    }
    cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const Properties, _option: c_uint) {
        check(!properties.is_null(), INVALID_VALUE)?;
        out(granularity, GRANULARITY as usize)
    }
    cuMemGetAllocationPropertiesFromHandle(properties: *mut Properties, handle: u64) {
        let known = MAPPED.lock().created.get(&handle).map(|created| (created.device, created.handle_types));
        let (device, handle_types) = known.ok_or(INVALID_VALUE)?;
        let location = Location { kind: ON_DEVICE, id: device as c_int };
        out(properties, Properties { kind: PINNED, handle_types, location, windows: std::ptr::null(), flags: [0; 8] })
    }
    cuMemRetainAllocationHandle(handle: *mut u64, address: u64) {
        let mut mapped = MAPPED.lock();
        let number = mapped.around(address).ok_or(INVALID_VALUE)?.handle;
        let created = mapped.created.get_mut(&number).filter(|_| !handle.is_null()).ok_or(INVALID_VALUE)?;
        created.references += 1;
        out(handle, number)
    }
}
