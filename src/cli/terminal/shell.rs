//! `batchfit completions` and `batchfit man`, made from the flags themselves.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use clap_mangen::Man as Page;

use crate::cli::Outcome;
use crate::cli::arguments::{Arguments, Completions, ManPages};
use crate::cli::error::CliError;
use crate::cli::terminal::output;

/// `batchfit completions SHELL`.
pub(in crate::cli) fn completions(arguments: &Completions) -> Result<Outcome, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut Arguments::described(),
        "batchfit",
        &mut script,
    );
    output::raw(&script)
}

/// `batchfit man [FOLDER]`.
pub(in crate::cli) fn man(arguments: &ManPages) -> Result<Outcome, CliError> {
    let mut command = Arguments::described();
    command.build();
    let Some(folder) = &arguments.folder else {
        return output::raw(&page(command)?);
    };
    let subcommands = command
        .get_subcommands()
        .filter(|shown| !shown.is_hide_set());
    for command in [&command].into_iter().chain(subcommands) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        write(&folder.join(format!("{name}.1")), &page(command.clone())?)?;
    }
    Ok(Outcome::Answered)
}

/// A page of the manual.
fn page(command: clap::Command) -> Result<Vec<u8>, CliError> {
    let mut page = Vec::new();
    Page::new(command)
        .render(&mut page)
        .map_err(CliError::writing)?;
    Ok(page)
}

fn write(path: &Path, text: &[u8]) -> Result<(), CliError> {
    let written = File::create(path).and_then(|mut file| file.write_all(text));
    written.map_err(CliError::unwritable(path))
}
