//! `batchfit cards`, and what the name of a cloud's machine stands for.

use serde_json::json;

use super::{Sandbox, document, request, stderr, stdout};

fn cards(arguments: &[&str]) -> std::process::Output {
    let arguments = [&["cards"], arguments].concat();
    Sandbox::new().batchfit().args(arguments).output().unwrap()
}

#[test]
fn cards_are_listed_with_a_star_where_not_all_is_verified() {
    let listed = stdout(&cards(&[]));

    let line = |name: &str| listed.lines().find(|line| line.contains(name)).unwrap();
    assert!(line("rtx4090").contains("GeForce RTX 4090"));
    assert!(!line("rtx4090").contains('*'));
    assert!(line("h20 ").contains("h20 *"));
    let words: Vec<&str> = listed.split_whitespace().collect();
    assert!(words.join(" ").contains("* not all of it is verified"));
}

#[test]
fn a_card_is_found_by_what_people_call_it() {
    let listed = document(&cards(&["RTX 4090", "--json"]));

    let card = &listed["items"][0];
    assert_eq!(card["device"], "sim:rtx4090");
    assert_eq!(card["chip"], "AD102");
    assert_eq!(card["multiprocessors"], 128);
    assert_eq!(card["attention"], json!(["flash", "efficient", "math"]));
    let told = stdout(&cards(&["p5.48xlarge"]));
    assert!(told.starts_with("NVIDIA H100 80GB HBM3"), "{told}");
    assert!(
        told.contains("note: p5.48xlarge: 8 x NVIDIA H100"),
        "{told}"
    );
}

#[test]
fn machines_are_listed_by_cloud() {
    let listed = document(&cards(&["--machines", "--json"]));

    let items = listed["items"].as_array().unwrap();
    let machine = items.iter().find(|one| one["machine"] == "a2-highgpu-1g");
    assert_eq!(
        (&machine.unwrap()["card"], &machine.unwrap()["gpus"]),
        (&json!("a100-40g"), &json!(1))
    );
    assert!(stdout(&cards(&["--machines"])).contains("Google Cloud: from"));
}

#[test]
fn a_machine_that_is_unknown_is_answered_with_the_nearest() {
    for (name, nearest) in [
        (
            "p5.24xlarge",
            "of its kind there are p5.4xlarge, p5.48xlarge",
        ),
        ("gpu_8x_h100", "did you mean \"gpu_8x_h100_sxm5\"?"),
        ("rxt4090", "did you mean \"rtx4090\"?"),
        // Another card, with another amount of memory, is not offered.
        ("rtx4091", "`batchfit cards` lists those that there are"),
        ("titan", "say which: `--on titanrtx` or `--on titanv`"),
    ] {
        let output = cards(&[name]);
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output).replace("\n       ", " ");
        assert!(said.contains(nearest), "{said}");
    }
}

#[test]
fn a_machine_is_stored_as_its_card_and_how_many_there_are() {
    let place = Sandbox::new();
    let mut asked = request();
    asked["device"] = json!("sim:g5.12xlarge");

    let fit = document(&place.ask("fit", &asked, &["--json"]));

    let notes = fit["result"]["recommendation"]["notes"].to_string();
    assert!(notes.contains("g5.12xlarge: 4 x NVIDIA A10G"), "{notes}");
    assert!(notes.contains("not verified of the NVIDIA A10G"), "{notes}");
    let listed = place.batchfit().args(["answers", "--json"]).output();
    let stored = &document(&listed.unwrap())["items"][0];
    assert_eq!(
        (&stored["device"], &stored["world_size"]),
        (&json!("sim:a10g"), &json!(4))
    );
}
