//! Our own kernels, loaded on a card, and the queue they are launched through.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::ptr;
use std::rc::Rc;

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute_enum as CUfunction_attribute, CUmodule,
};

use crate::units::Bytes;

use super::compile::{CHECKS, FILES, KernelFile, ON_DEMAND, compile_all};
use super::kernel_cache::KernelCache;
use crate::device::cuda::driver::error::{GpuError, check};
use crate::device::cuda::driver::gpu::Gpu;
use crate::device::cuda::driver::memory::Scratch;

/// Room for partial sums and the matrix library's workspace. Large enough for two float32 sums of every
/// entry of a position table (1024 x 768), and what cuBLAS wants for splitting a product.
const SCRATCH: Bytes = Bytes::mib(16);

/// Bytes that a block may share without asking, on every card.
const DEFAULT_SHARED: u32 = 48 << 10;

/// The parameter of a kernel: a struct passed by value.
///
/// # Safety
///
/// The type is `repr(C)`, and every kernel it is launched with takes exactly one parameter, a struct of
/// the same fields in the same order.
pub(in crate::device::cuda) unsafe trait Arguments: Copy {}

/// How many blocks, and how many threads in each.
#[derive(Debug, Clone, Copy)]
pub(in crate::device::cuda) struct Grid {
    pub(in crate::device::cuda) blocks: [u32; 2],
    pub(in crate::device::cuda) threads: [u32; 2],
}

/// Where launches go: a card's stream, with the kernels loaded on it.
pub(in crate::device::cuda) struct Queue {
    functions: HashMap<&'static str, CUfunction>,
    modules: Vec<CUmodule>,
    scratch: Scratch,
    launches: u64,
    /// Where compiled kernels are kept.
    cache: Option<PathBuf>,
    gpu: Rc<Gpu>,
}

impl Queue {
    /// Loads the kernels that most models need, from the folder of compiled ones or by compiling them: a few
    /// seconds of processor time, spread over its cores.
    pub(in crate::device::cuda) fn open(
        gpu: &Rc<Gpu>,
        cache: Option<PathBuf>,
    ) -> Result<Queue, GpuError> {
        let mut queue = Queue {
            functions: HashMap::new(),
            modules: Vec::new(),
            scratch: Scratch::take(gpu, SCRATCH)?,
            launches: 0,
            cache,
            gpu: Rc::clone(gpu),
        };
        queue.compile(&FILES)?;
        Ok(queue)
    }

    fn compile(&mut self, files: &'static [KernelFile]) -> Result<(), GpuError> {
        let cache = KernelCache::new(self.cache.as_deref());
        let images = compile_all(files, self.gpu.facts().capability.compute, cache)?;
        for (file, image) in files.iter().zip(&images) {
            self.load(file.kernels, image)?;
        }
        Ok(())
    }

