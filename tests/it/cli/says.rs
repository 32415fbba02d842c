//! What commands say, as `says.txt` has it: a command after `$`, its exit code, and lines of what stdout (`1>`) and stderr (`2>`) have to contain, or
//! not (`1!`, `2!`). After `py` stdout is a snippet, which Python checks; after `try` each command that stderr advises in backticks has to work.

use super::{Sandbox, stderr, stdout};

/// Words of a command line, of which those between quotes are one.
fn words(text: &str) -> Vec<String> {
    let parts = text.split('\'').enumerate();
    let words = parts.flat_map(|(index, part)| match index % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// Whether Python compiles a snippet, knows its names, and may call what it calls so.
fn check_snippet(text: &str) {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/cli/");
    let mut python = assert_cmd::Command::new("python3");
    python.args(["snippet.py", "signatures.json"].map(|name| format!("{here}{name}")));
    let checked = python.write_stdin(text.to_owned()).output().unwrap();
    assert!(checked.status.success(), "{}{text}", stderr(&checked));
}

/// The commands that are advised, about a model and a card where they name none.
fn advised(said: &str) -> Vec<Vec<String>> {
    let hints = said.split('`').skip(1).step_by(2);
    let commands = hints.filter_map(|hint| match hint.strip_prefix("batchfit ") {
        // About a script of one's own.
        Some(command) if command.contains(".py") => None,
        Some(command) => Some(words(command)),
        None if hint.starts_with("--") => {
            let mut asked = words("fit gpt2");
            for (flag, value) in [("--seq-len", "64"), ("--on", "rtx4090")] {
                asked.extend(
                    (!hint.contains(flag))
                        .then(|| words(&format!("{flag} {value}")))
                        .into_iter()
                        .flatten(),
                );
            }
            Some([asked, words(hint)].concat())
        }
        None => None,
    });
    commands.collect()
}

#[test]
fn commands_say_what_is_written_down() {
    let place = Sandbox::new();
    let run = |words: &[String]| {
        place
            .batchfit()
            .env("COLUMNS", "999")
            .args(words)
            .output()
            .unwrap()
    };
    let mut wrong = Vec::new();
    for case in include_str!("says.txt").split("\n$ ").skip(1) {
        let (command, expected) = case.split_once('\n').unwrap();
        let output = run(&words(command));
        let (out, err) = (stdout(&output), stderr(&output));
        for line in expected
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let is_right = match line.split_once(' ') {
                Some(("1>", part)) => out.contains(part),
                Some(("2>", part)) => err.contains(part),
                Some(("1!", part)) => !out.contains(part),
                Some(("2!", part)) => !err.contains(part),
                None if line == "py" => {
                    check_snippet(&out);
                    true
                }
                None if line == "try" => {
                    let advised = advised(&err);
                    !advised.is_empty() && advised.iter().all(|it| run(it).status.success())
                }
                _ => output.status.code() == line.parse().ok(),
            };
            if !is_right {
                wrong.push(format!("$ {command}\n{line}\n{out}{err}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
