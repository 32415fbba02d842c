//! Flags as members of a request.

use serde_json::{Value, json};

use super::{Sandbox, document, request, stderr, stdout};

/// The request that a command line makes, as the answer gives it back.
fn request_of(arguments: &[&str]) -> Value {
    let output = Sandbox::new()
        .batchfit()
        .args([
            "fit",
            "resnet18",
            "--on",
            "h200",
            "--image-size",
            "32",
            "--json",
        ])
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    document(&output)["request"].clone()
}

/// What a command line is refused with.
fn refused(arguments: &[&str]) -> String {
    let output = Sandbox::new()
        .batchfit()
        .args(["fit", "resnet18"])
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    stderr(&output)
}

#[test]
fn each_flag_has_its_member() {
    // As many at once as go together, since each process takes half a second.
    for (flags, members) in [
        (
            "--num-classes=10;--in-channels=1;--parallel=none;--precision=bf16;--optimizer=sgd,adam;--optimizer-impl=fused;\
             --checkpoint=modules:layer1.*+layer2.0;--target=64;--memory-limit=2GiB;--headroom=0.02;\
             --rank=across_optimizers;--search=auto;--suggest;--weight-decay=0.1;--label-smoothing=0.2",
            json!({
                "/model/num_classes": 10, "/model/in_channels": 1, "/training/parallel/strategy": "none",
                "/training/precision": "bf16", "/training/optimizer": ["sgd", "adam"], "/training/optimizer_impl": "fused",
                "/training/checkpointing": {"modules": ["layer1.*", "layer2.0"]}, "/target_batch": 64,
                "/memory_limit": "2GiB", "/headroom": 0.02, "/compare": "across_optimizers", "/search": "auto",
                "/suggest": true, "/training/weight_decay": 0.1, "/training/label_smoothing": 0.2,
            }),
        ),
        (
            "--with=num_classes=7;--precision=fp32, bf16;--checkpoint=none,per_block;--accumulation=4;--world-size=2;\
             --memory-limit=2GiB;--allocator=expandable_segments:True;--unknown-ops=refuse;--chosen-percent=50",
            json!({
                "/model/num_classes": 7, "/training/precision": ["fp32", "bf16"],
                "/training/checkpointing": ["none", "per_block"], "/training/accumulation": 4, "/world_size": 2,
                "/allocator": "expandable_segments:True", "/unknown_ops": "refuse", "/chosen_percent": 50,
            }),
        ),
        (
            "--amp=fp16;--mode=inference;--suggest=64",
            json!({"/training/precision": "amp_fp16", "/training/mode": "inference", "/suggest": 64}),
        ),
        (
            "--amp=fp16,bf16;--objective=throughput;--memory-limit=2GiB",
            json!({"/training/precision": ["amp_fp16", "amp_bf16"], "/objective": "throughput"}),
        ),
    ] {
        let asked = request_of(&flags.split(';').collect::<Vec<_>>());

        for (pointer, value) in members.as_object().unwrap() {
            assert_eq!(asked.pointer(pointer), Some(value), "{pointer}");
        }
    }
    assert_eq!(
        request_of(&[])["model"],
        json!({"preset": "resnet18", "image_size": 32})
    );
}

#[test]
fn height_and_width_may_differ() {
    let output = Sandbox::new()
        .batchfit()
        .args([
            "fit",
            "resnet18",
            "--on",
            "h200",
            "--image-size",
            "32x64",
            "--memory-limit",
            "2GiB",
            "--json",
        ])
        .output()
        .unwrap();

    assert_eq!(
        document(&output)["request"]["model"]["image_size"],
        json!([32, 64])
    );
}

#[test]
fn flags_go_before_a_request_and_leave_the_rest_of_it() {
    let arguments = [
        "--json",
        "--on",
        "2xT4",
        "--optimizer",
        "adam",
        "--memory-limit",
        "2GiB",
    ];
    let answered = Sandbox::new().ask("fit", &request(), &arguments);

    let mut expected = request();
    expected["training"]["optimizer"] = json!("adam");
    expected["device"] = json!("sim:t4");
    expected["world_size"] = json!(2);
    expected["memory_limit"] = json!("2GiB");
    assert_eq!(document(&answered)["request"], expected);
}

