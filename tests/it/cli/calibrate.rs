//! `batchfit calibrate`: what another machine recorded, and cards that were only asked about.

use std::fs;

use batchfit::device::sim::workspaces::pack;

use super::{Sandbox, document, stderr, stdout};

/// One layer of a card that nobody lists: its first plan takes 100 bytes and ten for each sample.
const TABLE: &str = "batchfit workspaces 1\ncard NVIDIA Test 9000\ndriver 600.1\ncudnn 9.19.0\nrecorded 2026-11-23\n\
    command batchfit calibrate\ncompute 8.9\nmultiprocessors 84\nthreads_per_multiprocessor 1536\nmemory 12000000000\n\
    grid 1 2 4\nlayer 3,64,1,224,224,7,7,2,2,3,3,1,1,0\njob forward f32 0 |100+10 0+0|0.1|0*3\n";

#[test]
fn what_another_machine_recorded_is_sim_local() {
    let place = Sandbox::new();
    let file = place.directory.path().join("card.txt.gz");
    fs::write(&file, pack(TABLE).unwrap()).unwrap();
    let before = place
        .batchfit()
        .args(["fit", "resnet18", "--on", "local"])
        .output();
    let before = before.unwrap();
    assert_eq!(before.status.code(), Some(2), "nothing is calibrated yet");
    let said = stderr(&before);
    assert!(said.contains("no card was calibrated"), "{said}");

    let imported = place
        .batchfit()
        .args(["calibrate", "--import"])
        .arg(&file)
        .output();
    let imported = imported.unwrap();
    assert_eq!(imported.status.code(), Some(0), "{}", stderr(&imported));
    assert!(
        stdout(&imported).starts_with("NVIDIA Test 9000: 1 layers, kept in "),
        "{}",
        stdout(&imported)
    );
    let fit = ["fit", "resnet18", "--on", "local", "--json"];
    let fit = place.batchfit().args(fit).output().unwrap();

    assert_eq!(fit.status.code(), Some(0), "{}", stderr(&fit));
    let answer = &document(&fit)["result"];
    assert_eq!(answer["environment"]["device"], "sim:local");
    assert_eq!(answer["environment"]["gpu"], "NVIDIA Test 9000");
    let reserved = &answer["recommendation"]["peak_reserved_bytes"];
    assert!(reserved.as_u64().unwrap() < 12_000_000_000, "{reserved}");
}

#[test]
fn what_would_be_wrong_in_the_end_is_refused_at_the_beginning() {
    let place = Sandbox::new();
    let there = place.directory.path().join("there.txt.gz");
    fs::write(&there, b"").unwrap();
    let there = there.to_str().unwrap();
    for (arguments, expected) in [
        (["--batches", "4,2,1"], "--batches: batches ascend"),
        (["--batches", "0,1"], "--batches: batches ascend"),
        (["--batches", "1,1"], "--batches: batches ascend"),
        (["--export", there], "--export: "),
        (["--card", "rtx5"], "--card: unknown card"),
        (["--card", "8xh100"], "--card: one card"),
    ] {
        let output = place.batchfit().arg("calibrate").args(arguments).output();
        let output = output.unwrap();

        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn what_is_no_calibration_is_refused_and_nothing_is_kept() {
    let place = Sandbox::new();
    let without = |line: &str| pack(&TABLE.replace(line, "")).unwrap();
    let with = |line: &str, other: &str| pack(&TABLE.replace(line, other)).unwrap();
    for (name, bytes, expected) in [
        ("text", b"no gzip at all".to_vec(), "gzip"),
        (
            "other",
            pack("another\nfile of\n").unwrap(),
            "is no calibration",
        ),
        (
            "nameless",
            without("card NVIDIA Test 9000\n"),
            "does not say which card it is of",
        ),
        (
            "control",
            with("card NVIDIA", "card NVIDIA \u{1b}[31m"),
            "does not say which card it is of",
        ),
        (
            "endless",
            with("multiprocessors 84", "multiprocessors 18446744073709551615"),
            "what can be true of a card",
        ),
        (
            "negative",
            with("memory 12000000000", "memory -1"),
            "what can be true of a card",
        ),
    ] {
        let file = place.directory.path().join(name);
        fs::write(&file, bytes).unwrap();
        let output = place
            .batchfit()
            .args(["calibrate", "--import"])
            .arg(&file)
            .output();
        let output = output.unwrap();

        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(
            stderr(&output).contains(expected),
            "{name}: {}",
            stderr(&output)
        );
    }
    let names = place
        .batchfit()
        .args(["devices", "--json"])
        .output()
        .unwrap();
    assert!(!stdout(&names).contains("sim:local"));
}

#[test]
fn an_answer_says_where_its_workspaces_are_from() {
    let place = Sandbox::new();
    let notes = |device: &str| {
        let fit = ["fit", "resnet50", "--on", device, "--json"];
        let fit = place.batchfit().args(fit).output().unwrap();
        document(&fit)["result"]["recommendation"]["notes"].to_string()
    };

    let asked = "are cuDNN's own estimate for cards like the A100-SXM4-80GB";
    assert!(notes("a100-80g").contains(asked), "{}", notes("a100-80g"));
    assert!(
        !notes("h200").contains("workspaces of"),
        "{}",
        notes("h200")
    );
}

#[test]
fn cudnn_that_is_not_there_is_said_before_anything_is_asked() {
    let place = Sandbox::new();
    let broken = place.directory.path().join("broken");
    fs::create_dir(&broken).unwrap();
    // By each name that is tried, or the cuDNN of this machine would be found by another.
    for name in ["libcudnn.so.9", "libcudnn.so"] {
        fs::write(broken.join(name), b"no library").unwrap();
    }
    let ask = |value: &str, command: &[&str]| {
        let mut batchfit = place.batchfit();
        let batchfit = batchfit.env("LD_LIBRARY_PATH", &broken).args(command);
        batchfit.env("BATCHFIT_ASK_CUDNN", value).output().unwrap()
    };
    let fit = ["fit", "resnet18", "--on", "h200", "--memory-limit", "4GiB"];

    let nowhere = ask("/nowhere", &fit);
    assert_eq!(nowhere.status.code(), Some(2));
    let said = stderr(&nowhere);
    let expected = "--ask-cudnn: there is no libcudnn.so.9 in /nowhere";
    assert!(said.contains(expected), "{said}");
    let broken = ask(broken.to_str().unwrap(), &fit);
    assert_eq!(broken.status.code(), Some(2));
    let said = stderr(&broken);
    assert!(said.contains("cannot be loaded"), "{said}");
    for (value, command) in [("0", &fit[..]), ("/nowhere", &["cards", "h200"])] {
        let output = ask(value, command);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}
