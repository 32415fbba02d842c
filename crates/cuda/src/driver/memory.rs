//! Device memory straight from the driver, for the caching allocator to divide.

use std::collections::BTreeMap;
use std::rc::Rc;

use cudarc::driver::sys::{self, CUdeviceptr, cudaError_enum};

use crate::alloc::{Address, Full, Reserved, SegmentSource, expandable_size};
use crate::units::Bytes;

use super::error::{GpuError, check};
use super::expandable::Reservation;
use super::gpu::Gpu;

/// Takes segments from the driver and gives them back. What is left is given back on drop.
///
/// An error other than a lack of memory is answered like one and kept for [`CudaMemory::trouble`].
pub struct CudaMemory {
    gpu: Rc<Gpu>,
    /// Segments with their sizes.
    held: Vec<(CUdeviceptr, u64)>,
    /// By their start.
    reserved: BTreeMap<CUdeviceptr, Reservation>,
    trouble: Option<GpuError>,
    refused: bool,
}

impl CudaMemory {
    /// Memory of this card.
    pub fn of(gpu: &Rc<Gpu>) -> CudaMemory {
        CudaMemory {
            gpu: Rc::clone(gpu),
            held: Vec::new(),
            reserved: BTreeMap::new(),
            trouble: None,
            refused: false,
        }
    }

    /// Whether the driver ever had no memory. Below a limit that was measured to be free, that is another
    /// process's doing.
    pub fn was_refused(&self) -> bool {
        self.refused
    }

    /// The first error that was not a lack of memory, if there was any.
    pub fn trouble(&self) -> Option<&GpuError> {
        self.trouble.as_ref()
    }

    /// Tells a lack of memory, which is an answer, from trouble.
    fn granted(
        &mut self,
        call: &'static str,
        status: cudaError_enum,
        full: Full,
    ) -> Result<(), Full> {
        if status == cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY {
            self.refused = true;
            return Err(full);
        }
        check(call, status).map_err(|error| {
            self.trouble.get_or_insert(error);
            full
        })
    }

    /// Waits for everything queued before memory goes that it may use.
    fn settle(&mut self) {
        if let Err(error) = self.gpu.synchronize() {
            self.trouble.get_or_insert(error);
        }
    }

    fn reservation_around(&mut self, at: Address) -> Option<&mut Reservation> {
        let around = self.reserved.range_mut(..=at.0).next_back();
        around.map(|(_, reservation)| reservation)
    }
}

