//! WHAT: files, folders, presets and models of the hub.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::json;

use super::{Sandbox, document, request, stderr, stdout};

/// A config of no class that anybody knows, so that the error shows who read it.
const CONFIG: &str = r#"{"model_type": "nothing", "architectures": ["NothingForNobody"]}"#;

fn ask(place: &Sandbox, arguments: &[&str]) -> Output {
    place.batchfit().args(arguments).output().unwrap()
}

/// Whether a config was read: whoever reads it refuses its class, or says who does.
fn is_config_read(output: &Output) -> bool {
    let said = stderr(output);
    output.status.code() == Some(2) && said.contains("does not know the class")
}

#[test]
fn a_preset_needs_no_file() {
    let answered = ask(&Sandbox::new(), &["fit", "resnet18", "--on", "t4"]);

    assert_eq!(answered.status.code(), Some(0));
    assert!(
        stdout(&answered).contains("resnet18 on Tesla T4"),
        "{}",
        stdout(&answered)
    );
    assert_eq!(stderr(&answered), "");
}

#[test]
fn a_graph_is_told_by_its_content() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/exported");
    let place = Sandbox::new();
    fs::copy(
        golden.join("mlp-small.pt2"),
        place.directory.path().join("renamed.bin"),
    )
    .unwrap();
    fs::copy(
        golden.join("cifarnet.json.gz"),
        place.directory.path().join("packed"),
    )
    .unwrap();

    for graph in ["renamed.bin", "packed"] {
        let answered = ask(&place, &["fit", graph, "--on", "t4", "--json"]);
        assert_eq!(
            answered.status.code(),
            Some(0),
            "{graph}: {}",
            stderr(&answered)
        );
        assert!(document(&answered)["request"]["model"]["exported"].is_string());
        let refused = ask(&place, &["fit", graph, "--on", "t4", "--seq-len", "8"]);
        assert!(
            stderr(&refused).contains("the graph leaves no length open besides the batch"),
            "{}",
            stderr(&refused)
        );
    }
}

#[test]
fn stdin_may_be_a_graph_too() {
    let graph = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/exported/mlp-small.pt2"
    ));

    let place = Sandbox::new();
    for what in ["-", "/dev/stdin"] {
        let mut command = place.batchfit();
        let answered = command
            .args(["fit", what, "--on", "t4", "--json"])
            .write_stdin(graph.to_vec())
            .output()
            .unwrap();

        assert_eq!(
            answered.status.code(),
            Some(0),
            "{what}: {}",
            stderr(&answered)
        );
    }
}

#[test]
fn a_config_is_told_by_its_content_and_so_is_its_folder() {
    let place = Sandbox::new();
    place.write("anything", CONFIG);
    fs::create_dir(place.directory.path().join("snapshot")).unwrap();
    place.write("snapshot/config.json", CONFIG);

    for what in [
        "anything",
        "./anything",
        "snapshot",
        "./snapshot/",
        "snapshot/config.json",
    ] {
        let refused = ask(&place, &["fit", what, "--on", "t4", "--seq-len", "8"]);

        assert!(is_config_read(&refused), "{what}: {}", stderr(&refused));
    }
}

#[test]
fn a_model_of_the_hub_is_looked_for_in_the_local_cache() {
    let place = Sandbox::new();
    let snapshot = "models--org--name/snapshots/0123abcd";
    let caches = [
        ("HF_HUB_CACHE", "a", "a"),
        ("HF_HOME", "b", "b/hub"),
        ("XDG_CACHE_HOME", "c", "c/huggingface/hub"),
        ("HOME", "d", "d/.cache/huggingface/hub"),
    ];
    for (variable, named, cache) in caches {
        let folder = place.directory.path().join(cache).join(snapshot);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), CONFIG).unwrap();
        let mut command = place.batchfit();
        command.env(variable, place.directory.path().join(named));

        let refused = command
            .args(["fit", "org/name", "--on", "t4"])
            .output()
            .unwrap();

        assert!(is_config_read(&refused), "{variable}: {}", stderr(&refused));
    }
}

#[test]
fn a_model_that_is_not_in_the_cache_is_named_with_what_to_fetch() {
    let place = Sandbox::new();

    let refused = ask(&place, &["fit", "org/name", "--on", "t4"]);

    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(
        said.contains("https://huggingface.co/org/name/resolve/main/config.json"),
        "{said}"
    );
    let cache = place.directory.path().join(".cache/huggingface/hub");
    assert!(said.contains(cache.to_str().unwrap()), "{said}");
}

