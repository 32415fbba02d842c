//! Several answers at once: lengths, and cards where nobody names one.

use serde_json::{Value, json};

use super::{Sandbox, document, request, stderr, stdout};

#[test]
fn without_a_device_the_common_cards_are_compared() {
    let ask = |arguments: &[&str]| {
        let place = Sandbox::new();
        let mut request = request();
        for member in ["device", "memory_limit"] {
            request.as_object_mut().unwrap().remove(member);
        }
        place.ask("fit", &request, arguments)
    };

    let (text, json, env) = (ask(&[]), ask(&["--json"]), ask(&["--format", "env"]));

    assert_eq!(text.status.code(), Some(0));
    assert_eq!(stderr(&text), "");
    let text = stdout(&text);
    let items = document(&json)["items"].as_array().unwrap().clone();
    assert_eq!(items.len(), 9);
    for item in &items {
        let device = item["request"]["device"].as_str().unwrap();
        let card = device.strip_prefix("sim:").unwrap();
        assert_eq!(item["result"]["environment"]["device"], device);
        let micro_batch = item["result"]["recommendation"]["micro_batch"].to_string();
        let line = text
            .lines()
            .find(|line| line.split_whitespace().next() == Some(card));
        assert_eq!(
            line.and_then(|line| line.split_whitespace().nth(1)),
            Some(&*micro_batch),
            "{card} in {text}"
        );
    }
    assert_eq!(env.status.code(), Some(2));
    assert!(stdout(&env).ends_with("; false\n"));
    assert!(
        stderr(&env).contains("--on: --format env holds one answer; name a card"),
        "{}",
        stderr(&env)
    );
}

#[test]
fn nothing_fits_only_where_nothing_fits_anywhere() {
    let ask = |limit: &str| {
        let place = Sandbox::new();
        let mut command = place.batchfit();
        let output = command
            .args(["fit", "resnet18", "--memory-limit", limit])
            .output()
            .unwrap();
        (output.status.code(), stdout(&output))
    };

    let (code, text) = ask("20MiB");

    assert_eq!(code, Some(3));
    assert!(text.contains("none (lacks "), "{text}");
    assert_eq!(ask("4GiB").0, Some(0));
}

#[test]
fn a_device_that_is_asked_for_and_missing_is_an_error_as_ever() {
    let mut wanted = request();
    wanted["device"] = json!("cuda:4095");

    let refused = Sandbox::new().ask("fit", &wanted, &[]);

    assert_eq!(refused.status.code(), Some(4));
    assert_eq!(stdout(&refused), "");
}

#[test]
fn a_member_that_is_null_is_absent() {
    let mut wanted = request();
    wanted["device"] = Value::Null;

    let place = Sandbox::new();
    place.write("request.json", &wanted.to_string());

    let mut command = place.batchfit();
    let answered = command
        .args(["fit", "request.json", "--json"])
        .output()
        .unwrap();

    assert_eq!(document(&answered)["items"].as_array().unwrap().len(), 9);
}
