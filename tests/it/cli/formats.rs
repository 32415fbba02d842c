//! `--format`.

use std::process::Output;

use super::{Place, document, request, stderr, stdout};

fn fit(arguments: &[&str]) -> Output {
    Place::new().ask("fit", &request(), arguments)
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
fn where_there_is_no_answer_a_shell_gets_nothing_to_evaluate() {
    for (arguments, code) in [
        (vec!["--format", "env", "--memory-limit", "1MiB"], 3),
        (vec!["--format", "hf", "--memory-limit", "1MiB"], 3),
        (vec!["--format", "env", "--target", "x"], 2),
        (vec!["--format", "env", "--device", "cuda:4095"], 4),
        (vec!["--format", "env", "--seq-len", "1,2"], 2),
        (vec!["--format", "nothing"], 2),
    ] {
        let answered = fit(&arguments);

        assert_eq!(
            answered.status.code(),
            Some(code),
            "{arguments:?}: {}",
            stderr(&answered)
        );
        assert_eq!(stdout(&answered), "", "{arguments:?}");
        assert!(stderr(&answered).starts_with("error: "), "{arguments:?}");
    }
}

#[test]
fn trainers_get_the_numbers_by_their_own_names() {
    let target = ["--target", "1048576", "--optimizer", "adamw"];
    let json = document(&fit(&[&target[..], &["--json"]].concat()));
    let best = &json["result"]["recommendation"];
    let (micro, steps) = (&best["micro_batch"], &best["accumulation_steps"]);
    for (format, expected) in [
        (
            "hf",
            [
                format!("per_device_train_batch_size={micro},"),
                format!("gradient_accumulation_steps={steps},"),
            ],
        ),
        (
            "lightning",
            [
                format!("DataModule(batch_size={micro})"),
                format!("accumulate_grad_batches={steps},"),
            ],
        ),
        (
            "accelerate",
            [
                format!("DataLoader(dataset, batch_size={micro})"),
                format!("gradient_accumulation_steps={steps},"),
            ],
        ),
    ] {
        let text = stdout(&fit(&[&target[..], &["--format", format]].concat()));

        for part in expected {
            assert!(text.contains(&part), "{part} is not in\n{text}");
        }
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
