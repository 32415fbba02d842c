//! README's table of models, methods and cards is what `batchfit fit` answers.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Sandbox;
use crate::sample::sample;

const CARDS: &str = "rtx4080,rtx4090,l40s,h100-80g,h200";
const METHODS: [&[&str]; 3] = [
    &[],
    &["--checkpoint", "per_block"],
    &["--checkpoint", "per_block", "--lora", "16"],
];

/// The row of a model: for each card the recommended micro-batch by each method, "-" where nothing fits.
fn row(model: &str) -> String {
    let batches = METHODS.map(|method| {
        let place = Sandbox::new();
        let mut command = place.batchfit();
        command
            .args(["fit", model, "--on", CARDS, "--seq-len", "2048"])
            .args(["--precision", "bf16", "--json"])
            .args(method);
        let answers: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let answers = answers["items"].as_array().unwrap().iter();
        answers
            .map(|it| it["result"]["recommendation"]["micro_batch"].as_u64())
            .map(|batch| match batch.unwrap() {
                0 => "-".to_owned(),
                batch => batch.to_string(),
            })
            .collect::<Vec<_>>()
    });
    let cells = (0..batches[0].len()).map(|card| {
        let methods: Vec<_> = batches.iter().map(|it| it[card].as_str()).collect();
        format!(" {} |", methods.join(" / "))
    });
    format!("| `{model}` |{}", cells.collect::<String>())
}

/// With `BATCHFIT_ALL_CASES` all rows; with `BATCHFIT_WRITE_TABLE` they are written into README.md.
#[test]
fn readme_has_the_batches_that_fit_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let rows: Vec<&str> = readme
        .lines()
        .skip_while(|line| !line.starts_with("| bf16, 2,048 tokens |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(rows.len(), 10, "the table of README.md");
    let model = |row: &str| row.split('`').nth(1).unwrap().to_owned();

    if std::env::var_os("BATCHFIT_WRITE_TABLE").is_some() {
        let written = rows.iter().fold(readme.clone(), |text, shown| {
            text.replace(shown, &row(&model(shown)))
        });
        fs::write(&path, written).unwrap();
    } else {
        for shown in sample(5, rows) {
            assert_eq!(shown, row(&model(shown)));
        }
    }
}
