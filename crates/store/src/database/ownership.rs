//! One server for each database: the lock that says whose the queue is.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use batchfit_platform::{OpenOptionsExt as _, identity, mode, names, owner, user};

use crate::database::maintenance::{make_private, only_a_file};
use crate::engine::is_postgres;
use crate::{StoreError, existing, is_in_memory, options};

/// How often it is tried, and how long there is in between.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// The right to work on a database's queue, held until it is dropped, or until the process ends in whatever way.
///
/// It is a lock on a file beside the database, `batchfit.db.lock`, so that it also holds between containers
/// that share a volume, and one on the database itself, which may have other names: hard links, and mounts. That one is of another kind than
/// SQLite's own, which a process loses when it closes the file anywhere: so it is closed when the database is. A process that does not ask for
/// it can read and write as before.
#[derive(Debug)]
#[must_use = "dropping it gives the database up"]
pub struct Ownership {
    /// Nothing is written to them. Empty for a database in memory, which is private, and for one of several servers.
    _locks: Vec<File>,
}

impl Ownership {
    /// Takes a database that is there, to copy it into another one.
    pub fn take_source(from: &str, to: &str) -> Result<Ownership, StoreError> {
        let place = |database| fs::canonicalize(options(database).ok()?.get_filename()).ok();
        if !is_in_memory(from) && !is_postgres(from) {
            let from = existing(from)?;
            if place(to).is_some_and(|to| fs::canonicalize(from.get_filename()).ok() == Some(to)) {
                return Err(StoreError::OntoItself(to.to_owned()));
            }
        }
        Ownership::take(from)
    }

    /// Takes the database, before it is opened and migrated, or fails when another server has it, and has it for longer than a
    /// server that was killed while it started a process: that process holds what the server did until it is another program.
    /// Blocks for up to two seconds.
    pub fn take(database: &str) -> Result<Ownership, StoreError> {
        let mut attempts = 1..ATTEMPTS;
        let mut pause = || attempts.next().map(|_| thread::sleep(PAUSE));
        Ownership::take_while(database, || pause().is_some())
    }

    /// Takes the database; where another server has it, again as often as `waits`.
    fn take_while(
        database: &str,
        mut waits: impl FnMut() -> bool,
    ) -> Result<Ownership, StoreError> {
        // Servers on PostgreSQL share the queue.
        if is_in_memory(database) || is_postgres(database) {
            return Ok(Ownership { _locks: Vec::new() });
        }
        let open = |source| StoreError::Open {
            database: database.to_owned(),
            source,
        };
        let named = options(database).map_err(open)?;
        let file = settled(named.get_filename()).map_err(|source| open(sqlx::Error::Io(source)))?;
        let lock = lock_path(&file);
        let failed = |source| StoreError::Lock {
            lock: lock.clone(),
            source,
        };
        // Left behind at the end: a file that is removed can be locked by one server and made again by another.
        let held = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock)
            .map_err(failed)?;
        let itself = File::open(&file).map_err(|source| open(sqlx::Error::Io(source)))?;
        let mut locks = vec![held];
        locks.extend(batchfit_platform::LOCKS_ARE_ADVISORY.then_some(itself));
        let mut next = locks.iter();
        let mut one = next.next();
        while let Some(held) = one {
            match held.try_lock() {
                Ok(()) => one = next.next(),
                Err(TryLockError::WouldBlock) if waits() => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::InUse(database.to_owned()));
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        Ok(Ownership { _locks: locks })
    }
}

/// The database's own path, whatever symbolic links lead to it. Makes the file when it is missing: an empty
/// file is an empty database.
fn settled(named: &Path) -> io::Result<PathBuf> {
    only_a_file(named)?;
    match fs::canonicalize(named) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            make_private(named)?;
            fs::canonicalize(named)
        }
        settled => settled,
    }
}

/// Which file a database is, so that one that was put in its place is noticed.
#[derive(Debug)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    identity: (u64, u64),
    has_lost_wal: AtomicBool,
}

impl FileIdentity {
    pub(crate) fn of(path: &Path) -> io::Result<FileIdentity> {
        Ok(FileIdentity {
            path: path.to_owned(),
            identity: identity(&fs::metadata(path)?),
            has_lost_wal: AtomicBool::new(false),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Which of its files is not where it was.
    pub(crate) fn missing(&self) -> Option<PathBuf> {
        let mut file = OsString::from(&self.path);
        if self.has_lost_wal.load(Ordering::Relaxed) {
            file.push("-wal");
        } else if self.is_there() {
            return None;
        }
        Some(file.into())
    }

    /// Whether the file is where it was when it was opened. What is written to one that was deleted is gone with the process.
    fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|now| identity(&now) == self.identity)
    }

    /// Whether this process writes to a `-wal` that was deleted, as Linux says; which is missing from then on.
    pub(crate) fn loses_wal(&self) -> bool {
        let mut deleted = fs::canonicalize(&self.path)
            .unwrap_or_default()
            .into_os_string();
        deleted.push("-wal (deleted)");
        let open = fs::read_dir("/proc/self/fd")
            .into_iter()
            .flatten()
            .flatten();
        let is_lost =
            { open }.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == *deleted));
        self.has_lost_wal.store(is_lost, Ordering::Relaxed);
        is_lost
    }
}

/// Fails where the database has other names (hard links): SQLite keeps what was written last beside each name, so what is written by two of
/// them is lost, or destroys the file.
pub(crate) fn refuse_other_names(named: &Path) -> io::Result<()> {
    let count = names(&fs::metadata(named)?);
    if count < 2 {
        return Ok(());
    }
    let problem = format!(
        "it has {count} names (hard links), and what two of them are used to write is lost; remove the others (`find / -samefile FILE` lists \
         them), and make copies by `batchfit db backup`"
    );
    Err(io::Error::other(problem))
}

