//! `--format`.

use std::process::Output;

use super::{Sandbox, document, request, stderr, stdout};

fn fit(arguments: &[&str]) -> Output {
    Sandbox::new().ask("fit", &request(), arguments)
}

#[test]
fn a_shell_gets_five_assignments_of_the_answer() {
    let answered = fit(&[
        "--format",
        "env",
        "--target",
        "1048576",
        "--world-size",
        "2",
    ]);
    let json = document(&fit(&[
        "--json",
        "--target",
        "1048576",
        "--world-size",
        "2",
    ]));

    assert_eq!(stderr(&answered), "");
    let best = &json["result"]["recommendation"];
    assert_eq!(
        stdout(&answered),
        format!(
            "export BATCHFIT_MICRO_BATCH={}\nexport BATCHFIT_ACCUMULATION_STEPS={}\n\
             export BATCHFIT_GLOBAL_BATCH=1048576\nexport BATCHFIT_WORLD_SIZE=2\n\
             export BATCHFIT_PEAK_RESERVED_BYTES={}\n",
            best["micro_batch"], best["accumulation_steps"], best["peak_reserved_bytes"]
        )
    );
}

#[test]
fn where_there_is_no_answer_a_shell_goes_no_further() {
    let fails = "unset BATCHFIT_MICRO_BATCH BATCHFIT_ACCUMULATION_STEPS BATCHFIT_GLOBAL_BATCH BATCHFIT_WORLD_SIZE \
                 BATCHFIT_PEAK_RESERVED_BYTES; false\n";
    for (arguments, code, said) in [
        (vec!["--format", "env", "--memory-limit", "1MiB"], 3, fails),
        (vec!["--format", "hf", "--memory-limit", "1MiB"], 3, ""),
        (vec!["--format", "env", "--target", "x"], 2, fails),
        (vec!["--format", "env", "--device", "cuda:4095"], 4, fails),
        (vec!["--format", "env", "--seq-len", "1,2"], 2, fails),
        (vec!["--format=env", "--nothing"], 2, fails),
        (vec!["--format", "nothing"], 2, ""),
    ] {
        let answered = fit(&arguments);

        assert_eq!(
            answered.status.code(),
            Some(code),
            "{arguments:?}: {}",
            stderr(&answered)
        );
        assert_eq!(stdout(&answered), said, "{arguments:?}");
        assert!(stderr(&answered).starts_with("error: "), "{arguments:?}");
    }
    for quoted in ["$(cat)", "\"$(cat)\""] {
        let script =
            format!("BATCHFIT_MICRO_BATCH=8; set -e; eval {quoted}; echo $BATCHFIT_MICRO_BATCH");
        let mut shell = assert_cmd::Command::new("sh");
        let ended = shell
            .args(["-c", &script])
            .write_stdin(fails)
            .output()
            .unwrap();
        assert_eq!(
            (ended.status.code(), stdout(&ended).as_str()),
            (Some(1), "")
        );
    }
}

#[test]
fn json_is_a_format_too() {
    let answered = fit(&["--format", "json"]);

    assert_eq!(document(&answered)["state"], "done");
}

#[test]
fn a_wiki_gets_a_line_for_each_variant() {
    let answered = fit(&["--format", "markdown", "--optimizer", "sgd,adam"]);

    let text = stdout(&answered);
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("| NVIDIA H200 |"))
            .count(),
        2,
        "{text}"
    );
}