/// Flags, and how the error begins.
const REFUSED: [(&str, &str); 39] = [
    ("--on h200 --headroom nan", "--headroom: "),
    ("--on h200 --headroom inf", "--headroom: "),
    (
        "--on h200 --precision fp61",
        "--precision: unknown precision \"fp61\"; did you mean \"fp16\"?",
    ),
    (
        "--on h200 --precision fp32,fp61",
        "--precision: unknown precision \"fp61\"",
    ),
    (
        "--on h200 --optimizer adamq",
        "--optimizer: unknown optimizer \"adamq\"",
    ),
    (
        "--on h200 --optimizer-impl fusd",
        "--optimizer-impl: unknown optimizer implementation",
    ),
    (
        "--on h200 --checkpoint per-block",
        "--checkpoint: unknown checkpointing \"per-block\"",
    ),
    (
        "--on h200 --checkpoint modules:",
        "--checkpoint: a glob has 1 to",
    ),
    (
        "--on h200 --checkpoint modules:no.such",
        "--checkpoint: no module matches no.such",
    ),
    (
        "--on h200 --accumulation 0",
        "--accumulation: accumulation must be a whole number",
    ),
    ("--on h200 --mode test", "--mode: unknown mode \"test\""),
    (
        "--on h200 --mode inference --optimizer sgd",
        "--optimizer: inference takes no optimizer",
    ),
    (
        "--on h200 --target -5",
        "--target: target_batch must be a whole number",
    ),
    (
        "--on h200 --target 99999999999999999999999",
        "--target: target_batch must be a whole number",
    ),
    (
        "--on 8xh200 --target 4",
        "--target: 4 samples leave some of the 8 ranks",
    ),
    (
        "--on h200 --world-size 0",
        "--world-size: world_size must be a whole number",
    ),
    (
        "--on 8xh200 --world-size 4",
        "--world-size: 4 is not the 8 of --on 8xh200",
    ),
    (
        "--on h200 --memory-limit 12Q",
        "--memory-limit: memory_limit must be",
    ),
    ("--on h200 --allocator max_split_size:32", "--allocator: "),
    (
        "--on h200 --rank anyhow",
        "--rank: unknown comparison \"anyhow\"",
    ),
    (
        "--on h200 --search fast",
        "--search: unknown search \"fast\"",
    ),
    ("--on h200 --unknown-ops allow", "--unknown-ops: unknown"),
    (
        "--on h200 --chosen-percent 101",
        "--chosen-percent: chosen_percent must be a whole number",
    ),
    (
        "--on h200 --seq-len 512",
        "--seq-len: resnet18 has no field \"seq_len\"",
    ),
    (
        "--on h200 --target-len 512",
        "--target-len: resnet18 has no field \"target_len\"",
    ),
    (
        "--on h200 --image-size 0",
        "--image-size: image_size must be a whole number",
    ),
    (
        "--on h200 --image-size 3x",
        "--image-size: image_size must be a whole number",
    ),
    (
        "--on h200 --num-classes many",
        "--num-classes: num_classes must be a whole number",
    ),
    (
        "--on h200 --in-channels 0",
        "--in-channels: in_channels must be a whole number",
    ),
    (
        "--on h200 --with depth=3",
        "--with depth: resnet18 has no field \"depth\"",
    ),
    (
        "--on h200 --with depth",
        "--with: \"depth\" is not of the form NAME=VALUE",
    ),
    (
        "--on h200 --with =3",
        "--with: \"=3\" is not of the form NAME=VALUE",
    ),
    (
        "--on h200 --with preset=resnet50",
        "--with: preset is the model itself",
    ),
    (
        "--device sim:h2000",
        "--device: unknown simulated device \"h2000\"",
    ),
    ("--on 0xH100", "--on: 0 is no number of GPUs"),
    ("--on 8x", "--on: \"8x\" lacks the name of a card"),
    ("--on 💥", "--on: \"💥\" lacks the name of a card"),
    (
        "--on h2000",
        "--on: unknown card \"h2000\"; did you mean \"h200\"?",
    ),
    ("--on cuda:0", "--on: \"cuda:0\" is no card"),
];

#[test]
fn what_is_wrong_is_told_by_the_name_of_the_flag() {
    for (arguments, expected) in REFUSED {
        let said = refused(&arguments.split(' ').collect::<Vec<_>>());

        assert!(
            said.starts_with(&format!("error: {expected}")),
            "{arguments}: {said}"
        );
    }
}

