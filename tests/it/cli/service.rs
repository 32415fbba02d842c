//! `batchfit config check` and `batchfit doctor`.

use serde_json::Value;

use super::{Sandbox, stdout};

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The value of a setting, and who says so.
fn setting(checked: &Value, name: &str) -> (String, String) {
    let settings = checked["settings"].as_array().unwrap();
    let found = settings.iter().find(|setting| setting["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no {name} in {checked:#}"));
    let text = |name: &str| found[name].as_str().unwrap_or("-").to_owned();
    (text("value"), text("from"))
}

#[test]
fn flags_go_before_the_environment_and_both_before_the_file() {
    let place = Sandbox::new();
    place.write(
        "settings.toml",
        "listen = '127.0.0.1:1'\nupload_space = '1GiB'\nprobe_deadline = 7\nallowed_host = ['a.lan', 'b.lan']\naccess_log = true\nlog = 'warn'\n",
    );
    let check = |arguments: &[&str]| {
        let mut command = place.batchfit();
        command.args(["config", "check", "--config", "settings.toml", "--json"]);
        command
            .env("BATCHFIT_LISTEN", "127.0.0.1:2")
            .args(arguments);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()
    };
    let of = |value: &str, from: &str| (value.to_owned(), from.to_owned());

    let checked = check(&["--upload-space", "2GiB"]);

    assert_eq!(
        setting(&checked, "listen"),
        of("127.0.0.1:2", "environment")
    );
    assert_eq!(setting(&checked, "upload_space"), of("2GiB", "flag"));
    assert_eq!(setting(&checked, "probe_deadline"), of("7", "file"));
    assert_eq!(setting(&checked, "allowed_host"), of("a.lan,b.lan", "file"));
    assert_eq!(setting(&checked, "access_log"), of("true", "file"));
    assert_eq!(setting(&checked, "log"), of("warn", "file"));
    assert_eq!(setting(&checked, "gpu_wait"), of("900", "default"));
    let listen = check(&["--listen", "127.0.0.1:3"]);
    assert_eq!(setting(&listen, "listen"), of("127.0.0.1:3", "flag"));
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    for (text, said) in [
        (
            "lisen = '127.0.0.1:1'",
            "unknown setting `lisen`; did you mean `listen`?",
        ),
        (
            "listen = 1979-05-27",
            "`listen` is a text, a number, true or false, not a time",
        ),
        ("[serve]\nlisten = '127.0.0.1:1'", "unknown setting `serve`"),
        ("probe_deadline = 0", "0 is not in 1.."),
        (
            "upload_space = 'much'",
            "expected bytes, or a size such as 4GiB",
        ),
        ("log = 'x=bogus'", "expected one of"),
        (
            "allow_anonymous = true\nrequire_keys = true",
            "allow_anonymous contradicts it",
        ),
        ("listen = ", "line 1"),
        ("listen = 'nowhere'", "is no address with a port"),
        ("config = 'other.toml'", "unknown setting `config`"),
    ] {
        let place = Sandbox::new();
        place.write("settings.toml", text);
        let mut command = place.batchfit();
        command.args(["config", "check", "--config", "settings.toml"]);

        let output = command.output().unwrap();

        assert_eq!(output.status.code(), Some(2), "{text}: {}", stdout(&output));
        assert!(
            stderr(&output).contains(said),
            "{text}: {}",
            stderr(&output)
        );
    }
    let place = Sandbox::new();
    let missing = place
        .batchfit()
        .args(["serve", "--config", "none.toml"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        stderr(&missing).contains("none.toml: "),
        "{}",
        stderr(&missing)
    );
}

/// The files in `deploy/` and in the manifests hold settings that the service takes.
#[test]
fn deployed_settings_are_valid() {
    let manifest = std::fs::read_to_string("deploy/kubernetes/batchfit.yaml").unwrap();
    let inner = manifest.split_once("batchfit.toml: |\n").unwrap().1;
    let inner: String = inner
        .lines()
        .take_while(|line| line.starts_with("    "))
        .flat_map(|line| [line.trim(), "\n"])
        .collect();
    let own = std::fs::read_to_string("deploy/batchfit.toml").unwrap();
    for text in [own, inner] {
        let place = Sandbox::new();
        place.write("settings.toml", &text);
        let mut command = place.batchfit();

        let output = command
            .args(["config", "check", "--config", "settings.toml"])
            .output()
            .unwrap();

        assert_eq!(output.status.code(), Some(0), "{text}: {}", stderr(&output));
        assert!(stdout(&output).contains("The settings are valid."));
    }
}

#[test]
fn doctor_says_what_there_is_on_one_screen() {
    let place = Sandbox::new();
    let doctor = |arguments: &[&str]| {
        let mut command = place.batchfit();
        let output = command
            .args(["doctor", "--database", "own.db"])
            .args(arguments)
            .output()
            .unwrap();
        // Whether there is a GPU, and which, is the machine's.
        assert!(
            matches!(output.status.code(), Some(0 | 4)),
            "{}",
            stderr(&output)
        );
        stdout(&output)
    };

    let before = doctor(&[]);
    assert!(
        before.contains("own.db does not exist yet; the first `batchfit fit` makes it"),
        "{before}"
    );
    assert!(!place.directory.path().join("own.db").exists());
    let fit = ["fit", "resnet18", "--on", "h200", "--database", "own.db"];
    assert!(
        place
            .batchfit()
            .args(fit)
            .output()
            .unwrap()
            .status
            .success()
    );

    let text = doctor(&[]);
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.contains("own.db: 1 fits, 1 recommendations"), "{text}");
    let items: Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
    let items = items["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["what"].as_str().unwrap());
    let names: Vec<&str> = items.clone().collect();
    for what in [
        "CUDA", "cuBLASLt", "cuDNN", "NVRTC", "driver", "Python", "gaps", "database", "keys",
    ] {
        assert!(names.contains(&what), "{what}: {names:?}");
    }

    place.write("own.db", &"not a database ".repeat(100));
    let damaged = doctor(&[]);
    assert!(damaged.contains("!!  database"), "{damaged}");
    let items: Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
    let mut items = items["items"].as_array().unwrap().iter();
    let database = items.find(|item| item["what"] == "database").unwrap();
    assert_eq!(database["state"], "trouble");
}
