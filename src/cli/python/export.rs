//! `batchfit export`, which is `python -m batchfit.export`.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use tempfile::TempPath;

use super::super::Outcome;
use super::super::arguments::{Arguments, Export, Fit, one_batch, typed};
use super::super::error::CliError;
use super::{interpreter, without_python};
use crate::cli::terminal::output;

/// The module that exports; see `clients/python/src/batchfit/export/__main__.py`.
const MODULE: &str = "batchfit.export";

pub(in crate::cli) fn run(arguments: &Export) -> Result<Outcome, CliError> {
    let (named, passed_on) = without_python(&arguments.arguments);
    let named = named.as_ref().or(arguments.python.as_ref());
    let python = match interpreter(named.map(AsRef::as_ref)) {
        Ok(python) => python,
        // Help is an answer everywhere; this one says what is missing.
        Err(_) if passed_on.iter().any(|one| one == "--help" || one == "-h") => {
            let help = Arguments::help_of("export");
            return output::text(&help);
        }
        Err(trouble) => return Err(trouble),
    };
    let mut command = Command::new(&python);
    command.args(["-m", MODULE]).args(passed_on);
    become_it(command, &python)
}

/// Flags that say what a graph is exported at, which its own document says from then on.
pub(in crate::cli) const SIZES: [&str; 3] = ["seq-len", "target-len", "image-size"];

/// The graph of a module of the user's own that WHAT names (`my.py:build`), which Python writes into a file that goes with the answer.
pub(in crate::cli) fn own(fit: &Fit) -> Result<Option<TempPath>, CliError> {
    let name = fit.question.own.what.as_deref().and_then(Path::to_str);
    let is_own = |name: &&str| {
        let parts = name.split_once(':');
        parts.is_some_and(|(module, build)| {
            !name.contains("://")
                && !module.is_empty()
                // `llama3.1:8b` is a model of Ollama's.
                && !build.is_empty()
                && !build.starts_with(|c: char| c.is_ascii_digit())
                // `hf_hub:timm/resnet50.a1_in1k` is one of timm's.
                && !build.contains('/')
                && !Path::new(name).exists()
        })
    };
    let Some(name) = name.filter(is_own) else {
        return match (&fit.module.loss, fit.module.tensors.is_empty()) {
            _ if fit.module.named().is_some() => Ok(None),
            (None, true) => Ok(None),
            (Some(_), _) => Err(CliError::flag("--loss", OWN_LOSS)),
            (None, false) => Err(CliError::flag("--batch", one_batch_of(&fit.module.tensors))),
        };
    };
    let broken = |error: std::io::Error| CliError::Broken(error.into());
    let graph = tempfile::Builder::new()
        .suffix(".json.gz")
        .tempfile()
        .map_err(broken)?;
    let graph = graph.into_temp_path();
    let python = interpreter(std::env::var_os("BATCHFIT_PYTHON").as_deref())?;
    let mut command = Command::new(&python);
    command
        .args(["-m", MODULE, name, "--quiet", "-o"])
        .arg(&graph);
    let half = fit.question.text("precision");
    let half = half.filter(|precision| ["bf16", "bfloat16", "fp16", "float16"].contains(precision));
    let sizes = SIZES.map(|flag| (flag, fit.question.text(flag)));
    let others = [("loss", fit.module.loss.as_deref()), ("dtype", half)];
    for (flag, value) in sizes.into_iter().chain(others) {
        command.args(
            value
                .into_iter()
                .flat_map(|value| [format!("--{flag}"), value.to_owned()]),
        );
    }
    if !fit.module.tensors.is_empty() {
        command.arg("--batch").args(&fit.module.tensors);
    }
    let status = command.status().map_err(|error| not_run(&python, error))?;
    if status.success() {
        return Ok(Some(graph));
    }
    let why = format!("{} -m {MODULE} could not export it", python.display());
    Err(CliError::flag(name, why))
}

/// What is said of `--batch` where a model has a name.
fn one_batch_of(tensors: &[String]) -> String {
    match tensors {
        [size] if size.parse::<u64>().is_ok() => {
            let typed: Vec<OsString> = typed().iter().map(OsString::from).collect();
            one_batch(&typed, "--batch")
        }
        _ => "it is the batch of a module of your own, as in `batchfit fit my.py:build --batch TENSORS`".to_owned(),
    }
}

const OWN_LOSS: &str = "a model by name has its own loss; of another one (DPO, GRPO, a reward, a distillation) give your own module, whose \
                        forward returns the loss: batchfit fit my.py:build --batch TENSORS --loss model";

/// Runs a command in place of this process, so that its signals and its exit code are ours.
fn become_it(mut command: Command, python: &Path) -> Result<Outcome, CliError> {
    // It only comes back when it fails.
    Err(not_run(python, batchfit_platform::exec(&mut command)))
}

fn not_run(python: &Path, error: std::io::Error) -> CliError {
    let said = format!("could not run {}", python.display());
    anyhow::Error::new(error).context(said).into()
}
