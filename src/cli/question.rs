//! From files and flags to a request.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::arguments;
use super::trouble::Trouble;
use crate::device::sim;
use crate::model::{Invalid, Request, RequestDocument, exported};

/// Reads the request, with what the flags put in the place of its fields.
pub(super) fn read(question: &arguments::Question) -> Result<Request, Trouble> {
    let text = read_bytes(&question.request)?;
    let mut document = RequestDocument::from_bytes(text).map_err(Trouble::Invalid)?;
    if let Some(device) = &question.device {
        document.set("device", device.as_str());
    }
    if let Some(limit) = &question.memory_limit {
        document.set("memory_limit", limit.as_str());
    }
    let known_sims = sim::names();
    match &question.model {
        None => Request::parse(document, &known_sims),
        Some(file) => Request::parse_with_model(document, &read_model(file)?, &known_sims),
    }
    .map_err(Trouble::Invalid)
}

/// Reads a model file. Of an archive only the model, which may lie beside gigabytes of weights.
fn read_model(path: &Path) -> Result<Vec<u8>, Trouble> {
    if path == Path::new("-") {
        return read_bytes(path);
    }
    let unreadable = |source| Trouble::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut file = BufReader::new(open(path).map_err(unreadable)?);
    if exported::is_archive(file.fill_buf().map_err(unreadable)?) {
        return exported::model_of_archive(file)
            .map_err(|error| Trouble::Invalid(Invalid::at("/model", error.to_string())));
    }
    read_to_end(file).map_err(unreadable)
}

/// Largest file read. Memory snapshots of long recordings have hundreds of megabytes.
const LARGEST_FILE: u64 = 1 << 30;

/// Reads a file, or stdin for `-`.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, Trouble> {
    let bytes = if path == Path::new("-") {
        let stdin = io::stdin();
        let opened = stdin.as_fd().try_clone_to_owned().map(File::from);
        opened.and_then(|file| {
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
        .map_err(|source| Trouble::Unreadable {
            path: path.to_owned(),
            source,
        })
}

fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe waits for whoever writes to it, so that it can be read.
    checked(File::open(path)?)
}

/// Refuses what has no end: a pipe ends with its writer, a device may never.
fn checked(file: File) -> io::Result<File> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() && file.metadata()?.len() > LARGEST_FILE {
        return Err(too_large());
    }
    let is_device = kind.is_char_device() || kind.is_block_device();
    // `/dev/null` is how scripts say that there is nothing.
    if is_device && (&file).read(&mut [0])? > 0 {
        return Err(io::Error::other("it is a device, not a file"));
    }
    Ok(file)
}

fn read_to_end(mut file: impl Read) -> io::Result<Vec<u8>> {
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
