//! Address space that memory is mapped into, for the allocator's expandable segments.

use std::collections::BTreeMap;

use cudarc::driver::sys::{
    self, CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};

/// A reserved range and the units of memory in it. Dropping it unmaps and frees all of it: the card must
/// have done with it before.
pub(crate) struct Reservation {
    /// Before `range`, so that nothing is mapped any more when that goes.
    units: BTreeMap<CUdeviceptr, Unit>,
    range: Range,
    unit: usize,
}

impl Reservation {
    /// Reserves a range for units of this size. No memory is taken.
    pub(crate) fn take(size: usize, unit: usize) -> Result<Reservation, CUresult> {
        Ok(Reservation {
            units: BTreeMap::new(),
            range: Range::reserve(size)?,
            unit,
        })
    }

    pub(crate) fn start(&self) -> CUdeviceptr {
        self.range.start
    }

    pub(crate) fn size(&self) -> u64 {
        self.range.size as u64
    }

    /// Puts memory of a card behind whole units that have none; behind all of them or none.
    pub(crate) fn map(
        &mut self,
        device: CUdevice,
        at: CUdeviceptr,
        size: usize,
    ) -> Result<(), CUresult> {
        let starts = (at..at + size as u64).step_by(self.unit);
        let units: Vec<Unit> = starts
            .map(|start| {
                let inside = start >= self.range.start
                    && start + self.unit as u64 <= self.range.start + self.range.size as u64;
                assert!(
                    inside && !self.units.contains_key(&start),
                    "the allocator maps what is reserved and unmapped"
                );
                Unit::map(device, start, self.unit)
            })
            .collect::<Result<_, _>>()?;
        self.units
            .extend(units.into_iter().map(|unit| (unit.start, unit)));
        Ok(())
    }

    /// Frees the memory behind some units, with which the card has done.
    pub(crate) fn unmap(&mut self, at: CUdeviceptr, size: usize) {
        for start in (at..at + size as u64).step_by(self.unit) {
            self.units.remove(&start);
        }
    }
}

/// A range of addresses of this process.
struct Range {
    start: CUdeviceptr,
    size: usize,
}

impl Range {
    fn reserve(size: usize) -> Result<Range, CUresult> {
        let mut start: CUdeviceptr = 0;
        // SAFETY: `start` is a place for the address, and a driver with a context is present.
        succeeded(unsafe { sys::cuMemAddressReserve(&raw mut start, size, 0, 0, 0) })?;
        Ok(Range { start, size })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: reserved in `reserve` with this size; its units were unmapped before.
        unsafe { sys::cuMemAddressFree(self.start, self.size) };
    }
}

/// Memory that is mapped at an address and freed when it is unmapped.
struct Unit {
    start: CUdeviceptr,
    size: usize,
}

impl Unit {
    /// Takes memory of a card and maps it into a part of a [`Range`] that has none.
    fn map(device: CUdevice, start: CUdeviceptr, size: usize) -> Result<Unit, CUresult> {
        let location = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        };
        let memory = Memory::take(location, size)?;
        // SAFETY: the caller holds the range and nothing is mapped at `start`; the memory is of this size.
        succeeded(unsafe { sys::cuMemMap(start, size, 0, memory.handle, 0) })?;
        let unit = Unit { start, size };
        let access = CUmemAccessDesc {
            location,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range was mapped just now, and `access` is one description.
        succeeded(unsafe { sys::cuMemSetAccess(start, size, &raw const access, 1) })?;
        Ok(unit)
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: mapped whole in `map`, and the card does not use it any more. An error of earlier work may
        // surface here, where nothing is left to act on it.
        unsafe { sys::cuMemUnmap(self.start, self.size) };
    }
}

/// Memory without an address. A mapping keeps it after this handle is gone.
struct Memory {
    handle: CUmemGenericAllocationHandle,
}

impl Memory {
    fn take(location: CUmemLocation, size: usize) -> Result<Memory, CUresult> {
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut handle = 0;
        // SAFETY: `handle` is a place for the handle, and the properties are complete.
        succeeded(unsafe { sys::cuMemCreate(&raw mut handle, size, &raw const properties, 0) })?;
        Ok(Memory { handle })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: created in `take` and not used after this.
        unsafe { sys::cuMemRelease(self.handle) };
    }
}

/// The code itself when it is not success: the caller tells a lack of memory from trouble.
fn succeeded(status: CUresult) -> Result<(), CUresult> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        refused => Err(refused),
    }
}
