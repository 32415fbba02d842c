//! Compiled kernels on disk, so that only the first process on a machine compiles them.
//!
//! A file's name is a digest of everything the code follows from: the source, the compiler's version and
//! options, the architecture. Its content begins with its own digest, so that a file cut short counts as none.
//! Files whose key no longer occurs stay; the folder may be deleted at any time. What is in it runs on the GPU as
//! ours, so it is made for its owner alone. A folder or a file that belongs to another user, or that others may write
//! to, is not used: kernels are compiled again, and not kept there.

use std::fs::{self, Metadata};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process;

use batchfit_platform::{DirBuilderExt as _, OpenOptionsExt as _, mode, owner, user};
use sha2::{Digest as _, Sha256};

/// Part of every key; changes when the files' format does.
const FORMAT: &str = "batchfit kernels 1";

/// No file of ours is longer, by far: machine code for a file of kernels is some 100 KB.
const LONGEST: u64 = 64 << 20;

/// Bytes of a digest.
const DIGEST: usize = 32;

/// What a compiled file follows from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) source: &'a str,
    pub(crate) options: &'a [&'a str],
    /// The compiler's major and minor version.
    pub(crate) compiler: (i32, i32),
}

impl Key<'_> {
    fn file_name(&self) -> String {
        let mut digest = Sha256::new();
        let (major, minor) = self.compiler;
        let compiler = format!("{major}.{minor}");
        let options = self.options.join("\n");
        for part in [FORMAT, &compiler, &options, self.source] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        format!("{:x}.cubin", digest.finalize())
    }
}

/// A folder of compiled kernels. It is an optimisation alone: what cannot be read or written is compiled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelCache<'a> {
    folder: Option<&'a Path>,
    /// Who alone may have written it: the user that this process works for.
    owner: u32,
}

impl<'a> KernelCache<'a> {
    /// The kernels in this folder; without one, nothing is found or kept.
    pub(crate) fn new(folder: Option<&'a Path>) -> KernelCache<'a> {
        KernelCache {
            folder,
            owner: user(),
        }
    }

    pub(crate) fn find(self, key: Key<'_>) -> Option<Vec<u8>> {
        if !self.is_ours_alone(&fs::metadata(self.folder?).ok()?) {
            return None;
        }
        let path = self.path(key)?;
        // Looked at before it is opened too: opening a pipe would wait for its other end.
        if !fs::symlink_metadata(&path).ok()?.is_file() {
            return None;
        }
        let file = fs::File::open(&path).ok()?;
        let there = file.metadata().ok()?;
        if !there.is_file() || !self.is_ours_alone(&there) || there.len() > LONGEST {
            return None;
        }
        let mut content = Vec::new();
        file.take(LONGEST).read_to_end(&mut content).ok()?;
        let (digest, image) = content.split_at_checked(DIGEST)?;
        // Machine code says how long it is; text ends in a zero byte.
        let is_bounded = image.starts_with(b"\x7fELF") || image.ends_with(b"\0");
        (is_bounded && Sha256::digest(image)[..] == *digest).then(|| image.to_vec())
    }

    pub(crate) fn keep(self, key: Key<'_>, image: &[u8]) {
        let Some(path) = self.path(key) else {
            return;
        };
        // Under a name of its own first: another process may write the same file.
        let draft = path.with_extension(process::id().to_string());
        let write = || {
            if let Some(folder) = path.parent() {
                fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(folder)?;
                if !self.is_ours_alone(&fs::metadata(folder)?) {
                    return Err(io::Error::other("others may write to the folder"));
                }
            }
            // Whatever the umask says: `find` reads no file that others may write to.
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(&Sha256::digest(image))?;
            file.write_all(image)?;
            drop(file);
            fs::rename(&draft, &path)
        };
        if let Err(error) = write() {
            tracing::debug!("{} was not kept: {error}", path.display());
            let _ = fs::remove_file(&draft);
        }
    }

    fn path(self, key: Key<'_>) -> Option<PathBuf> {
        Some(self.folder?.join(key.file_name()))
    }

    /// Whether a folder or a file belongs to us, and no other user may write to it.
    fn is_ours_alone(self, there: &Metadata) -> bool {
        owner(there) == self.owner && mode(there) & 0o022 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str) -> Key<'_> {
        Key {
            source,
            options: &[],
            compiler: (13, 0),
        }
    }

    #[test]
    fn what_was_kept_is_found_under_the_same_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("made on the way");
        let cache = KernelCache::new(Some(&inner));

        cache.keep(key("a"), b"\x7fELF of a");

        assert_eq!(cache.find(key("a")).unwrap(), b"\x7fELF of a");
        assert_eq!(cache.find(key("b")), None);
        let newer = Key {
            compiler: (13, 1),
            ..key("a")
        };
        assert_eq!(cache.find(newer), None);
    }

    #[test]
    fn a_file_cut_short_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::new(Some(folder.path()));
        cache.keep(key("a"), b"\x7fELF of a");
        let path = cache.path(key("a")).unwrap();

        for length in [38, 10, 0] {
            let whole = fs::read(&path).unwrap();
            fs::write(&path, &whole[..whole.len().min(length)]).unwrap();

            assert_eq!(cache.find(key("a")), None);
        }
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::new(Some(folder.path()));
        cache.keep(key("a"), b"\x7fELF of a");
        assert!(cache.find(key("a")).is_some());

        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();

        assert_eq!(cache.find(key("a")), None);
    }

    /// Another user who may write to the parent made it first.
    #[test]
    fn a_folder_of_another_user_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::new(Some(folder.path()));
        cache.keep(key("a"), b"\x7fELF of a");
        let stranger = KernelCache {
            owner: cache.owner + 1,
            ..cache
        };

        assert_eq!(stranger.find(key("a")), None);
        stranger.keep(key("b"), b"\x7fELF of b");

        assert_eq!(cache.find(key("b")), None, "kept where others may write");
    }

    #[test]
    fn a_file_that_others_may_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::new(Some(folder.path()));
        cache.keep(key("a"), b"\x7fELF of a");
        let path = cache.path(key("a")).unwrap();

        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();

        assert_eq!(cache.find(key("a")), None);
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::new(Some(folder.path()));
        cache.keep(key("a"), b"\x7fELF of a");
        let path = cache.path(key("a")).unwrap();
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();

        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();

        assert_eq!(cache.find(key("a")), None);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_trouble() {
        let cache = KernelCache::new(Some(Path::new("/dev/null/kernels")));

        cache.keep(key("a"), b"\x7fELF of a");

        assert_eq!(cache.find(key("a")), None);
    }
}
