//! Compiles the kernel files with NVRTC, or finds them compiled. Needs neither a GPU nor a driver, and no header files.

use std::ffi::{CString, c_char, c_int};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{ptr, thread};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::files::Text;
use super::kernel_cache::{KernelCache, Key};
use crate::driver::error::GpuError;
use crate::driver::libraries::Library;

/// Compiles texts for a compute capability, side by side, unless the cache has them: what the driver loads, in
/// the order given. `options` are in addition to those that all share.
pub(crate) fn compile_all(
    texts: &[Text],
    compute: (u32, u32),
    options: &[&str],
    cache: KernelCache<'_>,
) -> Result<Vec<Vec<u8>>, GpuError> {
    Library::Nvrtc.expect_present()?;
    let next = AtomicUsize::new(0);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(text) = texts.get(index) else {
                return done;
            };
            done.push((index, compile(text, compute, options, cache)));
        }
    };
    let mut images: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.min(texts.len()))
            .map(|_| scope.spawn(work))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_default())
            .collect()
    });
    if images.len() < texts.len() {
        return Err(GpuError::Call {
            call: "NVRTC",
            detail: "a compiling thread panicked".to_owned(),
        });
    }
    images.sort_by_key(|(index, _)| *index);
    images.into_iter().map(|(_, image)| image).collect()
}

/// What the compiler is asked for.
enum Target {
    /// Machine code for this very card.
    MachineCode(String),
    /// For a card newer than the compiler: portable code for the newest it knows, which the driver
    /// translates.
    Portable(String),
}

impl Target {
    fn of((major, minor): (u32, u32)) -> Result<Target, GpuError> {
        let mut count: c_int = 0;
        // SAFETY: the library is present, and `count` is a place for the number.
        check("nvrtcGetNumSupportedArchs", unsafe {
            sys::nvrtcGetNumSupportedArchs(&raw mut count)
        })?;
        let mut known: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the buffer has room for as many numbers as were announced.
        check("nvrtcGetSupportedArchs", unsafe {
            sys::nvrtcGetSupportedArchs(known.as_mut_ptr())
        })?;
        let wanted = c_int::try_from(major * 10 + minor).unwrap_or(c_int::MAX);
        Ok(match known.into_iter().max() {
            Some(newest) if newest < wanted => Target::Portable(format!("compute_{newest}")),
            _ => Target::MachineCode(format!("sm_{wanted}")),
        })
    }

    fn architecture(&self) -> &str {
        let (Target::MachineCode(name) | Target::Portable(name)) = self;
        name
    }
}

fn compile(
    text: &Text,
    compute: (u32, u32),
    options: &[&str],
    cache: KernelCache<'_>,
) -> Result<Vec<u8>, GpuError> {
    let target = Target::of(compute)?;
    let architecture = target.architecture();
    let architecture_option = format!("--gpu-architecture={architecture}");
    // The precision of PyTorch's own kernels: fused multiply-adds, no flushing of denormals.
    let options = [&[&*architecture_option, "--std=c++17"], options].concat();
    let key = Key {
        source: &text.text,
        options: &options,
        compiler: version()?,
    };
    if let Some(image) = cache.find(key) {
        return Ok(image);
    }
    let program = SourceProgram::create(&c_text(&text.text)?, &c_text(text.name)?)?;
    let texts = options.iter().map(|option| c_text(option));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<_> = texts.iter().map(|option| option.as_ptr()).collect();
    let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
    // SAFETY: the program is live, and there are so many options, each a live text.
    let status = unsafe { sys::nvrtcCompileProgram(program.0, count, pointers.as_ptr()) };
    if status != nvrtcResult::NVRTC_SUCCESS {
        return Err(GpuError::Compile {
            file: text.name,
            architecture: architecture.to_owned(),
            log: program.log(),
        });
    }
    let image = match target {
        Target::MachineCode(_) => {
            program.read("nvrtcGetCUBIN", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)
        }
        // Text that ends in a zero byte.
        Target::Portable(_) => program.read("nvrtcGetPTX", sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    }?;
    cache.keep(key, &image);
    Ok(image)
}

/// The compiler's major and minor version.
pub(crate) fn version() -> Result<(i32, i32), GpuError> {
    Library::Nvrtc.expect_present()?;
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is present, and both are places for a number.
    check("nvrtcVersion", unsafe {
        sys::nvrtcVersion(&raw mut major, &raw mut minor)
    })?;
    Ok((major, minor))
}

fn c_text(text: &str) -> Result<CString, GpuError> {
    CString::new(text).map_err(|_| GpuError::Call {
        call: "NVRTC",
        detail: "a source text holds a zero byte".to_owned(),
    })
}

/// A program in the compiler, destroyed with this value.
struct SourceProgram(nvrtcProgram);

impl SourceProgram {
    fn create(source: &CString, name: &CString) -> Result<SourceProgram, GpuError> {
        let mut raw: nvrtcProgram = ptr::null_mut();
        // SAFETY: both texts are live and copied by the call; there are no headers to point to.
        check("nvrtcCreateProgram", unsafe {
            sys::nvrtcCreateProgram(
                &raw mut raw,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        })?;
        Ok(SourceProgram(raw))
    }

    fn log(&self) -> String {
        let (size_of, get) = (sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog);
        match self.read("nvrtcGetProgramLog", size_of, get) {
            Ok(log) => String::from_utf8_lossy(&log)
                .trim_end_matches(['\0', '\n'])
                .to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// What two functions of the compiler say of the program: how many bytes there are, and which.
    fn read(
        &self,
        call: &'static str,
        size_of: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, GpuError> {
        let mut size = 0_usize;
        // SAFETY: the program is live, and `size` is a place for the number.
        check(call, unsafe { size_of(self.0, &raw mut size) })?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: the buffer has the size that was announced.
        check(call, unsafe { get(self.0, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for SourceProgram {
    fn drop(&mut self) {
        // SAFETY: created by `nvrtcCreateProgram` and not used after this.
        unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn check(call: &'static str, status: nvrtcResult) -> Result<(), GpuError> {
    match status {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        status => Err(GpuError::Call {
            call,
            detail: format!("{status:?}"),
        }),
    }
}
