//! The Python process that records steps.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::arguments::{ModuleFlags, RecorderFlags};
use crate::worker::{ModuleToRecord, RecorderCommand};

/// What records, if somebody named an interpreter or a module.
pub(super) fn command(flags: &RecorderFlags, module: &ModuleFlags) -> Option<RecorderCommand> {
    match (&flags.recorder, module.named()) {
        (Some(python), module) => Some(RecorderCommand {
            python: python.clone(),
            module,
        }),
        (None, Some(module)) => Some(of_module(module)),
        (None, None) => None,
    }
}

/// What records graphs.
pub(super) fn of_graphs(flags: &RecorderFlags) -> Option<RecorderCommand> {
    command(flags, &ModuleFlags::default())
}

fn of_module(module: ModuleToRecord) -> RecorderCommand {
    RecorderCommand {
        python: interpreter(),
        module: Some(module),
    }
}

/// The interpreter that `batchfit export` runs too: the one that `BATCHFIT_PYTHON` names, else the one beside this program,
/// else the one on the path.
fn interpreter() -> PathBuf {
    let named = std::env::var_os("BATCHFIT_PYTHON").filter(|named| named != OsStr::new(""));
    let beside = || {
        let program = std::env::current_exe().ok()?;
        let path = program.parent()?.join("python3");
        path.is_file().then_some(path)
    };
    named
        .map(PathBuf::from)
        .or_else(beside)
        .unwrap_or_else(|| "python3".into())
}
