//! `--ask-cudnn`: finds PyTorch's cuDNN, and has simulations ask it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::error::CliError;
use crate::device::cuda::{Library, cudnn};
use crate::device::sim;
use crate::worker::{Heuristics, HeuristicsCommand, NoHeuristics};

/// The library's file name.
const LIBRARY: &str = "libcudnn.so.9";

/// Where a wheel puts cuDNN, below a folder of packages.
const IN_PACKAGES: &str = "nvidia/cudnn/lib";

/// The wheels that it loads from, beside it: of CUDA 13, and of CUDA 12.
const BESIDE: [&str; 5] = [
    "cu13/lib",
    "cublas/lib",
    "cuda_nvrtc/lib",
    "cuda_runtime/lib",
    "nccl/lib",
];

/// Values of the variable that say no.
const NO: [&str; 3] = ["0", "no", "false"];

/// Values that name no folder.
const YES: [&str; 4] = ["", "1", "yes", "true"];

/// What is said where there is no cuDNN.
const NOT_FOUND: &str = "cuDNN was not found on the library path, nor in the packages of this environment's Python; `pip install torch` brings it, and \
                         --ask-cudnn=FOLDER names the folder of its libcudnn.so.9";

/// Has simulations of this process ask cuDNN, unless the word says no.
pub(in crate::cli) fn set_heuristics(wanted: &OsStr) -> Result<(), CliError> {
    let word = wanted.to_str().unwrap_or("/").to_lowercase();
    if NO.contains(&word.as_str()) {
        return Ok(());
    }
    let wrong = |problem: String| CliError::flag("--ask-cudnn", problem);
    let named = (!YES.contains(&word.as_str())).then(|| PathBuf::from(wanted));
    if let Some(folder) = &named
        && !folder.join(LIBRARY).is_file()
    {
        return Err(wrong(format!(
            "there is no {LIBRARY} in {}; in a folder of Python packages it is in {IN_PACKAGES}",
            folder.display()
        )));
    }
    let not_loaded = match &named {
        Some(folder) => format!(
            "{LIBRARY} in {} cannot be loaded: it is for another kind of machine, or lacks other libraries",
            folder.display()
        ),
        None => NOT_FOUND.to_owned(),
    };
    let folder = named.or_else(library_folder);
    let program = env::current_exe().map_err(|error| CliError::Broken(error.into()))?;
    let command = HeuristicsCommand {
        program,
        arguments: vec!["heuristics".into()],
        library_path: folder.as_deref().map(library_path),
        environment: |log| {
            let (name, value) = cudnn::NO_CARD_VISIBLE;
            let of_log = cudnn::environment(log).into_iter();
            let of_log = of_log.map(|(name, value)| (name.into(), value));
            std::iter::once((name.into(), value.into()))
                .chain(of_log)
                .collect()
        },
        folder: folder.unwrap_or_default(),
    };
    let heuristics = Heuristics::start(command).map_err(|error| match error {
        NoHeuristics::Missing(_) => wrong(not_loaded),
        other => CliError::Broken(other.into()),
    })?;
    sim::set_heuristics(Box::new(heuristics));
    Ok(())
}

/// Starts this program again with the libraries of PyTorch's wheels on its path, for a command that may run on a GPU, where there is a driver
/// and the path has no cuDNN: that of the system may be another version than the one that PyTorch loads. Comes back where none is found.
pub(in crate::cli) fn find_libraries() {
    if !Library::Driver.is_present() {
        return;
    }
    let of_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let is_new = |folder: &PathBuf| env::split_paths(&of_path).all(|known| known != *folder);
    if let (Some(folder), Ok(program)) = (library_folder().filter(is_new), env::current_exe()) {
        let mut again = Command::new(program);
        again.args(env::args_os().skip(1));
        again.env("LD_LIBRARY_PATH", library_path(&folder));
        let error = batchfit_platform::exec(&mut again);
        tracing::warn!(
            "the libraries in {} are not used: {error}",
            folder.display()
        );
    }
}

/// The first folder with the library: of the library path, or of the packages of an environment of Python.
fn library_folder() -> Option<PathBuf> {
    let of_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let on_path = env::split_paths(&of_path).filter(|folder| folder.join(LIBRARY).is_file());
    let environments = environments().into_iter().flat_map(|root| packages(&root));
    let in_packages = environments
        .map(|packages| packages.join(IN_PACKAGES))
        .filter(|folder| folder.join(LIBRARY).is_file());
    on_path.chain(in_packages).next()
}

/// Folders of Python environments: the active one, the one that this program is installed in, and that of the `python3` on the path.
fn environments() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from)
        .collect();
    let above = |program: PathBuf| Some(program.parent()?.parent()?.to_owned());
    roots.extend(env::current_exe().ok().and_then(above));
    let path = env::var_os("PATH").unwrap_or_default();
    let python = env::split_paths(&path)
        .map(|folder| folder.join("python3"))
        .find(|program| program.is_file());
    if let Some(python) = python {
        // A link in an environment leads to the interpreter that it was made with.
        roots.extend(above(python.clone()));
        roots.extend(python.canonicalize().ok().and_then(above));
    }
    roots
}

/// The folders of packages of an environment.
fn packages(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("lib"));
    let versions = entries.into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("python3")
    });
    versions
        .flat_map(|version| {
            ["site-packages", "dist-packages"].map(|name| version.path().join(name))
        })
        .collect()
}

/// The library path of a process that loads cuDNN from a folder, with what it loads itself.
fn library_path(folder: &Path) -> OsString {
    let mut path = vec![folder.to_owned()];
    if let Some(packages) = folder.parent().and_then(Path::parent) {
        let beside = BESIDE.map(|name| packages.join(name));
        path.extend(beside.into_iter().filter(|folder| folder.is_dir()));
    }
    let kept = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    path.extend(env::split_paths(&kept));
    // A colon in a folder's name is none that the loader could read either.
    env::join_paths(path).unwrap_or(kept)
}
