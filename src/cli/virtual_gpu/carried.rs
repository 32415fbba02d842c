//! What is loaded before a script: compiled by the build script, carried by this program, written into a private folder.

use std::fs;
use std::io;
use std::path::Path;

use batchfit_platform::{private_folder, symlink};
use tempfile::TempDir;

use crate::virtual_gpu::{HISTORY, OBJECT};

mod files {
    include!(concat!(env!("OUT_DIR"), "/virtual_gpu.rs"));
}

/// Why nothing can be unpacked.
pub const NOT_CARRIED: &str = "a virtual GPU needs Linux with glibc, on x86-64 or aarch64; on other systems run it in batchfit's container image, and where this is such a system, build batchfit from its \
     repository";

/// The names under which programs look for the same object: PyTorch, Triton's linker, and NVML's users.
const NAMES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so.1"];

/// Whether this program carries a virtual GPU.
pub fn is_carried() -> bool {
    files::OBJECT.is_some()
}

/// Writes all of it into a new folder that only this user can read, below `scratch` or where temporary files are.
pub fn unpack(scratch: Option<&Path>) -> io::Result<TempDir> {
    let object = files::OBJECT.ok_or_else(|| io::Error::other(NOT_CARRIED))?;
    let mut builder = private_folder();
    let builder = builder.prefix("batchfit-");
    let folder = match scratch {
        Some(scratch) => builder.tempdir_in(scratch)?,
        None => builder.tempdir()?,
    };
    fs::write(folder.path().join(OBJECT), object)?;
    for name in NAMES {
        symlink(OBJECT, folder.path().join(name))?;
    }
    for (name, contents) in files::FILES {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is below the folder"))?;
        fs::write(path, contents)?;
    }
    fs::create_dir(folder.path().join(HISTORY))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn other_users_cannot_exchange_what_is_loaded() {
        if !is_carried() {
            return;
        }
        let folder = unpack(None).unwrap();
        let mode = fs::metadata(folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