#[test]
fn what_is_nothing_is_said_to_be_nothing() {
    let place = Sandbox::new();
    fs::create_dir(place.directory.path().join("empty")).unwrap();
    fs::create_dir(place.directory.path().join("resnet34")).unwrap();
    let megabyte = "9".repeat(100_000);
    for (what, expected) in [
        ("resnt50", "resnt50: this is no file here, no preset"),
        ("resnt50", "did you mean \"resnet50\"?"),
        (
            "llama-4-8b",
            "a model of your own is `batchfit fit my.py:build`",
        ),
        ("bert-basse", "this is no file here"),
        ("zürich", "zürich: this is no file here"),
        ("empty", "empty: the folder has no config.json"),
        ("./resnet34", "./resnet34: the folder has no config.json"),
        ("no/such/file", "could not read no/such/file: "),
        ("../resnet50", "could not read ../resnet50: "),
        ("absent.json", "could not read absent.json: "),
        ("absent.PT2", "could not read absent.PT2: "),
        ("org/../../name", "could not read org/../../name: "),
        ("models--org/name", "could not read models--org/name: "),
        ("", "a value is required for '[WHAT]'"),
        (&megabyte, "this is no file here"),
    ] {
        let refused = ask(&place, &["fit", what, "--on", "t4"]);

        assert_eq!(refused.status.code(), Some(2), "{what}");
        assert!(
            stderr(&refused).contains(expected),
            "{what}: {}",
            stderr(&refused)
        );
        assert!(refused.stdout.is_empty(), "{what}");
    }
    // Of another size it is another model.
    for other in ["google/gemma-3-4b-it", "nnunet", "fasterrcnn_resnet50_fpn"] {
        let said = stderr(&ask(&place, &["fit", other, "--on", "t4"]));
        assert!(!said.contains("did you mean"), "{said}");
    }
    let preset = ask(&place, &["fit", "resnet34", "--on", "t4"]);
    assert_eq!(preset.status.code(), Some(0), "{}", stderr(&preset));
}

#[test]
fn a_file_goes_before_a_preset_of_its_name_and_says_so() {
    let place = Sandbox::new();
    place.write("resnet18", &request().to_string());

    let answered = ask(&place, &["fit", "resnet18", "--json"]);

    assert_eq!(document(&answered)["request"], request());
    assert!(stderr(&answered).contains("warning: resnet18 is a file here and a preset too"));
}

#[test]
fn a_file_that_is_something_else_is_said_to_be_that() {
    let place = Sandbox::new();
    let file = |bytes: &[u8]| fs::write(place.directory.path().join("file"), bytes).unwrap();
    for (bytes, expected) in [
        (&b""[..], "file: it is empty; what is read is a request"),
        (b"  \n", "it is empty"),
        (b"\x80\x02}q\x00.", "it is a pickle"),
        (b"# {\"total\": 1}\n", "there are no events"),
        (
            b"\x10\x00\x00\x00\x00\x00\x00\x00{\"a\":1}",
            "it holds weights; the config.json beside them",
        ),
        (
            b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00",
            "it is a binary file",
        ),
        (b"\xff\xfe{\x00", "it is text in UTF-16"),
        (b"[1, 2]", "it is not a JSON object"),
        (b"import torch", "it is a script, which `batchfit run "),
        (
            b"{\"epochs\": 3, \"lr\": 0.1}",
            "it is JSON with \"epochs\", \"lr\", and none of these: a request",
        ),
        (b"{\"model\": ", "the request is not valid JSON at line 1"),
        (b"PK\x03\x04", "it cannot be read"),
        (b"\x1f\x8b\x08", "file: "),
        (b"{\"graph_module\": 3}", "file: "),
    ] {
        file(bytes);
        let refused = ask(&place, &["fit", "file", "--on", "t4"]);

        assert_eq!(refused.status.code(), Some(2), "{bytes:?}");
        assert!(
            stderr(&refused).contains(expected),
            "{bytes:?}: {}",
            stderr(&refused)
        );
    }
}

#[test]
fn a_link_that_leads_nowhere_is_no_name_of_a_model() {
    let place = Sandbox::new();
    fs::create_dir(place.directory.path().join("org")).unwrap();
    for (link, target, said) in [
        ("org/loop", "loop", "Too many levels of symbolic links"),
        ("gone", "nowhere", "No such file"),
    ] {
        std::os::unix::fs::symlink(target, place.directory.path().join(link)).unwrap();

        let refused = ask(&place, &["fit", link, "--on", "t4"]);

        assert_eq!(refused.status.code(), Some(2), "{link}");
        let expected = format!("could not read {link}: {said}");
        assert!(stderr(&refused).contains(&expected), "{}", stderr(&refused));
    }
}

#[test]
fn a_misspelt_request_is_still_a_request() {
    let place = Sandbox::new();
    let misspelt = json!({"modle": {"preset": "resnet18"}, "device": "sim:t4"});

    let refused = place.ask("fit", &misspelt, &[]);

    assert!(
        stderr(&refused).contains("the request has no field \"modle\""),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn model_takes_the_place_of_a_request_s_and_conflicts_with_another() {
    let graph = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/exported/mlp-small.pt2"
    );
    let place = Sandbox::new();

    let alone = ask(&place, &["fit", "--model", graph, "--on", "t4", "--json"]);
    let beside = ask(&place, &["fit", "resnet18", "--model", graph, "--on", "t4"]);
    let missing = ask(&place, &["fit", "--on", "t4"]);
    let both = ask(&place, &["fit", "-", "--model", "-"]);

    assert_eq!(alone.status.code(), Some(0), "{}", stderr(&alone));
    assert!(
        stderr(&beside).contains("--model: resnet18 is a model already"),
        "{}",
        stderr(&beside)
    );
    assert!(
        stderr(&missing).contains("name a model"),
        "{}",
        stderr(&missing)
    );
    assert!(
        stderr(&both).contains("cannot both be read from stdin"),
        "{}",
        stderr(&both)
    );
}