#[test]
fn lists_have_no_empty_places() {
    for flag in [
        "--precision",
        "--amp",
        "--optimizer",
        "--checkpoint",
        "--seq-len",
    ] {
        for list in [",", "a,", ",a", "a,,b", " ", "a, ,b"] {
            let said = refused(&["--on", "h100", flag, list]);

            assert!(
                said.contains(&format!("error: {flag}: ")),
                "{flag} {list}: {said}"
            );
            assert!(
                said.contains("empty place") || said.contains("a value is missing"),
                "{said}"
            );
        }
    }
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    for (arguments, expected) in [
        (
            ["--amp", "fp16", "--precision", "fp32"],
            "'--amp <TYPE,..>' cannot be used with '--precision",
        ),
        (
            ["--on", "h100", "--device", "auto"],
            "'--on <CARD>' cannot be used with '--device",
        ),
        (
            ["--json", "--format", "hf", "--verbose"],
            "'--json' cannot be used with '--format",
        ),
        (
            ["--on", "h100", "--format", "yaml"],
            "[possible values: text, json, env, hf",
        ),
        (
            ["--on", "h100", "--preciison", "fp32"],
            "there is no --preciison; did you mean --precision?",
        ),
    ] {
        let said = refused(&arguments);

        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn the_problem_document_names_flag_and_place() {
    let said = refused(&["--on", "h200", "--precision", "fp61", "--json"]);

    let problem: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(problem["pointer"], "/training/precision");
    assert_eq!(problem["nearest"], "fp16");
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .starts_with("--precision: ")
    );
}

#[test]
fn one_length_is_probed_at_a_time() {
    let output = Sandbox::new()
        .batchfit()
        .args([
            "probe",
            "resnet18",
            "--on",
            "h100",
            "--seq-len",
            "1,2",
            "--batch",
            "1",
        ])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    // The first length is wrong already: a picture has none.
    assert!(
        stderr(&output).contains("--seq-len: "),
        "{}",
        stderr(&output)
    );
    assert_eq!(stdout(&output), "");
}

#[test]
fn fully_shard_has_flags_for_its_members() {
    let parallel = |flags: &[&str]| {
        let all = [&["--parallel", "fsdp2", "--world-size", "2"], flags].concat();
        request_of(&all)["training"]["parallel"].clone()
    };
    assert_eq!(
        parallel(&[
            "--units",
            "layer1.*+layer2.*",
            "--reshard-after-forward",
            "true,false",
            "--mixed-precision",
            "fp32,bf16,fp32",
            "--cpu-offload",
        ]),
        json!({
            "strategy": "fsdp2", "units": ["layer1.*", "layer2.*"], "reshard_after_forward": [true, false],
            "mixed_precision": { "param_dtype": "fp32", "reduce_dtype": "bf16", "output_dtype": "fp32" },
            "cpu_offload": true,
        })
    );
    assert_eq!(
        parallel(&["--mixed-precision", "fp32"])["mixed_precision"],
        json!({ "param_dtype": "fp32" })
    );
    let wrong =
        |flags: &[&str]| refused(&[&["--on", "2xt4", "--parallel", "fsdp2"], flags].concat());
    assert!(wrong(&["--mixed-precision", "bf16,fp32,fp32,fp32"]).contains("4 types are too many"));
    assert!(wrong(&["--mixed-precision", "fp8"]).contains("unknown type \"fp8\""));
    assert!(wrong(&["--reshard-after-forward", "maybe"]).contains("true, false or a list of both"));
    let foreign = refused(&["--on", "2xt4", "--parallel", "ddp", "--cpu-offload"]);
    assert!(foreign.contains("cpu_offload is FSDP2's"), "{foreign}");
}

#[test]
fn unlike_cards_are_added_up() {
    let output = Sandbox::new()
        .batchfit()
        .args([
            "fit",
            "resnet18",
            "--image-size",
            "32",
            "--on",
            "2xh100-80g+t4+3xt4",
            "--json",
        ])
        .output()
        .unwrap();
    let document = document(&output);

    assert_eq!(
        document["request"]["device"],
        json!(["sim:h100-80g", "sim:t4", "sim:t4"])
    );
    assert_eq!(document["request"]["world_size"], 6);
    assert_eq!(document["result"]["environment"]["device"], "sim:t4");
    assert!(refused(&["--on", "2xh100-80g+"]).contains("lacks the name of a card"));
}
