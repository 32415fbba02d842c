//! Where there is no Linux, commands of others are started as they are, and what they leave behind goes on.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Child, Command, ExitCode};

/// This process is no supervisor.
pub fn run_if_asked() -> Option<ExitCode> {
    None
}

/// A command by itself.
pub fn command(program: &OsStr, arguments: &[OsString]) -> io::Result<Command> {
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Nobody knows what a child holds.
pub fn holds_more(_child: &Child, _most: u64) -> bool {
    false
}

/// Kills a child, and its process group where there are such.
pub fn end(child: &mut Child) {
    batchfit_platform::kill_group(child);
}