impl SegmentSource for CudaMemory {
    /// Takes a segment: 40 to 70 us on an H200.
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        let full = Full { asked: size };
        let bytes = usize::try_from(size.0).map_err(|_| full)?;
        let mut address: CUdeviceptr = 0;
        // SAFETY: the GPU's context is current on its thread, and `address` is a place for the pointer.
        let status = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        self.granted("cuMemAlloc", status, full)?;
        self.held.push((address, size.0));
        self.gpu.enter(address, size.0);
        Ok(Address(address))
    }

    /// Gives a segment back, once everything queued has passed it. Other addresses are ignored.
    fn give_back(&mut self, segment: Address, _size: Bytes) {
        let Some(at) = self.held.iter().position(|(start, _)| *start == segment.0) else {
            return;
        };
        let (start, size) = self.held.swap_remove(at);
        self.settle();
        self.gpu.leave(start, size);
        // SAFETY: the segment came from `cuMemAlloc`, was held until now, and no queued work uses it. The `Gpu` counts it as
        // held no more, so none will.
        let status = unsafe { sys::cuMemFree_v2(start) };
        if let Err(error) = check("cuMemFree", status) {
            self.trouble.get_or_insert(error);
        }
    }

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        let total = self.gpu.facts().total;
        let size = expandable_size(total, unit).ok_or(Full { asked: total })?;
        let full = Full { asked: size };
        let bytes = |n: Bytes| usize::try_from(n.0).map_err(|_| full);
        match Reservation::take(bytes(size)?, bytes(unit)?) {
            Ok(reservation) => {
                let start = reservation.start();
                self.reserved.insert(start, reservation);
                Ok(Reserved {
                    address: Address(start),
                    size,
                })
            }
            Err(status) => {
                self.granted("cuMemAddressReserve", status, full)?;
                Err(full)
            }
        }
    }

    fn map(&mut self, at: Address, size: Bytes) -> Result<(), Full> {
        let full = Full { asked: size };
        let bytes = usize::try_from(size.0).map_err(|_| full)?;
        let device = self.gpu.device();
        let reservation = self.reservation_around(at).ok_or(full)?;
        match reservation.map(device, at.0, bytes) {
            Ok(()) => {
                self.gpu.enter(at.0, size.0);
                Ok(())
            }
            Err(status) => {
                self.granted("cuMemCreate or cuMemMap", status, full)?;
                Err(full)
            }
        }
    }

    fn unmap(&mut self, at: Address, size: Bytes) {
        self.settle();
        let bytes = usize::try_from(size.0).expect("it was mapped");
        self.gpu.leave(at.0, size.0);
        if let Some(reservation) = self.reservation_around(at) {
            reservation.unmap(at.0, bytes);
        }
    }

    fn release(&mut self, reserved: Reserved) {
        self.gpu.leave(reserved.address.0, reserved.size.0);
        self.reserved.remove(&reserved.address.0);
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if !self.reserved.is_empty() {
            self.settle();
            for (start, reservation) in std::mem::take(&mut self.reserved) {
                self.gpu.leave(start, reservation.size());
            }
        }
        for (segment, size) in std::mem::take(&mut self.held) {
            self.gpu.leave(segment, size);
            // SAFETY: the segment came from `cuMemAlloc` and is forgotten here. `cuMemFree` waits for
            // work that uses it.
            unsafe { sys::cuMemFree_v2(segment) };
        }
    }
}

/// A fixed buffer of the launcher's own: partial sums and the matrix library's workspace. It counts as
/// part of the context, not of the model.
pub(crate) struct Scratch {
    address: CUdeviceptr,
    size: Bytes,
    gpu: Rc<Gpu>,
}

impl Scratch {
    /// A buffer of this size.
    pub(crate) fn take(gpu: &Rc<Gpu>, size: Bytes) -> Result<Scratch, GpuError> {
        let mut address: CUdeviceptr = 0;
        // SAFETY: the GPU's context is current on its thread, and `address` is a place for the pointer.
        check("cuMemAlloc", unsafe {
            sys::cuMemAlloc_v2(
                &raw mut address,
                usize::try_from(size.0).unwrap_or(usize::MAX),
            )
        })?;
        gpu.enter(address, size.0);
        Ok(Scratch {
            address,
            size,
            gpu: Rc::clone(gpu),
        })
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub(crate) fn size(&self) -> Bytes {
        self.size
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.gpu.leave(self.address, self.size.0);
        // SAFETY: allocated in `take` and not used after this; `cuMemFree` waits for work that uses it.
        unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Copies host bytes to memory of the card that is held. Returns when `bytes` may be dropped.
pub(crate) fn upload(gpu: &Gpu, address: u64, bytes: &[u8]) -> Result<(), GpuError> {
    gpu.expect_held("cuMemcpyHtoD", address, bytes.len() as u64)?;
    // SAFETY: the source is a live slice of that length. The destination was looked up just now and is device memory
    // of ours, of that length, until the wait below has ended the copy; not host memory, which the call
    // would as well write to.
    check("cuMemcpyHtoD", unsafe {
        sys::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), gpu.stream())
    })?;
    gpu.synchronize()
}

/// Copies from memory of the card that is held to the host, after everything queued.
pub(crate) fn download(gpu: &Gpu, address: u64, size: usize) -> Result<Vec<u8>, GpuError> {
    gpu.expect_held("cuMemcpyDtoH", address, size as u64)?;
    let mut bytes = vec![0_u8; size];
    // SAFETY: the destination is a live buffer of that length, and the wait below ends the copy before
    // it can move. The source was looked up just now and is device memory of ours, of that length.
    check("cuMemcpyDtoH", unsafe {
        sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, size, gpu.stream())
    })?;
    gpu.synchronize()?;
    Ok(bytes)
}
