//! Compiled kernels on disk, so that only the first process on a machine compiles them.
//!
//! A file's name is a digest of everything the code follows from: the source, the compiler's version and
//! options, the architecture. Its content begins with its own digest, so that a file cut short counts as none.
//! Files whose key no longer occurs stay; the folder may be deleted at any time. What is in it runs on the GPU as
//! ours, so it is made for its owner alone, and one that others may write to is not used.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process;

use sha2::{Digest as _, Sha256};

/// Part of every key; changes when the files' format does.
const FORMAT: &str = "batchfit kernels 1";

/// Bytes of a digest.
const DIGEST: usize = 32;

/// What a compiled file follows from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) source: &'a str,
    pub(super) options: &'a [String],
    /// The compiler's major and minor version.
    pub(super) compiler: (i32, i32),
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
pub(super) struct KernelCache<'a> {
    folder: Option<&'a Path>,
}

impl<'a> KernelCache<'a> {
    /// The kernels in this folder; without one, nothing is found or kept.
    pub(super) fn new(folder: Option<&'a Path>) -> KernelCache<'a> {
        KernelCache { folder }
    }

    pub(super) fn find(self, key: Key<'_>) -> Option<Vec<u8>> {
        if !is_ours_alone(self.folder?) {
            return None;
        }
        let file = fs::read(self.path(key)?).ok()?;
        let (digest, image) = file.split_at_checked(DIGEST)?;
        // Machine code says how long it is; text ends in a zero byte.
        let is_bounded = image.starts_with(b"\x7fELF") || image.ends_with(b"\0");
        (is_bounded && Sha256::digest(image)[..] == *digest).then(|| image.to_vec())
    }

    pub(super) fn keep(self, key: Key<'_>, image: &[u8]) {
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
            }
            let mut file = fs::File::create_new(&draft)?;
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
}

/// Whether nobody but its owner may write to a folder.
fn is_ours_alone(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|there| there.is_dir() && there.mode() & 0o022 == 0)
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

    #[test]
    fn a_folder_that_cannot_be_made_is_no_trouble() {
        let cache = KernelCache::new(Some(Path::new("/dev/null/kernels")));

        cache.keep(key("a"), b"\x7fELF of a");

        assert_eq!(cache.find(key("a")), None);
    }
}
