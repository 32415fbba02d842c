//! Unix as it is. What only Linux has does nothing on other systems.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::io::{Errno, fcntl_getfd};
use rustix::process::{
    Pid, Resource, Signal, WaitId, WaitIdOptions, geteuid, getrlimit, kill_process_group, waitid,
};

pub use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};

/// Whether a locked file can still be read and written through other handles.
pub const LOCKS_ARE_ADVISORY: bool = true;

/// Makes temporary folders that only this user can read.
pub fn private_folder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(Permissions::from_mode(0o700));
    builder
}

/// Who may read and write a file.
pub fn mode(there: &Metadata) -> u32 {
    there.mode()
}

/// The owner of a file.
pub fn owner(there: &Metadata) -> u32 {
    there.uid()
}

/// How many names a file has: hard links.
pub fn names(there: &Metadata) -> u64 {
    there.nlink()
}

/// What tells a file from another of its name.
pub fn identity(there: &Metadata) -> (u64, u64) {
    (there.dev(), there.ino())
}

/// Permissions with another mode.
pub fn with_mode(mut permissions: Permissions, mode: u32) -> Permissions {
    permissions.set_mode(mode);
    permissions
}

/// Whether a file is a device.
pub fn is_device(kind: FileType) -> bool {
    kind.is_char_device() || kind.is_block_device()
}

/// A stream as a file of its own.
pub fn file_of(stream: impl AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

/// Opens a file or a folder, to lock it or to have it written to disk.
pub fn open_to_sync(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Whether a stream is open.
pub fn is_open(stream: impl AsFd) -> bool {
    fcntl_getfd(stream).is_ok()
}

/// How many columns the terminal of a stream has.
pub fn terminal_width(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// The user that this process works for.
pub fn user() -> u32 {
    geteuid().as_raw()
}

/// The name of this machine.
pub fn machine() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// How many files this process may have open.
pub fn most_open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Has this thread give way to others by so much, where a thread can by itself.
pub fn give_way(niceness: i32) {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, niceness);
    #[cfg(not(target_os = "linux"))]
    let _ = niceness;
}

/// Gives a connection up whose other side takes nothing for so many milliseconds.
pub fn give_up_after(stream: impl AsFd, milliseconds: u32) {
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, milliseconds);
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, milliseconds);
}

/// Has the system back memory by pages of 4 KiB.
pub fn use_small_pages() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::thread::disable_transparent_huge_pages(true)?;
    Ok(())
}

/// Whether a child has ended. Its number is not reused before its status is taken.
pub fn has_ended(child: &mut Child) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    !matches!(
        waitid(WaitId::Pid(Pid::from_child(child)), look),
        Ok(None) | Err(Errno::INTR)
    )
}

/// The signal that a process ended with.
pub fn signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// A text of bytes.
pub fn os_string(bytes: &[u8]) -> OsString {
    OsStr::from_bytes(bytes).to_owned()
}

/// Gives a command's process a group of its own: what it starts ends with it.
pub fn own_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// Runs a command in place of this process; comes back where it cannot be started.
pub fn exec(command: &mut Command) -> io::Error {
    command.exec()
}

/// Kills the process group that a child leads. An error means that nothing is left of it.
pub fn kill_group(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}
