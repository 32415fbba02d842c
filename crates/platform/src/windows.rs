//! Windows: files have no modes and processes no groups.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::windows::fs::{MetadataExt as _, OpenOptionsExt as WindowsExt};
use std::os::windows::io::AsHandle;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, exit};

/// The mode that a file is made with changes nothing.
#[allow(missing_docs)]
pub trait OpenOptionsExt {
    fn mode(&mut self, _mode: u32) -> &mut Self {
        self
    }
}

/// Nor does that of a folder.
#[allow(missing_docs)]
pub trait DirBuilderExt {
    fn mode(&mut self, _mode: u32) -> &mut Self {
        self
    }
}

impl OpenOptionsExt for OpenOptions {}
impl DirBuilderExt for DirBuilder {}
pub use std::os::windows::fs::symlink_file as symlink;

/// Whether a locked file can still be read and written through other handles.
pub const LOCKS_ARE_ADVISORY: bool = false;

/// Opens folders too: `FILE_FLAG_BACKUP_SEMANTICS`.
const FOLDERS_TOO: u32 = 0x0200_0000;

/// Makes temporary folders, which are below a folder of this user's.
pub fn private_folder() -> tempfile::Builder<'static, 'static> {
    tempfile::Builder::new()
}

/// As what is in a user's own folders: private.
pub fn mode(_there: &Metadata) -> u32 {
    0o600
}

/// The owner of a file, as far as is known.
pub fn owner(_there: &Metadata) -> u32 {
    user()
}

/// How many names a file has, as far as is known.
pub fn names(_there: &Metadata) -> u64 {
    1
}

/// What tells a file from another of its name: when it was made.
pub fn identity(there: &Metadata) -> (u64, u64) {
    (0, there.creation_time())
}

/// Permissions as they are.
pub fn with_mode(permissions: Permissions, _mode: u32) -> Permissions {
    permissions
}

/// Whether a file is a device: none has a path that is taken for one.
pub fn is_device(_kind: FileType) -> bool {
    false
}

/// A stream as a file of its own.
pub fn file_of(stream: impl AsHandle) -> io::Result<File> {
    stream.as_handle().try_clone_to_owned().map(File::from)
}

/// Opens a file or a folder, to lock it or to have it written to disk.
pub fn open_to_sync(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    WindowsExt::custom_flags(&mut options, FOLDERS_TOO);
    options.open(path)
}

/// Whether a stream is open, as far as is known.
pub fn is_open(_stream: impl AsHandle) -> bool {
    true
}

/// How many columns the terminal of a stream has: `COLUMNS` says it.
pub fn terminal_width(_stream: impl AsHandle) -> Option<usize> {
    None
}

/// The user that this process works for.
pub fn user() -> u32 {
    0
}

/// The name of this machine.
pub fn machine() -> String {
    let named = env::var_os("COMPUTERNAME").unwrap_or_else(|| "windows".into());
    named.to_string_lossy().into_owned()
}

/// How many files this process may have open: there is no limit.
pub fn most_open_files() -> Option<u64> {
    None
}

/// Does nothing: the system divides time by itself.
pub fn give_way(_niceness: i32) {}

/// Does nothing: connections end by the limits of requests.
pub fn give_up_after<T>(_stream: T, _milliseconds: u32) {}

/// Does nothing: pages are small.
pub fn use_small_pages() -> io::Result<()> {
    Ok(())
}

/// Whether a child has ended.
pub fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// The signal that a process ended with: none.
pub fn signal(_status: ExitStatus) -> Option<i32> {
    None
}

/// A text of bytes.
pub fn os_string(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// Does nothing.
pub fn own_group(command: &mut Command) -> &mut Command {
    command
}

/// Runs a command and ends with its exit code; comes back where it cannot be started.
pub fn exec(command: &mut Command) -> io::Error {
    match command.status() {
        Ok(status) => exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

/// Kills a child.
pub fn kill_group(child: &mut Child) {
    let _ = child.kill();
}
