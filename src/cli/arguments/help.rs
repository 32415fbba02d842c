//! What `-h` and `--help` say.
//!
//! `--help` has a line for each flag, below headings; `-h` names the same flags, several in a line, so that both
//! fit a screen. Both are made from the flags themselves.

use std::ffi::OsStr;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

/// How wide `-h` is.
const WIDTH: usize = 100;

/// How wide the headings of `-h` are.
const HEADING: usize = 10;

/// Commands that have more flags than `-h` has lines for.
const LONG: [&str; 9] = [
    "agent",
    "fit",
    "probe",
    "soak",
    "program",
    "replay",
    "run",
    "serve",
    "record-workspaces",
];

/// What stands below the flags of a command: `== `, its name, and the text behind that.
const BELOW: &str = include_str!("help.txt");

/// Commands that pass all flags on, `--help` as well.
const PASS_ON: [&str; 1] = ["export"];

/// The command with our help: with `is_brief`, what `-h` says.
pub(super) fn with_help(command: Command, is_brief: bool) -> Command {
    let command = with_common_flags(command);
    let everywhere: Vec<Arg> = command
        .get_arguments()
        .filter(|flag| flag.is_global_set())
        .cloned()
        .collect();
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        grouped(&command)
    );
    command.help_template(template).mut_subcommands(|command| {
        let command = with_common_flags(command);
        if is_brief && LONG.contains(&command.get_name()) {
            let text = brief(&command, &everywhere);
            return command.override_help(text);
        }
        command
    })
}

/// Commands by what one wants.
const GROUPS: [(&str, &str); 5] = [
    ("Ask before you train", "fit probe soak cards presets"),
    (
        "Run your own script, or a recording of it",
        "run replay search export",
    ),
    ("Look back", "answers outcome outcomes"),
    ("Serve", "serve agent agents keys db config openapi"),
    (
        "Look after this machine",
        "doctor devices calibrate completions man",
    ),
];

/// The list of commands by groups; those of none come last.
fn grouped(command: &Command) -> String {
    let mut text = String::new();
    let visible = || command.get_subcommands().filter(|one| !one.is_hide_set());
    let of_none = |one: &&Command| {
        let is_it = |name: &str| name == one.get_name();
        !GROUPS.iter().any(|(_, names)| names.split(' ').any(is_it))
    };
    let groups = GROUPS.iter().map(|(heading, names)| {
        let members = { names.split(' ') }.filter_map(|name| command.find_subcommand(name));
        (*heading, members.collect::<Vec<_>>())
    });
    for (heading, members) in
        groups.chain([("Work on batchfit", visible().filter(of_none).collect())])
    {
        let _ = writeln!(text, "{heading}:");
        for member in members {
            let about = member
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            let _ = writeln!(text, "  {:<13} {about}", member.get_name());
        }
        text.push('\n');
    }
    text
}

/// Environment variables that stand in `--help`.
const SHOWN: [&str; 7] = [
    "BATCHFIT_LISTEN",
    "BATCHFIT_ALLOWED_HOST",
    "BATCHFIT_CALIBRATIONS",
    "BATCHFIT_LOCKS",
    "BATCHFIT_KERNEL_CACHE",
    "BATCHFIT_FAULT",
    "BATCHFIT_FAULT_ONCE",
];

pub(super) fn with_variables_hidden(command: Command) -> Command {
    let hidden = |flag: Arg| {
        let variable = flag.get_env().and_then(OsStr::to_str);
        let is_hidden = !variable.is_some_and(|name| SHOWN.contains(&name));
        flag.hide_env(is_hidden)
    };
    command
        .mut_args(hidden)
        .mut_subcommands(with_variables_hidden)
}

/// The command with our flags for help and version, with every flag below a heading, and with what stands below them.
fn with_common_flags(command: Command) -> Command {
    let mut texts = BELOW.split("== ").filter_map(|part| part.split_once('\n'));
    let below = texts.find(|(name, _)| *name == command.get_name());
    let command = command.disable_help_flag(true).disable_version_flag(true);
    let command = command.after_help(below.map(|(_, text)| text.trim_end()));
    let command = if PASS_ON.contains(&command.get_name()) {
        command
    } else {
        command.arg(help_flag()).arg(version_flag())
    };
    command.mut_args(|flag| {
        let id = flag.get_id().clone();
        let flag = match flag.get_action() {
            // `-v -v` says no more than `-v`.
            ArgAction::SetTrue => flag.overrides_with(id),
            _ => flag,
        };
        if flag.is_positional() || flag.get_help_heading().is_some() {
            flag
        } else {
            flag.help_heading("Options")
        }
    })
}

fn version_flag() -> Arg {
    Arg::new("version")
        .short('V')
        .long("version")
        .action(ArgAction::Version)
        .help("Print version")
        .help_heading("Options")
}

/// `-h` and `--help`, both with a line for each flag: what clap calls the short help.
fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help("Print help; -h is shorter")
        .help_heading("Options")
}

/// The names of all flags, by heading, with those of every command.
fn brief(command: &Command, everywhere: &[Arg]) -> String {
    let name = command.get_name();
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut positionals = command
        .get_positionals()
        .filter_map(Arg::get_value_names)
        .flatten();
    let operand = positionals.next().map_or("", clap::builder::Str::as_str);
    let mut text = format!("{about}\n\nUsage: batchfit {name} {operand} [FLAGS]\n\n");
    let mut headings: Vec<(String, Vec<String>)> = Vec::new();
    let flags = command.get_arguments().chain(everywhere);
    for flag in flags.filter(|flag| !flag.is_hide_set()) {
        if flag.is_positional() {
            let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
            text += &laid_out(operand, help.split(' ').map(str::to_owned), " ");
            continue;
        }
        let heading = flag.get_help_heading().unwrap_or("Options");
        // Some headings say more than a word.
        let heading = heading.split(';').next().unwrap_or(heading);
        match headings.iter_mut().find(|(known, _)| known == heading) {
            Some((_, flags)) => flags.push(shown(flag)),
            None => headings.push((heading.to_owned(), vec![shown(flag)])),
        }
    }
    for (heading, flags) in headings {
        text += &laid_out(&heading, flags.into_iter(), "  ");
    }
    if let Some(after) = command.get_after_help() {
        let _ = writeln!(text, "\n{after}");
    }
    text + &format!("\n`batchfit {name} --help` says what each flag is.\n")
}

/// A flag with the name of its value.
fn shown(flag: &Arg) -> String {
    let short = flag.get_short().map(|short| format!("-{short}"));
    let long = flag.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let values = flag
        .get_value_names()
        .filter(|_| flag.get_action().takes_values());
    let values: Vec<&str> = values
        .unwrap_or_default()
        .iter()
        .map(clap::builder::Str::as_str)
        .collect();
    let shown = [
        vec![names.join("/")],
        values.into_iter().map(str::to_owned).collect(),
    ];
    shown.concat().join(" ")
}

/// Parts beside a heading, in as many lines as they need.
fn laid_out(heading: &str, parts: impl Iterator<Item = String>, between: &str) -> String {
    let mut lines = vec![format!("{heading:HEADING$}")];
    for part in parts {
        let last = lines.last_mut().expect("there is a first line");
        let gap = if last.trim_end().len() == last.len() {
            between
        } else {
            ""
        };
        if last.len() + gap.len() + part.len() <= WIDTH {
            *last += gap;
            *last += &part;
        } else {
            lines.push(" ".repeat(HEADING) + &part);
        }
    }
    lines.join("\n") + "\n"
}
