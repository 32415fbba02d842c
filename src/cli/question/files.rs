//! Reads files and stdin, within bounds.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::path::Path;

use batchfit_platform::{file_of, is_device};

use crate::cli::error::CliError;

/// Largest file read. Memory snapshots of long recordings have hundreds of megabytes.
const LARGEST_FILE: u64 = 1 << 30;

/// Reads a file, or stdin for `-`.
pub(in crate::cli) fn read_bytes(path: &Path) -> Result<Vec<u8>, CliError> {
    let bytes = if path == Path::new("-") {
        let stdin = io::stdin();
        file_of(&stdin).and_then(|file| {
            // A terminal ends where the person says so.
            if stdin.is_terminal() {
                Ok(file)
            } else {
                checked(file)
            }
        })
    } else {
        open(path)
    };
    bytes
        .and_then(read_to_end)
        .map_err(CliError::unreadable(path))
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe waits for its writer, so that it can be read.
    checked(File::open(path)?)
}

/// Refuses what has no end: a pipe ends with its writer, a device may never.
fn checked(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() && file.metadata()?.len() > LARGEST_FILE {
        return Err(too_large());
    }
    // `/dev/null` is how scripts say that there is nothing.
    if is_device(kind) && (&file).read(&mut [0])? > 0 {
        return Err(io::Error::other("it is a device, not a file"));
    }
    Ok(file)
}

pub(super) fn read_to_end(mut file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more, so that what is too large shows.
    file.by_ref()
        .take(LARGEST_FILE + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(too_large());
    }
    Ok(bytes)
}

fn too_large() -> io::Error {
    let limit = LARGEST_FILE >> 30;
    io::Error::other(format!("it is larger than {limit} GiB"))
}
