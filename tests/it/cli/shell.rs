//! `batchfit completions` and `batchfit man`.

use std::fs;

use super::{Sandbox, stderr, stdout};

#[test]
fn every_shell_completes_flags_and_the_words_they_take() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = Sandbox::new()
            .batchfit()
            .args(["completions", shell])
            .output()
            .unwrap();

        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = stdout(&output);
        for word in ["seq-len", "amp_bf16", "per_block", "rtx4090", "lightning"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn an_unknown_shell_is_told_which_there_are() {
    let output = Sandbox::new()
        .batchfit()
        .args(["completions", "cmd"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("bash, elvish, fish, powershell, zsh"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn each_command_has_a_page() {
    let place = Sandbox::new();

    let page = place.batchfit().arg("man").output().unwrap();
    let pages = place.batchfit().args(["man", "."]).output().unwrap();

    assert!(
        stdout(&page).contains(".TH batchfit 1"),
        "{}",
        stdout(&page)
    );
    assert_eq!(pages.status.code(), Some(0));
    let mut written: Vec<String> = fs::read_dir(place.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    written.sort();
    for name in ["batchfit.1", "batchfit-fit.1", "batchfit-serve.1"] {
        assert!(written.contains(&name.to_owned()), "{name} in {written:?}");
    }
    assert!(
        !written.iter().any(|name| name.contains("worker")),
        "{written:?}"
    );
    let fit = fs::read_to_string(place.directory.path().join("batchfit-fit.1")).unwrap();
    assert!(
        fit.contains("seq\\-len") && fit.contains("$(batchfit fit resnet50"),
        "{fit}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let output = Sandbox::new()
        .batchfit()
        .args(["man", "no/such/folder"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("could not write no/such/folder/batchfit.1"),
        "{}",
        stderr(&output)
    );
}