/// Fails where another user put the database, or a file of which SQLite would take rows, into a folder that everybody may write. The rule is
/// that of Linux's `fs.protected_regular`, so files of root and of the folder's owner are taken: volumes of containers are theirs.
pub(crate) fn refuse_planted(named: &Path) -> io::Result<()> {
    let real = fs::canonicalize(named).unwrap_or_else(|_| named.to_owned());
    let us = user();
    for (path, suffix) in [
        (named, ""),
        (&real, ""),
        (&real, "-journal"),
        (&real, "-wal"),
    ] {
        let mut file = OsString::from(path);
        file.push(suffix);
        let file = PathBuf::from(file);
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            Some(_) | None => Path::new("."),
        };
        let (Ok(there), Ok(around)) = (fs::symlink_metadata(&file), fs::metadata(folder)) else {
            continue;
        };
        if is_planted(owner(&there), (owner(&around), mode(&around)), us) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} belongs to another user (uid {}), and everybody may write its folder; `chmod o-w {}` makes it trusted",
                    file.display(),
                    owner(&there),
                    folder.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Whether a file of `owner` in a folder of this owner and mode may have been put there for `us`.
fn is_planted(owner: u32, (folder, mode): (u32, u32), us: u32) -> bool {
    mode & 0o002 != 0 && ![us, 0, folder].contains(&owner)
}

fn lock_path(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use crate::database::ownership::*;

    #[test]
    fn a_file_of_another_user_is_refused_where_everybody_may_put_one() {
        let (us, other, root) = (1000, 1001, 0);
        let shared = (root, 0o1777);

        assert!(is_planted(other, shared, us));
        assert!(is_planted(other, (us, 0o777), us));
        assert!(is_planted(other, shared, root));
        for owner in [us, root] {
            assert!(!is_planted(owner, shared, us));
        }
        // Volumes: those of a group, those of their owner, and those where all files are one user's.
        assert!(!is_planted(other, (root, 0o2775), us));
        assert!(!is_planted(other, (other, 0o755), us));
        assert!(!is_planted(other, (other, 0o777), us));
    }

    #[tokio::test]
    async fn a_database_has_one_owner_by_whatever_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fits.db");
        let link = directory.path().join("link.db");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let url = format!("sqlite:{}", file.display());
        let other = directory.path().join("other.db");
        let hard = directory.path().join("hard.db");
        // The link leads to a file that is not there yet.
        let owner = Ownership::take(link.to_str().unwrap()).unwrap();

        let refused = Ownership::take_while(&url, || false).unwrap_err();
        assert!(matches!(refused, StoreError::InUse(_)), "{refused}");
        assert!(refused.to_string().contains("another batchfit server"));
        fs::hard_link(&file, &hard).unwrap();
        let refused = Ownership::take_while(hard.to_str().unwrap(), || false).unwrap_err();
        assert!(matches!(refused, StoreError::InUse(_)), "{refused}");
        let refused = crate::Db::open(hard.to_str().unwrap()).await.unwrap_err();
        assert!(
            format!("{refused:?}").contains("it has 2 names"),
            "{refused:?}"
        );
        crate::Db::open(&url).await.unwrap_err();
        let _other = Ownership::take(other.to_str().unwrap()).unwrap();

        drop(owner);
        let _owner = Ownership::take(&url).unwrap();
    }

    /// As by a process that the last server was starting when it was killed.
    #[test]
    fn a_database_that_is_given_up_soon_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fits.db");
        let file = file.to_str().unwrap();
        let mut before = Some(Ownership::take(file).unwrap());

        let owner = Ownership::take_while(file, || before.take().is_some());

        assert!(owner.is_ok(), "{owner:?}");
    }

    #[tokio::test]
    async fn a_pipe_is_no_database_and_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for there in [&pipe, directory.path()] {
            let there = there.to_str().unwrap();
            for refused in [
                Ownership::take(there).unwrap_err(),
                crate::Db::open(there).await.unwrap_err(),
            ] {
                assert!(
                    format!("{refused:?}").contains("a database is a file"),
                    "{refused:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_file_that_is_no_database_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let mode_of = |name: &str| {
            let metadata = fs::metadata(directory.path().join(name)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        let readable = |name: &str| {
            let file = directory.path().join(name);
            let everybody = fs::Permissions::from_mode(0o644);
            fs::set_permissions(file, everybody).unwrap();
        };
        let open = async |name: &str| {
            let file = directory.path().join(name);
            crate::Db::open(file.to_str().unwrap()).await
        };
        fs::write(directory.path().join("other"), "root:x:0:0:").unwrap();
        readable("other");

        assert!(open("other").await.is_err());
        assert!(Ownership::take(directory.path().join("other").to_str().unwrap()).is_ok());

        assert_eq!(mode_of("other"), 0o644);
        // Nor does one that a link beside a database leads to.
        drop(open("own.db").await.unwrap());
        readable("own.db");
        let _ = fs::remove_file(directory.path().join("own.db-wal"));
        std::os::unix::fs::symlink("other", directory.path().join("own.db-wal")).unwrap();
        let _ = open("own.db").await;
        assert_eq!((mode_of("own.db"), mode_of("other")), (0o600, 0o644));
    }

    #[test]
    fn databases_in_memory_are_private() {
        let _first = Ownership::take("sqlite::memory:").unwrap();
        let _second = Ownership::take("sqlite::memory:").unwrap();
    }
}
