//! Which of NVIDIA's libraries this machine has. All are loaded at run time, so that one binary serves
//! machines with and without a GPU.

use std::fmt;

use super::error::GpuError;
use crate::nvrtc::compile;

batchfit_step::listed! {
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
}

impl Library {
    /// Whether the library can be loaded. cudarc panics when one that cannot is used, so everything in
    /// this module asks first.
    pub fn is_present(self) -> bool {
        // SAFETY: loading a library runs its initialisers. NVIDIA's have no preconditions, and the names
        // looked for are theirs.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Cudnn => crate::cudnn::is_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
            }
        }
    }

    /// Fails where the library cannot be loaded.
    pub(crate) fn expect_present(self) -> Result<(), GpuError> {
        if self.is_present() {
            return Ok(());
        }
        Err(GpuError::LibrariesMissing {
            libraries: self.to_string(),
        })
    }

    /// Its version, in its maker's words; that of the driver is the newest CUDA that it serves. `None` where the library
    /// is missing or does not say.
    pub fn version(self) -> Option<String> {
        if !self.is_present() {
            return None;
        }
        match self {
            Library::Driver => {
                let mut version = 0;
                // SAFETY: the library is present, and this is a place for a number.
                let status = unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) };
                let is_known = status == cudarc::driver::sys::CUresult::CUDA_SUCCESS;
                is_known.then(|| format!("{}.{}", version / 1000, version % 1000 / 10))
            }
            Library::CublasLt => {
                // SAFETY: the library is present, and the function has no preconditions.
                Some(three_parts(unsafe {
                    cudarc::cublaslt::sys::cublasLtGetVersion()
                }))
            }
            Library::Cudnn => crate::cudnn::version().ok().map(three_parts),
            Library::Nvrtc => {
                let (major, minor) = compile::version().ok()?;
                Some(format!("{major}.{minor}"))
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

/// `9.19.0`, of 91900.
pub(crate) fn three_parts(version: usize) -> String {
    let (major, minor, patch) = (version / 10000, version / 100 % 100, version % 100);
    format!("{major}.{minor}.{patch}")
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

/// Fails where the libraries found are of different releases of CUDA, or of a newer one than the driver serves: they
/// load all the same, and fail later in ways that are hard to understand.
///
/// `driver` is the newest release that the driver serves, such as `13.0`. Minor releases of one major release go
/// together ("CUDA Compatibility", minor version compatibility).
pub(super) fn expect_one_release(driver: &str) -> Result<(), GpuError> {
    let nvrtc_release = compile::version().ok();
    let nvrtc_release = nvrtc_release.and_then(|(major, _)| u32::try_from(major).ok());
    let found = [
        (Library::CublasLt, cublas_release()),
        (Library::Nvrtc, nvrtc_release),
        (Library::Cudnn, crate::cudnn::cuda_release()),
    ];
    let found: Vec<_> = found
        .into_iter()
        .filter_map(|(library, release)| Some((library, release?)))
        .collect();
    let driver_release = driver
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    match mismatch(driver_release, &found) {
        None => Ok(()),
        Some(detail) => Err(GpuError::Releases {
            driver: driver.to_owned(),
            detail,
        }),
    }
}

/// What does not go together, in words.
fn mismatch(driver: Option<u32>, found: &[(Library, u32)]) -> Option<String> {
    let (first, newest) = *found.iter().max_by_key(|(_, release)| *release)?;
    if let Some((other, older)) = found.iter().find(|(_, release)| *release != newest) {
        return Some(format!(
            "{first} is of CUDA {newest} and {other} of CUDA {older}; put the libraries of one release first on the \
             library path"
        ));
    }
    (driver? < newest)
        .then(|| format!("the libraries are of CUDA {newest}, which needs a newer driver"))
}

/// The major release of CUDA that a library was built for.
fn cublas_release() -> Option<u32> {
    if !Library::CublasLt.is_present() {
        return None;
    }
    // SAFETY: the library is present, and the function has no preconditions.
    let version = unsafe { cudarc::cublaslt::sys::cublasLtGetCudartVersion() };
    u32::try_from(version / 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_one_release_go_together() {
        let found = [
            (Library::CublasLt, 13),
            (Library::Nvrtc, 13),
            (Library::Cudnn, 13),
        ];

        assert_eq!(mismatch(Some(13), &found), None);
        assert_eq!(mismatch(Some(14), &found), None);
        assert_eq!(mismatch(Some(12), &[]), None);
    }

    #[test]
    fn libraries_of_two_releases_are_refused() {
        let found = [(Library::CublasLt, 12), (Library::Nvrtc, 13)];

        let detail = mismatch(Some(13), &found).unwrap();

        assert!(
            detail
                .starts_with("NVRTC (libnvrtc) is of CUDA 13 and cuBLAS (libcublasLt) of CUDA 12"),
            "{detail}"
        );
    }

    #[test]
    fn libraries_newer_than_the_driver_are_refused() {
        let detail = mismatch(Some(12), &[(Library::Nvrtc, 13)]).unwrap();

        assert_eq!(
            detail,
            "the libraries are of CUDA 13, which needs a newer driver"
        );
    }
}
