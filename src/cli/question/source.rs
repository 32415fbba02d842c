//! WHAT: from what stands on the command line to where the model comes from. Of Hugging Face's models the local cache is read; nothing is
//! downloaded.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::detect;
use super::document::{self, Kind};
use super::files::{open, read_bytes, read_to_end};
use crate::cli::arguments::hints;
use crate::cli::error::CliError;
use crate::cli::storage;
use crate::cli::terminal::output;
use crate::limits::shorten;
use crate::model::{
    ModelFiles, RequestDocument, RequestError, exported, of_family, preset, presets,
};

/// Extensions of files that are read: what ends so is a file, whether it is there or not.
const EXTENSIONS: [&str; 3] = ["json", "gz", "pt2"];

/// What stands before names: the address of a model's page, and where code has it.
const PLACES: [&str; 7] = [
    "https://huggingface.co/",
    "huggingface.co/",
    "hf.co/",
    "hf://",
    "torchvision.models.",
    "hf_hub:",
    "hf-hub:",
];

/// Extensions of files of weights.
const WEIGHTS: [&str; 6] = ["safetensors", "pt", "pth", "bin", "ckpt", "gguf"];

/// Models of other libraries, and of transformers' architectures that are not built: how their names begin, how they do without their
/// owners (`/`) or what they have in them (`*`), and whose they are.
const LIBRARIES: &str = include_str!("libraries.txt");

/// What names of models with quantized weights have.
const QUANTIZED: [&str; 7] = ["4bit", "8bit", "gptq", "awq", "gguf", "w4a16", "-fp8"];

/// What trains by itself, by its extension, and a command that runs it, `{}` being the file; then what settings in YAML have, and the
/// command of the trainer whose they are.
const SCRIPTS: &str = include_str!("scripts.txt");

/// Finds what is meant: stdin, a file, a folder with a config, a preset, or a model in the local Hugging Face cache.
pub(super) fn find(what: &Path) -> Result<(RequestDocument, Kind), CliError> {
    if what == Path::new("-") {
        return detect_source("stdin", read_bytes(what)?);
    }
    let name = what.to_str().unwrap_or_default();
    // As Python writes it: `resnet50(weights=None)`.
    if let Some((class, _)) = name
        .split_once('(')
        .filter(|(class, _)| !class.is_empty() && !what.exists())
    {
        return find(Path::new(class));
    }
    let page = PLACES.iter().find_map(|place| name.strip_prefix(place));
    // A file may be called `models.py`.
    let short = || {
        name.strip_prefix("models.")
            .filter(|own| preset(own).is_some())
    };
    let page = page.or_else(short);
    if let Some(page) = page.filter(|page| !page.is_empty()) {
        let id: Vec<&str> = page.split(['/', '?']).take(2).collect();
        return find(Path::new(&id.join("/")));
    }
    // Ollama writes `llama3.1:8b`.
    let preset = preset(&name.replace(':', "-"));
    if let Some(problem) = script(what) {
        let name = shorten(&what.display().to_string());
        return Err(CliError::flag(&name, problem));
    }
    let found = fs::metadata(what);
    let is_folder = found.as_ref().is_ok_and(fs::Metadata::is_dir);
    let config = what.join("config.json");
    match found {
        Ok(_) if !is_folder => {
            if preset.is_some() {
                output::warning(&format!(
                    "{name} is a file here and a preset too; the file is read"
                ));
            }
            return read(what);
        }
        Ok(_) if config.is_file() => return read(&config),
        Err(source) if is_path(what) || what.is_symlink() => {
            return Err(CliError::unreadable(what)(source));
        }
        Ok(_) | Err(_) => {}
    }
    let cache = hub_cache().filter(|_| is_hub_id(name));
    let cached = cache
        .as_deref()
        .and_then(|cache| cached_config(cache, name));
    // Another repository's model of the same shape.
    let is_alias = |preset: &str| {
        name.contains('/') && preset.contains('/') && !preset.eq_ignore_ascii_case(name)
    };
    match (preset, cached) {
        (Some(preset), None) => {
            if is_alias(preset.name) || !plain(preset.name).contains(&plain(name)) {
                output::note(&format!(
                    "{name} is taken as {} ({}), which has the same shape",
                    preset.name,
                    preset.size()
                ));
            }
            return Ok((document::preset(preset.name), Kind::Name));
        }
        (Some(preset), Some(_)) if !is_alias(preset.name) => {
            return Ok((document::preset(preset.name), Kind::Name));
        }
        (_, Some(config)) => return read(&config),
        (None, None) => {}
    }
    if is_folder {
        let adapter = what.join("adapter_config.json");
        if adapter.is_file() {
            return read(&adapter);
        }
        let problem =
            "the folder has no config.json; a model that Hugging Face's libraries saved does";
        return Err(CliError::flag(&what.display(), problem));
    }
    Err(unknown(what, name))
}

