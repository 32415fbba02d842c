//! Models in the local cache of Hugging Face's libraries. Nothing is downloaded.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::cli::folders;

/// Longest id that the hub gives.
const LONGEST_ID: usize = 96;

/// Longest name of a revision that is read: a commit has 40 characters.
const LONGEST_REVISION: u64 = 100;

/// Whether the hub could have a model of this id: `org/name`, or an old one's `name`. Such an id leads out of no
/// folder.
pub(super) fn is_id(text: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
        !part.is_empty() && !part.starts_with(['.', '-']) && part.chars().all(allowed)
    };
    let parts: Vec<&str> = text.split('/').collect();
    text.len() <= LONGEST_ID
        && parts.len() <= 2
        && parts.into_iter().all(is_part)
        && !text.contains("..")
        && !text.contains("--")
}

/// Where the config of a model is on the hub.
pub(super) fn address(id: &str) -> String {
    format!("https://huggingface.co/{id}/resolve/main/config.json")
}

/// The folder in which Hugging Face's libraries keep what they downloaded, as `huggingface_hub` looks for it.
pub(super) fn cache() -> Option<PathBuf> {
    folders::named("HF_HUB_CACHE")
        .or_else(|| Some(folders::named("HF_HOME")?.join("hub")))
        .or_else(|| Some(folders::cache()?.join("huggingface/hub")))
}

/// The config of a model in this cache: of the revision that `main` was when it was downloaded, or else of the newest
/// one there.
pub(super) fn config(cache: &Path, id: &str) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", id.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let config_of =
        |snapshot: PathBuf| Some(snapshot.join("config.json")).filter(|file| file.is_file());
    let main = revision(&model.join("refs/main"));
    if let Some(config) = main.and_then(|main| config_of(snapshots.join(main))) {
        return Some(config);
    }
    let found = fs::read_dir(snapshots).ok()?.flatten();
    let configs = found.filter_map(|snapshot| config_of(snapshot.path()));
    configs.max_by_key(|config| fs::metadata(config).and_then(|file| file.modified()).ok())
}

/// The revision that a file of `refs` names: one folder, and no way out of it.
fn revision(file: &Path) -> Option<String> {
    let mut text = String::new();
    let file = fs::File::open(file).ok()?;
    file.take(LONGEST_REVISION).read_to_string(&mut text).ok()?;
    let name = text.trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric());
    is_name.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_out_of_no_folder() {
        for id in [
            "gpt2",
            "Qwen/Qwen3-0.6B",
            "google-bert/bert-base-uncased",
            "a/b_c.d",
        ] {
            assert!(is_id(id), "{id}");
        }
        let longest = "a".repeat(LONGEST_ID + 1);
        for other in [
            "", "/", "a/", "/a", "a//b", "a/b/c", "..", "../a", "a/..", "a/../b", "a/.b", "a--b/c",
            "a b", "a/b\n", "a\\b", "-a/b", "ä/b", &longest,
        ] {
            assert!(!is_id(other), "{other:?}");
        }
    }

    #[test]
    fn the_revision_of_main_goes_before_a_newer_one() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--org--name");
        let put = |revision: &str| {
            let snapshot = model.join("snapshots").join(revision);
            fs::create_dir_all(&snapshot).unwrap();
            fs::write(snapshot.join("config.json"), revision).unwrap();
        };
        put("aaa");
        put("bbb");
        let found = || fs::read_to_string(config(cache.path(), "org/name").unwrap()).unwrap();
        let without_main = found();
        fs::create_dir(model.join("refs")).unwrap();

        assert!(["aaa", "bbb"].contains(&&*without_main));
        for (main, expected) in [("aaa\n", "aaa"), ("bbb", "bbb")] {
            fs::write(model.join("refs/main"), main).unwrap();
            assert_eq!(found(), expected);
        }
    }

    #[test]
    fn a_reference_leads_out_of_no_folder() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--org--name");
        fs::create_dir_all(model.join("refs")).unwrap();
        fs::create_dir_all(model.join("snapshots")).unwrap();
        fs::write(cache.path().join("config.json"), "{}").unwrap();
        for main in ["../..", "../../", "", &"9".repeat(10_000)] {
            fs::write(model.join("refs/main"), main).unwrap();

            assert_eq!(config(cache.path(), "org/name"), None, "{main:?}");
        }
    }
}
