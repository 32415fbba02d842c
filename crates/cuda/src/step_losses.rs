//! Where the losses of a step arrive: pinned memory, so that reading them does not stop the stream.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys;
use half::{bf16, f16};

use crate::device::LaunchError;
use crate::shape::DType;

use super::driver::error::{GpuError, check};
use super::driver::gpu::Gpu;
use super::layout::Operand;

/// Losses that may be under way at once.
const SLOTS: usize = 256;
/// Bytes a loss takes at most.
const SLOT: usize = 8;

/// A ring of losses on their way to the host.
pub(super) struct Losses {
    memory: *mut u8,
    /// The types of those under way, from the first slot on.
    pending: Vec<DType>,
    arrived: Vec<f64>,
}

impl Losses {
    /// Pinned memory for a ring.
    pub(super) fn create() -> Result<Losses, GpuError> {
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: a context is current wherever a `Gpu` is; `memory` is a place for the pointer.
        check("cuMemAllocHost", unsafe {
            sys::cuMemAllocHost_v2(&raw mut memory, SLOTS * SLOT)
        })?;
        Ok(Losses {
            memory: memory.cast(),
            pending: Vec::new(),
            arrived: Vec::new(),
        })
    }

    /// Queues the copy of a loss; waits only when the ring is full.
    pub(super) fn observe(&mut self, gpu: &Gpu, loss: &Operand) -> Result<(), LaunchError> {
        if self.pending.len() == SLOTS {
            gpu.synchronize()?;
            self.collect();
        }
        // SAFETY: fewer than `SLOTS` slots are taken, so this one lies inside the buffer.
        let slot = unsafe { self.memory.add(self.pending.len() * SLOT) };
        let size = usize::try_from(loss.dtype.size()).unwrap_or(SLOT);
        // SAFETY: the slot is pinned, has room for the largest element type, and is neither read nor
        // freed before a wait.
        check("cuMemcpyDtoH", unsafe {
            sys::cuMemcpyDtoHAsync_v2(slot.cast(), loss.address, size, gpu.stream())
        })?;
        self.pending.push(loss.dtype);
        Ok(())
    }

    /// The losses since the last call. The stream must have been waited for.
    pub(super) fn take(&mut self) -> Vec<f64> {
        self.collect();
        std::mem::take(&mut self.arrived)
    }

    fn collect(&mut self) {
        for (slot, dtype) in self.pending.drain(..).enumerate() {
            let mut bytes = [0_u8; SLOT];
            // SAFETY: the slot lies inside the buffer, and the copy into it has ended: callers waited.
            unsafe {
                ptr::copy_nonoverlapping(self.memory.add(slot * SLOT), bytes.as_mut_ptr(), SLOT);
            }
            self.arrived.push(number(dtype, bytes));
        }
    }
}

impl Drop for Losses {
    fn drop(&mut self) {
        // SAFETY: allocated in `create`; the launcher waits for its stream before it drops this.
        unsafe { sys::cuMemFreeHost(self.memory.cast()) };
    }
}

/// The number that the first bytes hold.
fn number(dtype: DType, bytes: [u8; SLOT]) -> f64 {
    let [b0, b1, b2, b3, ..] = bytes;
    match dtype {
        DType::Float64 | DType::Complex128 => f64::from_le_bytes(bytes),
        // Of complex numbers the real part.
        DType::Float32 | DType::Complex64 => f64::from(f32::from_le_bytes([b0, b1, b2, b3])),
        DType::BFloat16 => bf16::from_le_bytes([b0, b1]).to_f64(),
        DType::Float16 => f16::from_le_bytes([b0, b1]).to_f64(),
        DType::Int64 => i64::from_le_bytes(bytes) as f64,
        DType::Int32 => f64::from(i32::from_le_bytes([b0, b1, b2, b3])),
        DType::UInt8 | DType::Bool => f64::from(b0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_have_their_values() {
        let bits: [u16; 5] = [0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00];
        let values = bits.map(|bits| {
            let [b0, b1] = bits.to_le_bytes();
            number(DType::Float16, [b0, b1, 0, 0, 0, 0, 0, 0])
        });

        let expected = [1.0, -2.0, 2_f64.powi(-24), 65504.0, f64::INFINITY];
        assert_eq!(values.map(f64::to_bits), expected.map(f64::to_bits));
    }

    #[test]
    fn a_bfloat16_is_the_upper_half_of_a_float32() {
        let value = number(DType::BFloat16, [0x80, 0x3f, 0, 0, 0, 0, 0, 0]);

        assert_eq!(value.to_bits(), 1.0_f64.to_bits());
    }
}