/// What to do with a file that trains by itself.
fn script(what: &Path) -> Option<String> {
    let extension = what.extension()?.to_str()?.to_lowercase();
    let is_weights = WEIGHTS.contains(&&*extension) && !what.exists();
    if is_weights && library(&what.to_string_lossy().to_lowercase()).is_none() {
        return Some("these are weights; what takes memory is the model: its name, its config.json, or a function that builds it \
                     (`batchfit fit my.py:build`)".to_owned());
    }
    let rows = || SCRIPTS.lines().filter_map(|line| line.split_once(" | "));
    let (_, script) = rows().find(|(known, _)| *known == extension)?;
    let (kind, command) = script.split_once(" | ")?;
    let is_read = kind.ends_with("settings") && what.is_file();
    let settings = is_read.then(|| read_bytes(what).ok()).flatten();
    let settings = String::from_utf8(settings.unwrap_or_default()).unwrap_or_default();
    let own = rows().find(|(key, own)| !own.contains(" | ") && settings.contains(key));
    let command = own.map_or(command, |(_, own)| own);
    let command = command.replace("{}", &shorten(&what.display().to_string()));
    let asks = hints::of_settings(&settings).map_or_else(String::new, |asks| format!("{asks}; "));
    Some(format!(
        "this is {kind}, not a model: {asks}`batchfit run --on CARD -- {command}`, or whatever command trains with it, runs it on a virtual \
         GPU and says whether it fits; a function that builds a model is `batchfit fit my.py:build`"
    ))
}

/// Whether this can only be a path.
fn is_path(what: &Path) -> bool {
    let Some(text) = what.to_str() else {
        return true;
    };
    let extension = what.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&&*extension.to_lowercase()))
        || text.starts_with(['/', '.', '~'])
        || text.ends_with('/')
        || (text.contains('/') && !is_hub_id(text))
}

/// Whose model a name in small letters is.
fn library(lower: &str) -> Option<&'static str> {
    let last = lower.rsplit('/').next().unwrap_or_default();
    let is_called = |one: &str| match (one.strip_prefix('/'), one.strip_prefix('*')) {
        (Some(own), _) => last.starts_with(own),
        (_, Some(part)) => lower.contains(part),
        _ => lower.starts_with(one),
    };
    LIBRARIES.lines().find_map(|line| {
        let (names, library) = line.split_once(" | ")?;
        names.split(' ').any(is_called).then_some(library)
    })
}

/// What nothing is known by.
fn unknown(what: &Path, name: &str) -> CliError {
    let lower = name.to_lowercase();
    let of = library(&lower);
    let problem = if QUANTIZED.iter().any(|kind| lower.contains(kind)) {
        "its weights are quantized, which no name says here: `batchfit run --on CARD -- python train.py` runs your own script with them on a \
         virtual GPU; LoRA over 16-bit weights is `batchfit fit meta-llama/Llama-3.1-8B --on rtx4090 --precision bf16 --lora 16`"
            .to_owned()
    } else if name.split(',').all(|one| preset(one).is_some()) {
        "one model is asked about at a time: name the others in questions of their own".to_owned()
    } else if ["keras", "tf.", "tensorflow", "jax", "flax"]
        .iter()
        .any(|one| lower.starts_with(one))
    {
        "models by name are PyTorch's, and take other memory elsewhere; \
         `batchfit search -- python train.py --batch-size {batch}` finds the largest batch of a training with TensorFlow or JAX on this GPU"
            .to_owned()
    } else if let Some(library) = of {
        format!(
            "a model of {library} has no name here: `batchfit run --on CARD -- python train.py` runs your training whole on a virtual GPU, \
             and `batchfit fit my.py:build` asks about the module that a function of yours builds"
        )
    } else if let Some(choices) = of_family(name) {
        return CliError::flag(&shorten(name), choices);
    } else if name.contains('/') {
        let cache = hub_cache().map_or_else(
            || "there is none".to_owned(),
            |cache| cache.display().to_string(),
        );
        format!(
            "batchfit has no model of this name and downloads nothing, and it is not in the local Hugging Face cache ({cache}). A model of \
             transformers has a config: fetch {} and give that file instead. One of diffusers, timm or another library: \
             `batchfit fit my.py:build`, with a function of yours that builds it",
            hub_address(name)
        )
    } else {
        "this is no file here, no preset (`batchfit presets` lists them) and no model of Hugging Face, whose names \
         are like `Qwen/Qwen3-0.6B`; a model of your own is `batchfit fit my.py:build`, with a function that builds it, and a script that \
         trains is `batchfit run --on CARD -- python train.py`"
            .to_owned()
    };
    CliError::named(
        &shorten(&what.display().to_string()),
        RequestError {
            nearest: nearest(name).filter(|_| of.is_none()),
            ..RequestError::at("", problem)
        },
    )
}

