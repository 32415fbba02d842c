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

use super::compile::compile_all;
use super::files::{KernelFile, Text, file_of};
use super::kernel_cache::KernelCache;
use crate::driver::error::{GpuError, check};
use crate::driver::gpu::Gpu;
use crate::driver::memory::Scratch;
use crate::generate::Source;
use crate::plan::{Code, KernelLaunch, SCRATCH, Sources, Target};

/// Bytes that a block may share without asking, on every card.
const DEFAULT_SHARED: u32 = 48 << 10;

/// Where launches go: a card's stream, with the kernels loaded on it.
pub(crate) struct Queue {
    written: HashMap<&'static str, CUfunction>,
    /// Those of generated texts, by their names.
    generated: HashMap<Source, Vec<(&'static str, CUfunction)>>,
    modules: Vec<CUmodule>,
    scratch: Scratch,
    launches: u64,
    /// Where compiled kernels are kept.
    cache: Option<PathBuf>,
    gpu: Rc<Gpu>,
}

impl Queue {
    /// Takes its scratch memory. Kernels are loaded when they are needed, from the folder of compiled ones or by
    /// compiling them.
    pub(crate) fn open(gpu: &Rc<Gpu>, cache: Option<PathBuf>) -> Result<Queue, GpuError> {
        Ok(Queue {
            written: HashMap::new(),
            generated: HashMap::new(),
            modules: Vec::new(),
            scratch: Scratch::take(gpu, SCRATCH)?,
            launches: 0,
            cache,
            gpu: Rc::clone(gpu),
        })
    }

    /// Loads all of this code that is not loaded yet, compiling side by side what is not kept.
    pub(crate) fn prepare(&mut self, sources: &Sources) -> Result<(), GpuError> {
        let mut files: Vec<&'static KernelFile> = Vec::new();
        for kernel in sources
            .written
            .iter()
            .filter(|kernel| !self.written.contains_key(*kernel))
        {
            let file = file_of(kernel).ok_or_else(|| no_kernel(kernel))?;
            if !files.iter().any(|known| known.name == file.name) {
                files.push(file);
            }
        }
        let generated = sources.generated.iter();
        let generated: Vec<&Source> = generated
            .filter(|source| !self.generated.contains_key(*source))
            .collect();
        let written = files.iter().map(|file| Text::of(file));
        let texts: Vec<Text> = written
            .chain(generated.iter().map(|source| Text::generated(source)))
            .collect();
        if texts.is_empty() {
            return Ok(());
        }
        let cache = KernelCache::new(self.cache.as_deref());
        let images = compile_all(&texts, self.gpu.facts().capability.compute, &[], cache)?;
        let (of_files, of_generated) = images.split_at(files.len());
        for (file, image) in files.iter().zip(of_files) {
            let module = self.load_module(image)?;
            for name in file.kernels {
                self.written.insert(name, function_of(module, name)?);
            }
        }
        for (source, image) in generated.into_iter().zip(of_generated) {
            let module = self.load_module(image)?;
            let entries = source.entries().iter();
            let entries = entries.map(|entry| Ok((*entry, function_of(module, entry)?)));
            let entries = entries.collect::<Result<Vec<_>, GpuError>>()?;
            self.generated.insert(source.clone(), entries);
        }
        Ok(())
    }

    fn load_module(&mut self, image: &[u8]) -> Result<CUmodule, GpuError> {
        let mut module: CUmodule = ptr::null_mut();
        // SAFETY: the image is a whole cubin, which says how long it is, or text that ends in a zero byte;
        // the driver copies it.
        check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast())
        })?;
        self.modules.push(module);
        Ok(module)
    }

    /// Queues a kernel.
    pub(crate) fn launch(&mut self, launch: &KernelLaunch) -> Result<(), GpuError> {
        let function = self.function(&launch.code)?;
        let (grid, shared) = (launch.grid, launch.shared);
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
        let mut parameter: *mut c_void = launch.parameter.address();
        // SAFETY: the function belongs to a module that lives as long as `self`. It takes one struct,
        // whose layout the parameter repeats (that is what `Arguments` promises; of a generated kernel it is an array of
        // words of the length in its text), and the driver copies it before it returns, without writing to it. The
        // addresses inside are scratch of this queue or operands, which were looked up to be device memory of ours before
        // the launch, as far as their elements reach; and kernels touch no others. See Note [Addresses] in `held`.
        check("cuLaunchKernel", unsafe {
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

    /// A loaded kernel; one that is not is compiled now.
    fn function(&mut self, code: &Code) -> Result<CUfunction, GpuError> {
        if let Some(function) = self.loaded(code) {
            return Ok(function);
        }
        let mut sources = Sources::default();
        sources.add(code);
        self.prepare(&sources)?;
        self.loaded(code).ok_or_else(|| no_kernel(code.name()))
    }

    fn loaded(&self, code: &Code) -> Option<CUfunction> {
        match code {
            Code::Written(kernel) => self.written.get(kernel).copied(),
            Code::Generated(source, entry) => {
                let mut entries = self.generated.get(source)?.iter();
                entries
                    .find(|(name, _)| name == entry)
                    .map(|(_, function)| *function)
            }
        }
    }

    /// Scratch memory, to be used before the next call on this queue only.
    pub(crate) fn scratch(&self) -> (u64, Bytes) {
        (self.scratch.address(), self.scratch.size())
    }

    /// Queues a write of a number to memory of the card that is held.
    pub(crate) fn write_number(&mut self, address: u64, number: u64) -> Result<(), GpuError> {
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

    /// What plans for this card go by.
    pub(crate) fn target(&self) -> Target {
        Target {
            scratch: self.scratch(),
            ..Target::of(&self.gpu.facts().capability)
        }
    }

    /// Counts a launch that a library made on this queue's stream.
    pub(crate) fn count_library_launch(&mut self) {
        self.launches += 1;
    }

    /// Launches since the last call.
    pub(crate) fn take_launches(&mut self) -> u64 {
        std::mem::take(&mut self.launches)
    }

    /// The card.
    pub(crate) fn gpu(&self) -> &Rc<Gpu> {
        &self.gpu
    }
}

fn no_kernel(name: &str) -> GpuError {
    GpuError::Call {
        call: "cuModuleGetFunction",
        detail: format!("there is no kernel `{name}`"),
    }
}

/// A kernel of a loaded module.
fn function_of(module: CUmodule, name: &str) -> Result<CUfunction, GpuError> {
    let text = CString::new(name).map_err(|_| GpuError::Call {
        call: "cuModuleGetFunction",
        detail: "a kernel's name holds a zero byte".to_owned(),
    })?;
    let mut function: CUfunction = ptr::null_mut();
    // SAFETY: the callers just loaded the module, the name is a live text, and `function` is a place.
    check("cuModuleGetFunction", unsafe {
        sys::cuModuleGetFunction(&raw mut function, module, text.as_ptr())
    })?;
    Ok(function)
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Kernels that still run would lose their code. Nothing is left to act on an error.
        let _ = self.gpu.synchronize();
        for module in &self.modules {
            // SAFETY: loaded in `load`, and none of its functions is used after this.
            unsafe { sys::cuModuleUnload(*module) };
        }
    }
}
