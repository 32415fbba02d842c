//! The settings file of `batchfit serve`, and `batchfit config check`.
//!
//! Its keys are the flags: `--upload-space 4GiB` is `upload_space = "4GiB"`. What it says becomes the default of the flag, so
//! that flags go before the environment, and the environment before the file, and each value is checked by the code that
//! checks the flag.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use clap::builder::OsStr;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;
use toml::{Table, Value};

use crate::cli::arguments::ConfigCheck;
use crate::cli::error::CliError;
use crate::cli::terminal::output;
use crate::cli::{Outcome, storage};
use crate::store::shown;

/// The longest file.
const LONGEST: u64 = 1 << 20;

/// Flags that are about the call, not about the service.
const NOT_SETTINGS: [&str; 4] = ["config", "help", "version", "json"];

/// A setting, as it holds.
#[derive(Debug, Clone, Serialize)]
pub(in crate::cli) struct Setting {
    /// Its name in the file.
    name: String,
    /// What it is; several values with commas between.
    value: Option<String>,
    /// `flag`, `environment`, `file` or `default`.
    from: &'static str,
}

/// What a file says, name by name.
pub(in crate::cli) struct File<'a> {
    path: &'a Path,
    /// What no command has taken yet.
    left: Table,
}

impl<'a> File<'a> {
    /// Reads a file for this command.
    pub(in crate::cli) fn read(path: &'a Path) -> Result<File<'a>, clap::Error> {
        let none = File {
            path,
            left: Table::new(),
        };
        let text = text(path).map_err(|said| none.invalid(&said))?;
        File::of(path, &text)
    }

    /// The same of its text.
    pub(in crate::cli) fn of(path: &'a Path, text: &str) -> Result<File<'a>, clap::Error> {
        let none = File {
            path,
            left: Table::new(),
        };
        let left = table(text).map_err(|said| none.invalid(&said))?;
        Ok(File { left, ..none })
    }

    fn invalid(&self, said: &str) -> clap::Error {
        let said = format!("{}: {said}\n", self.path.display());
        clap::Error::raw(ErrorKind::ValueValidation, said)
    }

    /// The command with what the file says of its flags as their defaults.
    pub(in crate::cli) fn apply(&mut self, mut command: Command) -> Result<Command, clap::Error> {
        let known: Vec<String> = command.get_arguments().filter_map(name_of).collect();
        for name in known {
            let Some(value) = self.left.remove(&name) else {
                continue;
            };
            let values = match values(&value) {
                Ok(values) => values,
                Err(said) => return Err(self.invalid(&format!("`{name}` {said}"))),
            };
            command = command.mut_args(|argument| {
                if name_of(&argument).as_ref() == Some(&name) {
                    argument.default_values(values.clone())
                } else {
                    argument
                }
            });
        }
        Ok(command)
    }

    /// An error where something is left that no flag is named like.
    pub(in crate::cli) fn end(&self, command: &Command) -> Result<(), clap::Error> {
        let Some(unknown) = self.left.keys().next() else {
            return Ok(());
        };
        let known = command.get_arguments().filter_map(name_of);
        let likeness = |name: &String| strsim::jaro_winkler(unknown, name);
        let nearest = known.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let nearest = nearest.map_or_else(String::new, |nearest| {
            format!("; did you mean `{nearest}`?")
        });
        Err(self.invalid(&format!("unknown setting `{unknown}`{nearest}")))
    }
}

/// The name of a flag in the file, where it may stand there.
fn name_of(argument: &Arg) -> Option<String> {
    let name = argument.get_long()?;
    (!NOT_SETTINGS.contains(&name)).then(|| name.replace('-', "_"))
}

fn text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(LONGEST + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > LONGEST {
        return Err("it is longer than a MiB".to_owned());
    }
    Ok(text)
}

fn table(text: &str) -> Result<Table, String> {
    text.parse::<Table>()
        .map_err(|error| error.to_string().trim_end().to_owned())
}

/// A value as flags have it.
fn values(value: &Value) -> Result<Vec<OsStr>, String> {
    let one = |value: &Value| match value {
        Value::String(text) => Ok(OsStr::from(text.clone())),
        Value::Integer(number) => Ok(OsStr::from(number.to_string())),
        Value::Float(number) => Ok(OsStr::from(number.to_string())),
        Value::Boolean(is) => Ok(OsStr::from(is.to_string())),
        other => Err(format!(
            "is a text, a number, true or false, not {}",
            a(other)
        )),
    };
    match value {
        Value::Array(values) => values.iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}

fn a(value: &Value) -> &'static str {
    match value {
        Value::Table(_) => "a table",
        Value::Array(_) => "a list",
        Value::Datetime(_) => "a time",
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => "this",
    }
}

/// What every setting of a command is, and who says so.
pub(in crate::cli) fn settings(
    command: &Command,
    matches: &ArgMatches,
    in_file: &[String],
) -> Vec<Setting> {
    let named = command
        .get_arguments()
        .filter_map(|argument| Some((argument, name_of(argument)?)));
    named
        .map(|(argument, name)| {
            let id = argument.get_id().as_str();
            let raw = matches.get_raw(id).into_iter().flatten();
            let values: Vec<String> = raw.map(|value| shown(&value.to_string_lossy())).collect();
            let from = match matches.value_source(id) {
                Some(ValueSource::CommandLine) => "flag",
                Some(ValueSource::EnvVariable) => "environment",
                Some(_) if in_file.contains(&name) => "file",
                Some(_) | None => "default",
            };
            Setting {
                value: (!values.is_empty()).then(|| values.join(",")),
                name,
                from,
            }
        })
        .collect()
}

/// The names in a file that was read before.
pub(in crate::cli) fn names(path: &Path) -> Vec<String> {
    text(path)
        .and_then(|text| table(&text))
        .map(|table| table.keys().cloned().collect())
        .unwrap_or_default()
}

/// `batchfit config check`: flags, environment and file were read already, or we would not be here.
pub(in crate::cli) fn check(
    arguments: &ConfigCheck,
    settings: &[Setting],
) -> Result<Outcome, CliError> {
    let listen = &arguments.serve.listen;
    let port = listen.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(_))) {
        let said = format!("{listen:?} is no address with a port, such as 127.0.0.1:8080");
        return Err(CliError::flag("listen", said));
    }
    arguments.serve.keys.check()?;
    let database = shown(&storage::database(&arguments.serve.kept)?);
    if arguments.json {
        return output::json(&serde_json::json!({ "settings": settings, "database": database }));
    }
    let width = settings
        .iter()
        .map(|setting| setting.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for Setting { name, value, from } in settings {
        let value = value.as_deref().unwrap_or("-");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:width$}  {value:32}  {from}");
    }
    let _ = writeln!(
        text,
        "\nThe settings are valid. Answers are kept in {database}."
    );
    output::text(&text)
}