/// The model that a person means by a name that is no model's: one that it is short for or a variant of, or misspelt. Numbers are sizes and
/// versions, so none differs.
fn nearest(name: &str) -> Option<String> {
    let digits = |text: &str| -> String { text.chars().filter(char::is_ascii_digit).collect() };
    let name = shorten(name);
    let wanted = plain(&name);
    let names = || presets().map(|preset| preset.name);
    let alike = || names().filter(|known| digits(known) == digits(&name));
    let found = if name.contains('/') {
        // A variant, such as one that follows instructions, is of the same owner.
        alike().find(|known| wanted.starts_with(&plain(known)))
    } else {
        let is_short_for = |known: &&str| {
            let known = plain(known.rsplit('/').next().unwrap_or(known));
            known.starts_with(&wanted) || known.ends_with(&wanted)
        };
        names().find(|known| wanted.len() >= SHORTEST && is_short_for(known))
    };
    let score = |known: &&str| {
        strsim::normalized_damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase())
    };
    let misspelt = || {
        let near = alike().filter(|known| score(known) >= MISSPELT);
        RequestError::unknown("", "model", &name, near).nearest
    };
    found.map(str::to_owned).or_else(misspelt)
}

/// A name in small letters and digits.
fn plain(text: &str) -> String {
    let kept = text.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

/// Names less alike are of other models.
const MISSPELT: f64 = 0.75;

/// Fewer letters are short for too much.
const SHORTEST: usize = 3;

/// Reads a file. Of an archive only the model, which may lie beside gigabytes of weights.
fn read(path: &Path) -> Result<(RequestDocument, Kind), CliError> {
    match opened(path)? {
        FileContent::Model(model) => {
            let graph = document::empty().with_files(ModelFiles::Graph(model));
            Ok((graph, Kind::File))
        }
        FileContent::Whole(bytes) => detect_source(&path.display().to_string(), bytes),
    }
}

fn detect_source(name: &str, bytes: Vec<u8>) -> Result<(RequestDocument, Kind), CliError> {
    detect::tell(bytes).map_err(|invalid| CliError::named(&name, invalid))
}

/// What is read of a file.
enum FileContent {
    /// The model of an archive.
    Model(Vec<u8>),
    /// All of any other file.
    Whole(Vec<u8>),
}

/// Opens a file once, since a pipe gives its bytes once (and an archive then comes whole).
fn opened(path: &Path) -> Result<FileContent, CliError> {
    let unreadable = CliError::unreadable(path);
    let mut file = BufReader::new(open(path).map_err(unreadable)?);
    let is_file = file.get_ref().metadata().map_err(unreadable)?.is_file();
    if !(is_file && exported::is_archive(file.fill_buf().map_err(unreadable)?)) {
        return read_to_end(file)
            .map(FileContent::Whole)
            .map_err(unreadable);
    }
    let model = exported::model_of_archive(file);
    model
        .map(FileContent::Model)
        .map_err(|error| CliError::flag(&path.display(), error.to_string()))
}

/// Reads a graph for `--model`, whatever it looks like.
pub(super) fn graph(path: &Path) -> Result<Vec<u8>, CliError> {
    if path == Path::new("-") {
        return read_bytes(path);
    }
    let (FileContent::Model(bytes) | FileContent::Whole(bytes)) = opened(path)?;
    Ok(bytes)
}

/// Longest id that the hub gives.
const LONGEST_ID: usize = 96;

/// Longest name of a revision that is read: a commit has 40 characters.
const LONGEST_REVISION: u64 = 100;

/// Whether the hub could have a model of this id: `org/name`, or an old one's `name`. Such an id leads out of no
/// folder.
fn is_hub_id(text: &str) -> bool {
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
fn hub_address(id: &str) -> String {
    format!("https://huggingface.co/{id}/resolve/main/config.json")
}

/// The folder in which Hugging Face's libraries keep what they downloaded, as `huggingface_hub` looks for it.
fn hub_cache() -> Option<PathBuf> {
    storage::named("HF_HUB_CACHE")
        .or_else(|| Some(storage::named("HF_HOME")?.join("hub")))
        .or_else(|| Some(storage::cache()?.join("huggingface/hub")))
}

/// The config of a model in this cache: of the revision that `main` was when it was downloaded, or else of the newest
/// one there.
fn cached_config(cache: &Path, id: &str) -> Option<PathBuf> {
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
            assert!(is_hub_id(id), "{id}");
        }
        let longest = "a".repeat(LONGEST_ID + 1);
        for other in [
            "", "/", "a/", "/a", "a//b", "a/b/c", "..", "../a", "a/..", "a/../b", "a/.b", "a--b/c",
            "a b", "a/b\n", "a\\b", "-a/b", "ä/b", &longest,
        ] {
            assert!(!is_hub_id(other), "{other:?}");
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
        let found =
            || fs::read_to_string(cached_config(cache.path(), "org/name").unwrap()).unwrap();
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

            assert_eq!(cached_config(cache.path(), "org/name"), None, "{main:?}");
        }
    }
}
