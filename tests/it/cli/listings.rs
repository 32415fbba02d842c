//! Devices, presets, the API's description, and help.

use super::{Sandbox, document, stdout};

/// Commands that people run.
const COMMANDS: [&str; 15] = [
    "fit",
    "probe",
    "program",
    "replay",
    "calibrate",
    "devices",
    "cards",
    "presets",
    "serve",
    "config",
    "doctor",
    "openapi",
    "operators",
    "completions",
    "man",
];

fn help(arguments: &[&str]) -> String {
    let output = Sandbox::new().batchfit().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    stdout(&output)
}

/// The flags that a help text has a line for.
fn flags(help: &str) -> Vec<String> {
    let words = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'));
    let flag = |line: &str| {
        line.split([' ', ',', '['])
            .find(|word| word.starts_with("--"))
            .map(str::to_owned)
    };
    words.filter_map(flag).collect()
}

#[test]
fn help_names_every_command() {
    insta::assert_snapshot!(help(&["--help"]));
    for command in COMMANDS {
        assert!(
            help(&["--help"]).contains(&format!("\n  {command} ")),
            "{command}"
        );
    }
}

#[test]
fn help_for_fit_is_enough_for_a_first_request() {
    insta::assert_snapshot!("fit_short", help(&["fit", "-h"]));
    insta::assert_snapshot!("fit_long", help(&["fit", "--help"]));
}

#[test]
fn help_fits_a_screen_and_names_every_flag() {
    for command in COMMANDS {
        let (short, long) = (help(&[command, "-h"]), help(&[command, "--help"]));

        assert!(short.lines().count() <= 30, "{short}");
        assert!(long.lines().count() <= 80, "{long}");
        for text in [&short, &long] {
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(120), "{text}");
        }
        let flags = flags(&long);
        assert!(flags.len() >= 3, "{long}");
        for flag in flags {
            assert!(short.contains(&flag), "{flag} is not in\n{short}");
        }
    }
}

#[test]
fn help_has_examples_for_what_takes_a_model_or_a_file() {
    for command in ["fit", "probe", "program", "replay", "serve", "man"] {
        let text = help(&[command, "-h"]);

        assert!(text.contains(&format!("\n  batchfit {command} ")), "{text}");
    }
}

#[test]
fn devices_list_the_simulated_cards() {
    let place = Sandbox::new();

    let output = place
        .batchfit()
        .args(["devices", "--json"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(0));
    let devices = document(&output);
    let h200 = devices["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["device"] == "sim:h200")
        .unwrap();
    assert_eq!(h200["memory_bytes"], 150_109_880_320_u64);
    assert_eq!(h200["available"], true);
}

#[test]
fn a_gpu_is_listed_or_what_is_missing_of_it() {
    let place = Sandbox::new();

    let output = place
        .batchfit()
        .args(["devices", "--json"])
        .output()
        .unwrap();

    let first = document(&output)["items"][0].clone();
    assert_eq!(first["device"], "cuda:0");
    assert_ne!(first["available"], first["missing"].is_string());
}

#[test]
fn presets_are_listed_for_people_and_programs() {
    let table = help(&["presets"]);
    let json = Sandbox::new()
        .batchfit()
        .args(["presets", "--json"])
        .output()
        .unwrap();

    let names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let presets = document(&json);
    let items = presets["items"].as_array().unwrap();
    let expected: Vec<&str> = items
        .iter()
        .filter_map(|preset| preset["name"].as_str())
        .collect();
    assert_eq!(names, expected);
    assert!(
        items
            .iter()
            .any(|preset| preset["name"] == "resnet50" && preset["parameters"] == 25_557_032)
    );
    let gpt2 = items
        .iter()
        .find(|preset| preset["name"] == "openai-community/gpt2");
    assert_eq!(gpt2.unwrap()["overrides"][0]["assumed"], 1_024);
}

#[test]
fn openapi_is_yaml() {
    let output = Sandbox::new().batchfit().arg("openapi").output().unwrap();

    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("openapi: 3.1.0\n"));
}
