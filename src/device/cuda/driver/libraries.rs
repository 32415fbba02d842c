//! Which of NVIDIA's libraries this machine has. All are loaded at run time, so that one binary serves
//! machines with and without a GPU.

use std::fmt;

/// A library that running on a GPU needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Library {
    /// The driver's own library.
    Driver,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
    /// The run-time compiler of kernels.
    Nvrtc,
}

impl Library {
    /// All of them.
    pub const ALL: [Library; 4] = [
        Library::Driver,
        Library::CublasLt,
        Library::Cudnn,
        Library::Nvrtc,
    ];

    /// Whether the library can be loaded. cudarc panics when one that cannot is used, so everything in
    /// this module asks first.
    pub fn is_present(self) -> bool {
        // SAFETY: loading a library runs its initialisers. NVIDIA's have no preconditions, and the names
        // looked for are theirs.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Cudnn => crate::device::cuda::cudnn::is_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
            }
        }
    }

    /// Those that cannot be loaded.
    pub fn missing() -> Vec<Library> {
        Library::ALL
            .into_iter()
            .filter(|library| !library.is_present())
            .collect()
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Library::Driver => "the NVIDIA driver (libcuda)",
            Library::CublasLt => "cuBLAS (libcublasLt)",
            Library::Cudnn => "cuDNN (libcudnn)",
            Library::Nvrtc => "NVRTC (libnvrtc)",
        })
    }
}
