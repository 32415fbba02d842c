//! Where answers are kept.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;

use super::{Sandbox, document, request, stderr};

/// Asks for an answer in this environment, where it can be kept.
fn ask(place: &Sandbox, environment: &[(&str, &str)], arguments: &[&str]) {
    assert_eq!(stdout_of(place, environment, arguments), "");
}

/// Asks for an answer in this environment; gives what is said beside it.
fn stdout_of(place: &Sandbox, environment: &[(&str, &str)], arguments: &[&str]) -> String {
    place.write("request.json", &request().to_string());
    let mut command = place.batchfit();
    command
        .envs(environment.iter().copied())
        .args(["fit", "request.json", "--json"])
        .args(arguments);
    let answered = command.output().unwrap();
    assert_eq!(answered.status.code(), Some(0), "{}", stderr(&answered));
    assert_eq!(document(&answered)["state"], "done");
    stderr(&answered)
}

/// The databases below a folder.
fn rows(place: &Sandbox) -> Vec<String> {
    fn look(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "db") {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    let mut databases = Vec::new();
    look(
        place.directory.path(),
        place.directory.path(),
        &mut databases,
    );
    databases
}

#[test]
fn answers_are_kept_in_the_user_s_data_folder() {
    let place = Sandbox::new();

    ask(&place, &[], &[]);

    assert_eq!(rows(&place), [".local/share/batchfit/batchfit.db"]);
    let folder = place.directory.path().join(".local/share/batchfit");
    let mode = std::fs::metadata(folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "no other user can exchange the file");
}

#[test]
fn the_data_folder_may_be_elsewhere_and_have_any_name() {
    let place = Sandbox::new();
    let elsewhere = place.directory.path().join("a b%20?c#d");

    ask(
        &place,
        &[("XDG_DATA_HOME", elsewhere.to_str().unwrap())],
        &[],
    );

    assert_eq!(rows(&place), ["a b%20?c#d/batchfit/batchfit.db"]);
}

#[test]
fn a_relative_data_folder_is_ignored_as_its_specification_says() {
    let place = Sandbox::new();

    ask(&place, &[("XDG_DATA_HOME", "here")], &[]);

    assert_eq!(rows(&place), [".local/share/batchfit/batchfit.db"]);
}

#[test]
fn a_flag_goes_before_the_environment_and_both_before_the_data_folder() {
    let place = Sandbox::new();

    ask(
        &place,
        &[("BATCHFIT_DATABASE", "sqlite:b.db")],
        &["--database", "sqlite:a.db"],
    );
    assert_eq!(rows(&place), ["a.db"]);
    ask(&place, &[("BATCHFIT_DATABASE", "sqlite:b.db")], &[]);
    let mut both = rows(&place);
    both.sort();
    assert_eq!(both, ["a.db", "b.db"]);
}

#[test]
fn without_a_place_to_keep_it_an_answer_is_given_all_the_same() {
    for (variable, value) in [
        ("HOME", ""),
        ("HOME", "/proc/nowhere"),
        ("BATCHFIT_DATABASE", "sqlite:/nowhere/a.db"),
    ] {
        let place = Sandbox::new();

        let said = stdout_of(&place, &[(variable, value)], &[]);
        assert!(
            said.starts_with("warning: the answer is not stored: "),
            "{said}"
        );

        assert_eq!(rows(&place), [""; 0], "{variable}={value}");
    }
}

#[test]
fn an_answer_that_is_not_stored_says_so() {
    let place = Sandbox::new();
    place.write("request.json", &request().to_string());
    let mut command = place.batchfit();

    let answered = command
        .env("HOME", "")
        .args(["fit", "request.json", "--log", "info"])
        .output()
        .unwrap();

    assert!(
        stderr(&answered).contains("there is no home folder to keep answers in"),
        "{}",
        stderr(&answered)
    );
}

#[test]
fn a_server_without_a_home_says_what_to_give() {
    let place = Sandbox::new();
    let mut command = place.batchfit();

    let refused = command
        .env("HOME", "")
        .args(["serve", "--listen", "127.0.0.1:0"])
        .output()
        .unwrap();

    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("--database or BATCHFIT_DATABASE names a place"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_database_is_copied_whole_and_into_an_empty_one_alone() {
    let place = Sandbox::new();
    ask(&place, &[], &["--database", "one.db"]);
    let copy = |from: &str, to: &str| {
        let arguments = ["db", "copy", from, to];
        place.batchfit().args(arguments).output().unwrap()
    };

    place.write("garbage.db", &"no database ".repeat(1000));
    let copied = copy("one.db", "two.db");
    assert_eq!(copied.status.code(), Some(0), "{}", stderr(&copied));
    let said = String::from_utf8(copied.stdout).unwrap();
    assert!(said.contains("all are there"), "{said}");
    let again = copy("one.db", "two.db");
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("already"), "{}", stderr(&again));
    let missing = copy("none.db", "three.db");
    assert!(stderr(&missing).contains("there is no database none.db"));
    let onto_itself = copy("one.db", "./one.db");
    assert!(
        stderr(&onto_itself).contains("copied onto itself"),
        "{}",
        stderr(&onto_itself)
    );
    let device = copy("/dev/zero", "four.db");
    assert!(stderr(&device).contains("there is no database /dev/zero"));
    let garbage = copy("garbage.db", "five.db");
    assert_eq!(garbage.status.code(), Some(1));
    // What could not be copied leaves nothing behind.
    let mut left = rows(&place);
    left.sort();
    assert_eq!(left, ["garbage.db", "one.db", "two.db"]);
}

#[test]
fn a_password_in_the_name_of_a_database_is_not_shown() {
    let place = Sandbox::new();
    // A server that nobody listens at is tried again and again; one that speaks no PostgreSQL is given up at once.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("{}/fits", server.local_addr().unwrap());
    thread::spawn(move || {
        let mut heard = Vec::new();
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream.write_all(b"?\0\0\0\x04").unwrap();
            heard.push(stream);
        }
    });
    let url = &format!("postgres://me:secret@{address}");

    let commands: [&[&str]; 4] = [
        &["db", "check", "--database", url],
        &["keys", "list", "--database", url],
        &["config", "check", "--database", url],
        &["doctor", "--database", url],
    ];
    for command in commands {
        let told = place.batchfit().args(command).output().unwrap();
        let said = stderr(&told) + &String::from_utf8(told.stdout).unwrap();
        assert!(!said.contains("secret"), "{said}");
        assert!(said.contains(&format!("me:...@{address}")), "{said}");
    }
}