    fn load(&mut self, kernels: &'static [&'static str], image: &[u8]) -> Result<(), GpuError> {
        let mut module: CUmodule = ptr::null_mut();
        // SAFETY: the image is a whole cubin, which says how long it is, or text that ends in a zero byte;
        // the driver copies it.
        check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast())
        })?;
        self.modules.push(module);
        for name in kernels {
            let text = CString::new(*name).map_err(|_| GpuError::Call {
                call: "cuModuleGetFunction",
                detail: "a kernel's name holds a zero byte".to_owned(),
            })?;
            let mut function: CUfunction = ptr::null_mut();
            // SAFETY: the module was just loaded, the name is a live text, and `function` is a place.
            check("cuModuleGetFunction", unsafe {
                sys::cuModuleGetFunction(&raw mut function, module, text.as_ptr())
            })?;
            self.functions.insert(name, function);
        }
        Ok(())
    }

    /// Queues a kernel.
    pub(in crate::device::cuda) fn launch<A: Arguments>(
        &mut self,
        kernel: &'static str,
        grid: Grid,
        arguments: &A,
    ) -> Result<(), GpuError> {
        self.launch_with_shared(kernel, grid, 0, arguments)
    }

    /// Queues a kernel whose blocks share so many bytes beyond those it declares.
    pub(in crate::device::cuda) fn launch_with_shared<A: Arguments>(
        &mut self,
        kernel: &'static str,
        grid: Grid,
        shared: u32,
        arguments: &A,
    ) -> Result<(), GpuError> {
        let function = self.function(kernel)?;
        if shared > DEFAULT_SHARED {
            // SAFETY: the function belongs to a module that lives as long as `self`.
            check("cuFuncSetAttribute", unsafe {
                sys::cuFuncSetAttribute(
                    function,
                    CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared.cast_signed(),
                )
            })?;
        }
        let mut parameter: *mut c_void = ptr::from_ref(arguments).cast_mut().cast();
        // SAFETY: the function belongs to a module that lives as long as `self`. It takes one struct,
        // whose layout `A` repeats (that is what `Arguments` promises), and the driver copies it before
        // it returns, without writing to it. The addresses inside are scratch of this queue or operands, which
        // were looked up to be device memory of ours before the launch, as far as their elements reach; and
        // kernels touch no others. See Note [Addresses] in `held`.
        check(kernel, unsafe {
            sys::cuLaunchKernel(
                function,
                grid.blocks[0],
                grid.blocks[1],
                1,
                grid.threads[0],
                grid.threads[1],
                1,
                shared,
                self.gpu.stream(),
                &raw mut parameter,
                ptr::null_mut(),
            )
        })?;
        self.launches += 1;
        Ok(())
    }

    /// A loaded kernel; one of those on demand is compiled now.
    fn function(&mut self, kernel: &'static str) -> Result<CUfunction, GpuError> {
        if !self.functions.contains_key(kernel) {
            let has_it = |file: &&KernelFile| file.kernels.contains(&kernel);
            if let Some(file) = ON_DEMAND.iter().chain(&CHECKS).find(has_it) {
                self.compile(std::slice::from_ref(file))?;
            }
        }
        self.functions
            .get(kernel)
            .copied()
            .ok_or_else(|| GpuError::Call {
                call: kernel,
                detail: "there is no such kernel".to_owned(),
            })
    }

    /// Blocks of 256 threads for so many independent pieces of work, which the kernel loops over: enough
    /// to fill the card, no more.
    pub(in crate::device::cuda) fn spread(&self, work: u64) -> Grid {
        let full = self.multiprocessors() * 32;
        Grid {
            blocks: [clamp(work.div_ceil(256).min(full)), 1],
            threads: [256, 1],
        }
    }

    /// Multiprocessors of the card.
    pub(in crate::device::cuda) fn multiprocessors(&self) -> u64 {
        self.gpu.facts().capability.multiprocessors.max(1)
    }

    /// Scratch memory, to be used before the next call on this queue only.
    pub(in crate::device::cuda) fn scratch(&self) -> (u64, Bytes) {
        (self.scratch.address(), self.scratch.size())
    }

    /// Queues a write of a number to memory of the card that is held.
    pub(in crate::device::cuda) fn write_number(
        &mut self,
        address: u64,
        number: u64,
    ) -> Result<(), GpuError> {
        self.gpu.expect_held("cuMemsetD32", address, 8)?;
        let [low, high] = [number, number >> 32].map(|half| half & u64::from(u32::MAX));
        for (at, half) in [(address, low), (address + 4, high)] {
            let half = u32::try_from(half).unwrap_or(u32::MAX);
            // SAFETY: the stream lives as long as the card, and both halves were looked up to be device memory of
            // ours, which goes back only after a wait for the stream.
            check("cuMemsetD32", unsafe {
                sys::cuMemsetD32Async(at, half, 1, self.gpu.stream())
            })?;
        }
        Ok(())
    }

    /// Counts a launch that a library made on this queue's stream.
    pub(in crate::device::cuda) fn count_library_launch(&mut self) {
        self.launches += 1;
    }

    /// Launches since the last call.
    pub(in crate::device::cuda) fn take_launches(&mut self) -> u64 {
        std::mem::take(&mut self.launches)
    }

    /// The card.
    pub(in crate::device::cuda) fn gpu(&self) -> &Rc<Gpu> {
        &self.gpu
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Kernels that still run would lose their code. An error has nobody left to act on it.
        let _ = self.gpu.synchronize();
        for module in &self.modules {
            // SAFETY: loaded in `load`, and none of its functions is used after this.
            unsafe { sys::cuModuleUnload(*module) };
        }
    }
}

/// A block count as the driver wants it: at least one.
pub(in crate::device::cuda) fn clamp(blocks: u64) -> u32 {
    u32::try_from(blocks.max(1)).unwrap_or(i32::MAX as u32)
}
