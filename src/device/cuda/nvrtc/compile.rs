//! Compiles the kernel files with NVRTC, or finds them compiled. Needs neither a GPU nor a driver, and no header files.

use std::ffi::{CString, c_char, c_int};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{ptr, thread};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::files::Text;
use super::kernel_cache::{KernelCache, Key};
use crate::device::cuda::driver::error::GpuError;
use crate::device::cuda::driver::libraries::Library;

/// Compiles texts for a compute capability, side by side, unless the cache has them: what the driver loads, in
/// the order given.
pub(in crate::device::cuda) fn compile_all(
    texts: &[Text],
    compute: (u32, u32),
    cache: KernelCache<'_>,
) -> Result<Vec<Vec<u8>>, GpuError> {
    if !Library::Nvrtc.is_present() {
        return Err(GpuError::LibrariesMissing {
            libraries: Library::Nvrtc.to_string(),
        });
    }
    let next = AtomicUsize::new(0);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(text) = texts.get(index) else {
                return done;
            };
            done.push((index, compile(text, compute, cache)));
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

fn compile(text: &Text, compute: (u32, u32), cache: KernelCache<'_>) -> Result<Vec<u8>, GpuError> {
    let target = Target::of(compute)?;
    let architecture = target.architecture();
    // The precision of PyTorch's own kernels: fused multiply-adds, no flushing of denormals.
    let options = [
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
    ];
    let key = Key {
        source: &text.text,
        options: &options,
        compiler: version()?,
    };
    if let Some(image) = cache.find(key) {
        return Ok(image);
    }
    let name = c_text(text.name.to_owned())?;
    let program = SourceProgram::create(&c_text(text.text.clone())?, &name)?;
    let [architecture_option, standard] = options.clone();
    let texts = [c_text(architecture_option)?, c_text(standard)?];
    let pointers = texts.each_ref().map(|option| option.as_ptr());
    // SAFETY: the program is live, and there are two options, each a live text.
    let status = unsafe { sys::nvrtcCompileProgram(program.0, 2, pointers.as_ptr()) };
    if status != nvrtcResult::NVRTC_SUCCESS {
        return Err(GpuError::Compile {
            file: text.name,
            architecture: architecture.to_owned(),
            log: program.log(),
        });
    }
    let image = match target {
        Target::MachineCode(_) => program.machine_code(),
        Target::Portable(_) => program.portable_code(),
    }?;
    cache.keep(key, &image);
    Ok(image)
}

/// The compiler's major and minor version.
fn version() -> Result<(i32, i32), GpuError> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is present, and both are places for a number.
    check("nvrtcVersion", unsafe {
        sys::nvrtcVersion(&raw mut major, &raw mut minor)
    })?;
    Ok((major, minor))
}

fn c_text(text: String) -> Result<CString, GpuError> {
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
        let mut size = 0_usize;
        // SAFETY: the program is live, and `size` is a place for the number.
        if check("nvrtcGetProgramLogSize", unsafe {
            sys::nvrtcGetProgramLogSize(self.0, &raw mut size)
        })
        .is_err()
        {
            return "no log".to_owned();
        }
        let mut log = vec![0_u8; size];
        // SAFETY: the buffer has the size that the log is said to have.
        let status = unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast::<c_char>()) };
        match check("nvrtcGetProgramLog", status) {
            Ok(()) => String::from_utf8_lossy(&log)
                .trim_end_matches(['\0', '\n'])
                .to_owned(),
            Err(error) => error.to_string(),
        }
    }

    fn machine_code(&self) -> Result<Vec<u8>, GpuError> {
        let mut size = 0_usize;
        // SAFETY: the program is live and compiled, and `size` is a place for the number.
        check("nvrtcGetCUBINSize", unsafe {
            sys::nvrtcGetCUBINSize(self.0, &raw mut size)
        })?;
        let mut code = vec![0_u8; size];
        // SAFETY: the buffer has the size that the code is said to have.
        check("nvrtcGetCUBIN", unsafe {
            sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast::<c_char>())
        })?;
        Ok(code)
    }
}

impl SourceProgram {
    /// Text that ends in a zero byte.
    fn portable_code(&self) -> Result<Vec<u8>, GpuError> {
        let mut size = 0_usize;
        // SAFETY: the program is live and compiled, and `size` is a place for the number.
        check("nvrtcGetPTXSize", unsafe {
            sys::nvrtcGetPTXSize(self.0, &raw mut size)
        })?;
        let mut code = vec![0_u8; size];
        // SAFETY: the buffer has the size that the code is said to have.
        check("nvrtcGetPTX", unsafe {
            sys::nvrtcGetPTX(self.0, code.as_mut_ptr().cast::<c_char>())
        })?;
        Ok(code)
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
