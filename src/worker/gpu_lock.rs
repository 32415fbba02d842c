//! Taking turns: one worker at a time on each GPU, whichever process or user started it.
//!
//! # Note [Turns]
//!
//! A worker holds a lock on `batchfit-GPU-UUID.lock` from before it opens the GPU until it ends, so that
//! two fits never take each other's memory for the model's. The system releases the lock with the last
//! process that holds the file open, however that ended; the file itself stays, empty.
//!
//! The file lies in one directory for the whole machine, `/tmp` unless `BATCHFIT_LOCKS` names another (in
//! containers: one that they share). It is made readable by everybody, and a lock needs no more than that:
//! where a system forbids opening other users' files in `/tmp` for writing, they can still take turns.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use batchfit_platform::{OpenOptionsExt as _, identity, with_mode};

/// How often a wait looks again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What everybody may do with the file: read it.
const MODE: u32 = 0o644;

/// A GPU that is ours until this is dropped.
#[derive(Debug)]
pub struct GpuLock {
    _file: File,
    /// Whether it had to wait for another process.
    pub has_waited: bool,
}

/// Why a GPU is not ours.
#[derive(Debug, thiserror::Error)]
pub enum GpuLockError {
    /// Another process holds it, by this lock.
    #[error("another batchfit process is using this GPU (it holds {})", .0.display())]
    Busy(PathBuf),
    /// The file cannot be opened or locked.
    #[error(
        "could not lock {}: {source}; batchfit processes take turns on a GPU with it, and BATCHFIT_LOCKS can \
         name another directory for all of them",
        path.display()
    )]
    Unusable {
        /// The lock.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl GpuLock {
    /// Takes the GPU of this UUID, as soon as it is free, within `patience`.
    pub fn take(directory: &Path, uuid: &str, patience: Duration) -> Result<GpuLock, GpuLockError> {
        GpuLock::take_while(directory, uuid, for_at_most(patience))
    }

    /// Takes the GPU of this UUID; where another process holds it, again as often as `waits`.
    pub(super) fn take_while(
        directory: &Path,
        uuid: &str,
        mut waits: impl FnMut() -> bool,
    ) -> Result<GpuLock, GpuLockError> {
        let path = directory.join(format!("batchfit-{uuid}.lock"));
        let mut file = match open(&path) {
            Ok(file) => file,
            Err(source) => return Err(GpuLockError::Unusable { path, source }),
        };
        let mut has_waited = false;
        loop {
            match file.try_lock() {
                Ok(()) => match is_at(&file, &path) {
                    Ok(true) => {
                        return Ok(GpuLock {
                            _file: file,
                            has_waited,
                        });
                    }
                    // It was deleted meanwhile; the next process would lock another file.
                    Ok(false) => match open(&path) {
                        Ok(again) => file = again,
                        Err(source) => return Err(GpuLockError::Unusable { path, source }),
                    },
                    Err(source) => return Err(GpuLockError::Unusable { path, source }),
                },
                Err(TryLockError::Error(source)) => {
                    return Err(GpuLockError::Unusable { path, source });
                }
                Err(TryLockError::WouldBlock) if waits() => has_waited = true,
                Err(TryLockError::WouldBlock) => return Err(GpuLockError::Busy(path)),
            }
        }
    }
}

/// Waits a moment and says that it did, until the patience is over.
pub(super) fn for_at_most(patience: Duration) -> impl FnMut() -> bool {
    let deadline = Instant::now() + patience;
    let pause = move || (Instant::now() < deadline).then(|| thread::sleep(POLL_INTERVAL));
    move || pause().is_some()
}

/// Opens the file for reading, made if it is not there. Anything else of that name is left alone: a link may lead
/// to a file of another user, and opening a pipe would wait for its other end.
fn open(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_file() => {
            let file = File::open(path)?;
            if is_at(&file, path)? {
                Ok(file)
            } else {
                Err(io::Error::other("it was exchanged while it was opened"))
            }
        }
        Ok(_) => Err(io::Error::other("it is not a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path),
        Err(error) => Err(error),
    }
}

/// Whether the file is still the one of this name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(there) => Ok(identity(&there) == identity(&file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn make(path: &Path) -> io::Result<File> {
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path);
    match made {
        Ok(file) => {
            // Whatever the mask of this process: another user has to be able to open it.
            file.set_permissions(with_mode(file.metadata()?.permissions(), MODE))?;
            Ok(file)
        }
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const UUID: &str = "GPU-ff000000-0000-0000-0000-00000000002a";

    /// Another open of the same file is another holder, as another process would be.
    fn take(directory: &Path, uuid: &str) -> Result<GpuLock, GpuLockError> {
        GpuLock::take(directory, uuid, Duration::ZERO)
    }

    /// As soon as it is free: until its program starts, a process that another test has just forked holds what this one has let go.
    fn take_when_free(
        directory: &Path,
        mut meanwhile: impl FnMut(),
    ) -> Result<GpuLock, GpuLockError> {
        GpuLock::take_while(directory, UUID, || {
            meanwhile();
            true
        })
    }

    #[test]
    fn a_gpu_has_one_holder_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = take(directory.path(), UUID).unwrap();

        let second = take(directory.path(), UUID).unwrap_err();
        let other_gpu = take(directory.path(), "GPU-1");
        drop(first);
        let after = take_when_free(directory.path(), || ());

        let path = directory.path().join(format!("batchfit-{UUID}.lock"));
        assert!(matches!(&second, GpuLockError::Busy(held) if *held == path));
        assert!(second.to_string().starts_with("another batchfit process"));
        assert!(other_gpu.is_ok() && after.is_ok());
    }

    #[test]
    fn a_waiting_process_gets_the_lock_next() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Some(take(directory.path(), UUID).unwrap());

        let second = take_when_free(directory.path(), || drop(first.take()));

        assert!(second.unwrap().has_waited);
    }

    #[test]
    fn all_users_can_lock_the_file_and_only_its_owner_writes_it() {
        let directory = tempfile::tempdir().unwrap();
        drop(take(directory.path(), UUID).unwrap());

        let file = directory.path().join(format!("batchfit-{UUID}.lock"));
        let mode = fs::metadata(&file).unwrap().permissions().mode();

        assert_eq!(mode & 0o777, MODE);
        fs::set_permissions(&file, Permissions::from_mode(0o444)).unwrap();
        assert!(take_when_free(directory.path(), || ()).is_ok());
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = take(Path::new("/nowhere"), UUID).unwrap_err().to_string();

        assert!(
            error.starts_with("could not lock /nowhere/batchfit-GPU-"),
            "{error}"
        );
        assert!(error.contains("BATCHFIT_LOCKS"), "{error}");
    }
}
