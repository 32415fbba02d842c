//! What `-h` and `--help` say.
//!
//! `--help` has a line for each flag, below headings; `-h` names the same flags, several in a line, so that both
//! fit a screen. Both are made from the flags themselves.

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

pub(super) const ALL: &str = "\
Examples:
  batchfit fit resnet50 --on rtx4090 --amp fp16 --target 1024
  batchfit fit ./config.json --on a100-80g --seq-len 512,1024 --checkpoint none,per_block

Exit codes: 0 answered; 2 bad input, also a file that cannot be read or written; 3 nothing fits;
4 device trouble; 1 the answer could not be written to stdout, or batchfit itself failed.";

pub(super) const FIT: &str = "\
Examples:
  batchfit fit resnet50 --on rtx4090 --amp fp16 --target 1024
  batchfit fit ./config.json --on a100-80g --seq-len 512,1024 --checkpoint none,per_block
  eval \"$(batchfit fit resnet50 --on a100 --target 1024 --format env)\" || exit

Without --on and without a GPU: a table over the common cards. Flags override a request.
Exit codes: 0 answered; 2 bad input; 3 nothing fits; 4 device trouble; 1 stdout cannot be written.";

pub(super) const ANSWERS: &str = "\
Examples:
  batchfit answers --gpu \"NVIDIA H200\"
  batchfit answers 1mk3v7q0h5c2d8xw --json

`batchfit fit --again ID` answers an outdated one again.
Exit codes: 0 listed; 2 bad input, or no such answer; 1 the database does not answer.";

pub(super) const OUTCOME: &str = "\
Examples:
  batchfit outcome 1mk3v7q0h5c2d8xw --batch 64 --outcome fits --peak-reserved 23622320128 --steps 500 \\
    --gpu \"NVIDIA H200\" --pytorch 2.11.0
  batchfit outcome 1mk3v7q0h5c2d8xw - < outcome.json

In Python: `with batchfit.outcome(ID, batch=64) as run: train()`.
Exit codes: 0 kept; 2 bad input, or no such answer; 1 the database does not answer.";

pub(super) const OUTCOMES: &str = "\
Examples:
  batchfit outcomes
  batchfit outcomes 1mk3v7q0h5c2d8xw --json

Exit codes: 0 listed; 2 bad input, or no such answer; 1 the database does not answer.";

pub(super) const EXPORT: &str = "\
Examples:
  batchfit export my_module:build --batch \"x=f32[B,64]\" \"y=i64[B]\" --loss cross_entropy -o net.json.gz
  batchfit export --hf ./config.json --seq-len 1024 -o model.json.gz

It runs `python -m batchfit.export` with these arguments. Where batchfit's Python package is installed,
`batchfit export --help` lists all of them; in a clone of the repository,
`pip install './clients/python[torch]'` installs it with PyTorch.
Exit codes: 0 written; 2 bad input, or Python, the package or PyTorch is missing.";

/// Commands that pass all flags on, `--help` as well.
const PASS_ON: [&str; 1] = ["export"];

pub(super) const PROBE: &str = "\
Examples:
  batchfit probe resnet50 --on rtx4090 --amp fp16 --batch 64
  batchfit probe graph.pt2 --device cuda:0 --batch 8 --json

Exit codes: 0 the batch fits, with retries or without; 2 bad input; 3 it runs out of memory;
4 device trouble, or --explain names something; 1 stdout cannot be written.";

pub(super) const SOAK: &str = "\
Examples:
  batchfit soak gpt2 --on a100-40g --batch 16 --steps 1000 --epoch 250 --last-batch 5
  batchfit soak bert-base-uncased --on rtx4090 --batch 32 --seq-len 32-512:8 --validation-batch 64 --epoch 250

Each step draws one of the lengths, as often as the samples have it (64:900,512:30). On simulated cards.
Exit codes: 0 the batch is safe; 2 bad input; 3 it needs retries or runs out of memory;
1 stdout cannot be written.";

pub(super) const PROGRAM: &str = "\
Examples:
  batchfit program resnet50 --on h200 --batch 4
  batchfit program graph.pt2 --on h200 --batch 4 --compare snapshot.pickle";

pub(super) const REPLAY: &str = "\
TRACE is a memory snapshot of PyTorch:

  torch.cuda.memory._record_memory_history()
  ...  # train a few steps
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")

or a trace as text: a header `# {\"total\": BYTES, \"limit\": BYTES, \"alloc_conf\": TEXT}`, then lines
of `action address size stream`. Either may be compressed with gzip.

Examples:
  batchfit replay snapshot.pickle --memory-limit 12GiB --compare
  batchfit replay trace.txt.gz --allocator expandable_segments:True --svg memory.svg
  batchfit replay snapshot.pickle --events events.json

Under the recorded limit and settings every event is compared with the recording; otherwise the
requests are put to simulated memory. Exit codes: 0 answered, also when memory runs out; 2 bad
input; 1 stdout cannot be written.";

pub(super) const SEARCH: &str = "\
Examples:
  batchfit search -- python train.py --steps 3 --batch-size {batch}
  batchfit search --target 1024 --timeout 600 -- ./train.sh {batch}

The batch fits if CMD exits with 0. It ran out of memory if a line of output says so, or with the exit
code --oom-exit. Anything else is a crash; three in a row end the search. A command that prints
`batchfit: peak_reserved_bytes=N` is never run out of memory under --memory-limit; one that prints
`batchfit: num_alloc_retries=N` gets a batch without retries. Processes that a run leaves are killed.
Exit codes: 0 answered; 2 bad input; 3 nothing fits; 4 crashes; 130 interrupted.";

pub(super) const RUN: &str = "\
Examples:
  batchfit run --on rtx4090 -- python train.py
  batchfit run --on h100 --gpus 8 --steps 5 --report memory -- python train.py --batch-size 16

The script runs on your own PyTorch, and nothing is computed: losses and times mean nothing. What the
script prints goes to stderr.
Exit codes: 0 it fits, with retries or without; 2 bad input; 3 it runs out of memory; 4 nothing used
the GPU; 124 --timeout; 137 --host-memory; 130 interrupted; another: the script failed with it.";

pub(super) const SERVE: &str = "\
Examples:
  batchfit serve --listen 127.0.0.1:8080
  curl -H 'Prefer: wait=10' http://127.0.0.1:8080/v1/fits \\
    -d '{\"model\": {\"preset\": \"resnet50\"}, \"device\": \"sim:h200\"}'";

pub(super) const AGENT: &str = "\
Examples:
  batchfit agent --server http://batchfit.lan:8080 --key-file /etc/batchfit/key
  batchfit agent --server http://127.0.0.1:8080 --name node1 --simulate h100-80g,h100-80g
  batchfit agent --server http://batchfit.lan:8080 --once --wait 300

A second SIGTERM, or the end of --grace, hands running work back at once.
Exit codes: 0 ended by SIGTERM, or --once answered one; 5 --once found no work; 2 bad input; 4 no GPU;
1 the service refuses the agent.";

pub(super) const AGENTS: &str = "\
Examples:
  batchfit agents --server http://batchfit.lan:8080
  batchfit agents drain node7
  batchfit agents cordon node7 && batchfit agents uncordon node7

Exit codes: 0 done; 2 bad input, or no such agent; 1 the service cannot be reached, or refuses.";

pub(super) const MAN: &str = "\
Examples:
  batchfit man | man -l -
  batchfit man ~/.local/share/man/man1";

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

/// The command with our flags for help and version, and with every flag below a heading.
fn with_common_flags(command: Command) -> Command {
    let command = command.disable_help_flag(true).disable_version_flag(true);
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
