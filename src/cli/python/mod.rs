//! What is written in Python, and the interpreter that runs it.

pub(super) mod export;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::error::CliError;

/// The names of an interpreter in the folder of a virtual environment's programs.
const BESIDE: [&str; 3] = ["python3", "python", "python.exe"];

/// The name of an interpreter on the path.
const ON_THE_PATH: &str = if cfg!(windows) { "python" } else { "python3" };

/// Ends with 3 where this interpreter has no batchfit that can export. A folder of that name is no package, and an
/// exporter of an earlier release is another one.
const HAS_PACKAGE: &str = "\
import importlib.util, sys
try:
    found = importlib.util.find_spec('batchfit.export')
except ImportError:
    found = None
sys.exit(0 if found else 3)";

/// The exit code of [`HAS_PACKAGE`] that says no.
const NO_PACKAGE: i32 = 3;

/// The interpreter that has batchfit's package: the one that is named; else the one beside this program, which is in the
/// environment that the wheel was installed in; else the one on the path.
pub(in crate::cli) fn interpreter(named: Option<&OsStr>) -> Result<PathBuf, CliError> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        return match has_package(&path) {
            Ok(true) => Ok(path),
            Ok(false) => Err(CliError::flag("--python", without_package(&[path]))),
            Err(error) => Err(CliError::flag(
                "--python",
                format!("could not run {}: {error}", path.display()),
            )),
        };
    }
    let mut tried = Vec::new();
    for path in bundled_python().into_iter().chain([ON_THE_PATH.into()]) {
        match has_package(&path) {
            Ok(true) => return Ok(path),
            Ok(false) => tried.push(path),
            // There is none of this name.
            Err(_) => {}
        }
    }
    Err(CliError::flag("Python", without_package(&tried)))
}

/// The interpreter in this program's folder.
fn bundled_python() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    BESIDE
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_file())
}

/// Whether an interpreter has batchfit's package; an error where it does not start.
fn has_package(python: &PathBuf) -> std::io::Result<bool> {
    let status = Command::new(python)
        .args(["-c", HAS_PACKAGE])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.code() != Some(NO_PACKAGE))
}

fn without_package(tried: &[PathBuf]) -> String {
    let what = match tried {
        [] => format!("there is no {ON_THE_PATH} on the path"),
        tried => {
            let tried: Vec<String> = tried
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            format!("{} has no package batchfit", tried.join(" and "))
        }
    };
    format!(
        "{what}; in a clone of the repository, `pip install './clients/python[torch]'` installs it with PyTorch, and --python or BATCHFIT_PYTHON names the interpreter that has it"
    )
}

/// The arguments without `--python PYTHON`, wherever it stands, and what it names.
fn without_python(arguments: &[OsString]) -> (Option<OsString>, Vec<OsString>) {
    let mut python = None;
    let mut kept = Vec::with_capacity(arguments.len());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_str().unwrap_or_default();
        if text == "--" {
            kept.push(argument.clone());
            kept.extend(rest.by_ref().cloned());
        } else if text == "--python" {
            match rest.next() {
                Some(named) => python = Some(named.clone()),
                // The exporter does not know it, and says so.
                None => kept.push(argument.clone()),
            }
        } else if let Some(named) = text.strip_prefix("--python=") {
            python = Some(named.into());
        } else {
            kept.push(argument.clone());
        }
    }
    (python, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_taken_out_wherever_it_stands_and_all_else_is_kept() {
        let split = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (python, kept) = without_python(&arguments);
            let kept: Vec<String> = kept
                .iter()
                .map(|one| one.to_str().unwrap().to_owned())
                .collect();
            (
                python.map(|python| python.into_string().unwrap()),
                kept.join(" "),
            )
        };

        assert_eq!(split("m:b -o x"), (None, "m:b -o x".into()));
        assert_eq!(
            split("m:b --python py -o x"),
            (Some("py".into()), "m:b -o x".into())
        );
        assert_eq!(
            split("m:b -o x --python=py"),
            (Some("py".into()), "m:b -o x".into())
        );
        assert_eq!(
            split("-o x -- --python py"),
            (None, "-o x -- --python py".into())
        );
        assert_eq!(split("m:b --python"), (None, "m:b --python".into()));
    }
}
