//! Which PyTorch a command will run, as far as that can be told before it does.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::program_name;
use crate::worker::{SuspendAwareDeadline, reap};

/// What PyTorch's wheels were built for since 2.9, where nothing is found.
const USUAL: u32 = 13_000;

/// How long an interpreter may take to say where PyTorch is.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// Finds PyTorch without importing it, which takes seconds, and prints the file that says for which CUDA it was built.
const FIND: &str = "import importlib.util, os; s = importlib.util.find_spec('torch'); \
    print(open(os.path.join(s.submodule_search_locations[0], 'version.py')).read() if s else '')";

/// CUDA's version as the runtime counts it, 12080 for 12.8, of the PyTorch that a command will run.
pub(super) fn cuda_of(command: &[OsString]) -> u32 {
    let version = interpreter(command).and_then(|python| version_file(&python));
    version.and_then(|text| cuda(&text)).unwrap_or(USUAL)
}

/// Why nothing used the GPU, if that shows.
pub(super) fn why_not(command: &[OsString]) -> String {
    let Some(python) = interpreter(command) else {
        return String::new();
    };
    match version_file(&python) {
        Some(text) if text.trim().is_empty() => format!(": {} has no PyTorch", python.display()),
        Some(text) if cuda(&text).is_none() => format!(
            ": the PyTorch of {} was built without CUDA; install the one for CUDA, which needs no GPU to be installed",
            python.display()
        ),
        _ => "; does the script choose a GPU, as with `.to(\"cuda\")`?".to_owned(),
    }
}

fn cuda(version_file: &str) -> Option<u32> {
    let line = version_file.lines().find(|line| line.starts_with("cuda"))?;
    let quoted = line.split(['\'', '"']).nth(1)?;
    let (major, minor) = quoted.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    major.checked_mul(1000)?.checked_add(minor.checked_mul(10)?)
}

fn version_file(python: &Path) -> Option<String> {
    let mut child = Command::new(python)
        .args(["-c", FIND])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let stdout = child.stdout.take()?;
    // It has a few hundred bytes, which fit a pipe: the child need not wait until they are read.
    let status = reap(&mut child, &mut SuspendAwareDeadline::of(PATIENCE), POLL);
    if !status.is_some_and(|status| status.success()) {
        let _ = child.kill();
        thread::spawn(move || child.wait());
        return None;
    }
    let mut text = String::new();
    stdout.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The interpreter that runs a command: itself, the one that a script names in its first line, or the usual one.
fn interpreter(command: &[OsString]) -> Option<PathBuf> {
    let program = find_program(Path::new(command.first()?))?;
    if program_name(command).starts_with("python") {
        return Some(program);
    }
    let mut first = String::new();
    let script = BufReader::new(File::open(&program).ok()?).take(1 << 10);
    // What is no text is no script.
    let _ = { script }.read_line(&mut first);
    let named = first
        .strip_prefix("#!")
        .and_then(|line| line.split_whitespace().find(|word| word.contains("python")));
    find_program(Path::new(named.unwrap_or("python3")))
        .or_else(|| find_program(Path::new("python")))
}

/// A program as a shell finds it.
fn find_program(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_cuda_is_read_from_pytorchs_own_file() {
        assert_eq!(
            cuda("__version__ = '2.8.0'\ncuda: Optional[str] = '12.8'\nhip = None"),
            Some(12_080)
        );
        assert_eq!(cuda("cuda = '13.0'"), Some(13_000));
        assert_eq!(cuda("cuda: Optional[str] = None"), None);
    }
}
