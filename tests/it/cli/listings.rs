//! Devices, presets, the API's description, and help.

use super::{Place, document, stdout};

#[test]
fn help_names_every_command() {
    let output = Place::new().batchfit().arg("--help").output().unwrap();

    insta::assert_snapshot!(stdout(&output));
}

#[test]
fn help_for_fit_is_enough_for_a_first_request() {
    let place = Place::new();

    let output = place.batchfit().args(["fit", "--help"]).output().unwrap();

    insta::assert_snapshot!(stdout(&output));
}

#[test]
fn devices_list_the_simulated_cards() {
    let place = Place::new();

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
    let place = Place::new();

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
    let place = Place::new();

    let table = place.batchfit().arg("presets").output().unwrap();
    let json = place
        .batchfit()
        .args(["presets", "--json"])
        .output()
        .unwrap();

    assert!(stdout(&table).contains("resnet50"));
    let presets = document(&json);
    assert!(
        presets["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|preset| { preset["name"] == "resnet50" && preset["parameters"] == 25_557_032 })
    );
}

#[test]
fn openapi_is_yaml() {
    let output = Place::new().batchfit().arg("openapi").output().unwrap();

    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("openapi: 3.1.0\n"));
}
