//! `batchfit export`, which hands on to Python. The interpreters here are shell scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Sandbox, stderr, stdout};
use crate::recorder;

/// Has batchfit's package, says what it was started with, and ends with 7.
const WITH: &str = r#"[ "$1" = -c ] && exit 0; echo "$0 $$"; printf '<%s>' "$@"; exit 7"#;

/// Has no batchfit.
const WITHOUT: &str = r#"[ "$1" = -c ] && exit 3; echo "ran all the same""#;

fn python(place: &Sandbox, name: &str, script: &str) -> PathBuf {
    let path = place.directory.path().join(name);
    recorder::executable(&path, &format!("#!/bin/sh\n{script}\n"));
    path
}

#[test]
fn everything_is_passed_on_as_it_is_with_the_exit_code() {
    let place = Sandbox::new();
    let python = python(&place, "py", WITH);

    let passed_on = |arguments: &[&str]| {
        let output = place
            .batchfit()
            .arg("export")
            .args(arguments)
            .env("BATCHFIT_PYTHON", &python)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
        stdout(&output).lines().nth(1).unwrap().to_owned()
    };

    for arguments in [
        &[
            "m:build",
            "--batch",
            "x=f32[B,3]",
            "y=i64[4*B]",
            "-o",
            "f.json.gz",
        ][..],
        &["--batch", "x=f32[B]", "--", "m:build", "--python", "x"],
        &["--help"],
        &["-h"],
        &["--hf", "a b", "--unheard-of", "", "-V"],
        &["fit", "--json"],
    ] {
        let expected = [&["-m", "batchfit.export"], arguments].concat().join("><");
        assert_eq!(passed_on(arguments), format!("<{expected}>"));
    }
}

#[test]
fn signals_reach_it_because_it_is_the_same_process() {
    let place = Sandbox::new();
    let python = python(&place, "py", WITH);

    let child = Command::new(env!("CARGO_BIN_EXE_batchfit"))
        .args(["export", "m:build"])
        .env("BATCHFIT_PYTHON", &python)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();

    assert_eq!(
        stdout(&output).lines().next(),
        Some(&*format!("{} {id}", python.display()))
    );
}

#[test]
fn a_flag_goes_before_the_variable_and_is_not_passed_on() {
    let place = Sandbox::new();
    let named = python(&place, "named", WITH);
    let variable = python(&place, "variable", WITHOUT);
    let named = named.to_str().unwrap();

    for arguments in [
        ["--python", named, "m:build"],
        ["m:build", "--python", named],
    ] {
        let output = place
            .batchfit()
            .arg("export")
            .args(arguments)
            .env("BATCHFIT_PYTHON", &variable)
            .output()
            .unwrap();
        assert!(stdout(&output).starts_with(named), "{}", stderr(&output));
        assert!(stdout(&output).ends_with("<-m><batchfit.export><m:build>"));
    }
}

/// This program in a folder of its own, as a wheel installs it.
fn installed(place: &Sandbox) -> PathBuf {
    let bin = place.directory.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_batchfit"));
    let copy = bin.join("batchfit");
    // A link is quick, and not to be had between file systems.
    if fs::hard_link(program, &copy).is_err() {
        fs::copy(program, &copy).unwrap();
    }
    copy
}

#[test]
fn the_interpreter_beside_the_program_goes_before_the_path() {
    let place = Sandbox::new();
    let program = installed(&place);
    let path = place.directory.path().join("path");
    fs::create_dir(&path).unwrap();
    let on_the_path = python(&place, "path/python3", WITH);
    let run = || {
        let output = Command::new(&program)
            .args(["export", "m:build"])
            .env("PATH", format!("{}:/usr/bin:/bin", path.display()))
            .env_remove("BATCHFIT_PYTHON")
            .output()
            .unwrap();
        stdout(&output).split(' ').next().unwrap().to_owned()
    };

    let without = run();
    let beside = python(&place, "bin/python3", WITH);
    let with = run();
    python(&place, "bin/python3", WITHOUT);
    let without_package = run();

    assert_eq!(without, on_the_path.to_str().unwrap());
    assert_eq!(with, beside.to_str().unwrap());
    assert_eq!(without_package, on_the_path.to_str().unwrap());
}

#[test]
fn without_the_package_the_extra_is_named() {
    let place = Sandbox::new();
    let without = python(&place, "python3", WITHOUT);
    let on_the_path = |arguments: &[&str]| {
        place
            .batchfit()
            .arg("export")
            .args(arguments)
            .env("PATH", place.directory.path())
            .output()
            .unwrap()
    };

    let refused = on_the_path(&["m:build"]);
    let named = on_the_path(&["m:build", "--python", without.to_str().unwrap()]);
    let nowhere = on_the_path(&["m:build", "--python", "/no/such/python"]);
    fs::remove_file(&without).unwrap();
    let none = on_the_path(&["m:build"]);

    for (output, problem) in [
        (&refused, "python3 has no package batchfit"),
        (&named, "/python3 has no package batchfit"),
        (&none, "there is no python3 on the path"),
    ] {
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(stdout(output), "");
        let said = stderr(output);
        assert!(said.contains(problem), "{said}");
        assert!(
            said.contains("pip install './clients/python[torch]'"),
            "{said}"
        );
    }
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(stderr(&nowhere).contains("--python: could not run /no/such/python"));
}

#[test]
fn help_is_an_answer_without_python_too() {
    for arguments in [
        &["export", "--help"][..],
        &["export", "-h"],
        &["help", "export"],
    ] {
        let place = Sandbox::new();
        let output = place
            .batchfit()
            .args(arguments)
            .env("PATH", place.directory.path())
            .output()
            .unwrap();

        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let help = stdout(&output);
        for part in [
            "Usage: batchfit export",
            "--python <PYTHON>",
            "pip install './clients/python[torch]'",
        ] {
            assert!(help.contains(part), "{part} in {help}");
        }
    }
}
