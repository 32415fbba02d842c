//! What cuDNN logs of engines that it refuses where there is no device.

use std::cell::Cell;
use std::env;
use std::ffi::{OsString, c_uint};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::ptr::null_mut;

use crate::cudnn::CudnnError;
use crate::cudnn::library::functions;
use crate::program::Convolution;

use crate::device::sim::workspaces::{of_engine, refused_engines};
use crate::units::Bytes;

use super::Offer;

/// The variable that names the file into which cuDNN logs.
const DESTINATION: &str = "CUDNN_LOGDEST_DBG";

/// What the environment of a process has to have that asks about absent cards: cuDNN reads it when it is loaded, and creates the file.
pub fn environment(log: &Path) -> [(&'static str, OsString); 2] {
    // Warnings say why a configuration is refused.
    [
        ("CUDNN_LOGLEVEL_DBG", "3".into()),
        (DESTINATION, log.into()),
    ]
}

/// What cuDNN logs: only there it says which engines it ranked ahead of the first that is supported. It is silent but for that one
/// question, of which it writes 7 KB: to log all that leads there takes four times as long.
pub(super) struct Log {
    file: File,
    /// What was looked at.
    read: Cell<u64>,
    /// Up to where the file was emptied. cuDNN goes on where it was, and what is before takes no room.
    emptied: Cell<u64>,
}

/// The messages among which are those that say why a configuration is refused: `CUDNN_SEV_INFO_EN`.
const INFO: c_uint = 1 << 3;

/// From so many bytes on, the file is emptied.
const LONGEST_LOG: u64 = 64 << 20;

impl Log {
    /// The log that the environment names.
    pub(super) fn open() -> io::Result<Log> {
        let path = env::var_os(DESTINATION).ok_or(io::ErrorKind::NotFound)?;
        let log = Log {
            file: File::options().read(true).write(true).open(path)?,
            read: Cell::default(),
            emptied: Cell::default(),
        };
        write(false);
        Ok(log)
    }

    /// Passes over what was written.
    pub(super) fn skip(&self) -> io::Result<()> {
        let end = self.read.get().max(self.file.metadata()?.len());
        self.read.set(end);
        if end - self.emptied.get() >= LONGEST_LOG {
            self.file.set_len(0)?;
            self.emptied.set(end);
        }
        Ok(())
    }

    /// The plan that was refused for want of a device, where one was ranked ahead of the first that is supported: support is looked at one
    /// after the other.
    pub(super) fn refused(&self, call: &Convolution) -> Result<Option<Offer>, CudnnError> {
        let said = refused_engines(&self.take().map_err(|_| CudnnError::NoLog)?);
        Ok(said.into_iter().find_map(|engine| {
            Some(Offer {
                tag: format!("eng{engine}_refused"),
                workspace: Bytes(of_engine(engine, call)?),
            })
        }))
    }

    /// What was written since the last read.
    fn take(&self) -> io::Result<String> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.read.get()))?;
        let mut text = Vec::new();
        let length = file.read_to_end(&mut text)?;
        self.read.set(self.read.get() + length as u64);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Has cuDNN write while this is done, where there is a log.
pub(in crate::cudnn) fn logging<T>(asked: impl FnOnce() -> T) -> T {
    write(true);
    let answer = asked();
    write(false);
    answer
}

/// Says whether cuDNN is to write.
fn write(messages: bool) {
    let mask = if messages { INFO } else { 0 };
    if let Ok(cudnn) = functions() {
        // SAFETY: cuDNN calls nothing back where there is no function, and writes to the file as before.
        let _ = unsafe { (cudnn.set_callback)(mask, null_mut(), None) };
    }
}
