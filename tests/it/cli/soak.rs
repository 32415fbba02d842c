//! `batchfit soak`.

use serde_json::{Value, json};

use super::{Sandbox, document, stderr, stdout};

/// BERT as `tests/gpu/soak.py` trains it.
fn bert() -> Value {
    json!({
        "model": {"hf": {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}},
        "device": "sim:h200",
        "memory_limit": "40GiB",
        "training": {"precision": "amp_fp16", "optimizer": "adamw"},
    })
}

/// As many steps as PyTorch 2.11 ran on an H200 in the same order: it reserved 9.91 GiB at most, as many pieces of 2 MiB as
/// here, and 6.85 GiB after three steps (`tests/gpu/soak.py --only bert-lengths`).
#[test]
fn a_training_of_many_lengths_reserves_what_pytorch_did() {
    let place = Sandbox::new();
    let flags = "--batch 32 --seq-len 32-512:8 --epoch 250 --last-batch 5 --validation-batch 16 --validation-steps 20 --json";
    let flags: Vec<&str> = flags.split(' ').collect();

    let answered = place.ask("soak", &bert(), &flags);

    let soaked = document(&answered);
    let report = &soaked["report"];
    assert_eq!(report["verdict"], "fits");
    assert_eq!(report["steps"], 1080);
    assert_eq!(report["peak_reserved_bytes"], 5073_u64 * (2 << 20));
    assert_eq!(
        report["growth"].as_array().unwrap().last().unwrap()["reserved_bytes"],
        report["peak_reserved_bytes"]
    );
    assert_eq!(soaked["safe"]["batch"], 32);
    assert_eq!(soaked["order"].as_array().unwrap().len(), 1080);
    assert_eq!(answered.status.code(), Some(0));
}

#[test]
fn a_batch_that_does_not_last_has_a_smaller_one_beside_it() {
    let place = Sandbox::new();
    let mut request = bert();
    request["memory_limit"] = json!("8GiB");

    let answered = place.ask(
        "soak",
        &request,
        &[
            "--batch",
            "32",
            "--seq-len",
            "64,256,512",
            "--steps",
            "40",
            "--json",
        ],
    );

    assert_eq!(answered.status.code(), Some(3));
    let soaked = document(&answered);
    let safe = soaked["safe"]["batch"].as_u64().unwrap();
    assert!((1..32).contains(&safe));
    assert!(soaked["report"]["first_retry"].as_u64().unwrap() >= 1);
    // The one that is named lasts, and the next does not.
    for batch in [safe, safe + 1] {
        let batch = batch.to_string();
        let flags = [
            "--batch",
            &batch,
            "--seq-len",
            "64,256,512",
            "--steps",
            "40",
            "--json",
        ];
        let answered = place.ask("soak", &request, &flags);
        assert_eq!(document(&answered)["safe"]["batch"], safe, "{batch}");
    }
}

#[test]
fn inference_is_soaked_too() {
    let place = Sandbox::new();
    let mut request = bert();
    request["training"] = json!({"precision": "amp_fp16", "mode": "inference"});

    let answered = place.ask(
        "soak",
        &request,
        &[
            "--batch",
            "32",
            "--seq-len",
            "64,256,512",
            "--steps",
            "40",
            "--json",
        ],
    );

    let report = document(&answered)["report"].clone();
    assert_eq!(report["verdict"], "fits");
    let reserved = |name: &str| report[name].as_u64().unwrap();
    assert!(reserved("peak_reserved_bytes") >= reserved("reserved_at_first_bytes"));
}

/// A fit whose request has a soak answers with what lasts; the same batch alone would be larger.
#[test]
fn a_fit_with_a_soak_answers_with_the_batch_that_lasts() {
    let place = Sandbox::new();
    let mut request = bert();
    request["memory_limit"] = json!("6GiB");
    request["lengths"] = json!({"seq_len": "64:50,192:30,320:20"});
    let soak = [
        "--steps",
        "60",
        "--epoch",
        "20",
        "--last-batch",
        "3",
        "--validation-batch",
        "24",
    ];
    let within = "--soak=steps=60,epoch=20,last_batch=3,validation-batch=24";

    let alone = document(&place.ask("fit", &request, &["--json"]))["result"].clone();
    let result = document(&place.ask("fit", &request, &[within, "--json"]))["result"].clone();

    let batch = |result: &Value| result["recommendation"]["micro_batch"].as_u64().unwrap();
    let soaked = &result["soak"];
    assert_eq!(soaked["batch"].as_u64(), Some(batch(&alone)));
    assert_eq!(soaked["safe"]["batch"].as_u64(), Some(batch(&result)));
    assert_eq!(
        soaked["safe"]["peak_reserved_bytes"],
        result["recommendation"]["peak_reserved_bytes"]
    );
    assert!(batch(&result) < batch(&alone), "{result}");
    assert_eq!(
        result["variants"][0]["recommendation"],
        result["recommendation"]
    );
    // `batchfit soak` says the same of both.
    for (micro_batch, status) in [(batch(&result), 0), (batch(&alone), 3)] {
        let micro_batch = micro_batch.to_string();
        let flags = [&["--batch", &micro_batch], &soak[..]].concat();
        let answered = place.ask("soak", &request, &flags);
        assert_eq!(
            answered.status.code(),
            Some(status),
            "{}",
            stdout(&answered)
        );
    }
}

/// The answer to a fit with these words.
fn fit(words: &str) -> Value {
    let place = Sandbox::new();
    let words = format!("fit {words} --json");
    let answered = place.batchfit().args(words.split(' ')).output().unwrap();
    document(&answered)["result"].clone()
}

/// `AlexNet`'s convolutions are refused scratch memory and take other plans: of the batches below the one that is safe alone not all are,
/// and a bisection from a batch of one ended at 733 of 944.
#[test]
fn steps_that_are_all_alike_last_where_one_alone_is_safe() {
    const ASKED: &str = "alexnet --on rtx4090 --memory-limit 6GiB";
    let alone = fit(ASKED)["recommendation"]["micro_batch"].clone();

    let result = fit(&format!("{ASKED} --soak=steps=20"));

    assert_eq!(result["recommendation"]["micro_batch"], alone);
    let place = Sandbox::new();
    let words = format!("soak {ASKED} --steps 20 --json --batch {alone}");
    let answered = place.batchfit().args(words.split(' ')).output().unwrap();
    assert_eq!(document(&answered)["safe"]["batch"], alone);
}

/// A course of so few steps draws no sample of the longest length.
#[test]
fn a_short_course_is_predicted_to_reserve_what_the_longest_length_does() {
    let mut request = bert();
    request["memory_limit"] = json!("8GiB");
    request["lengths"] = json!({"seq_len": "32:400,128:300,512:20"});
    let place = Sandbox::new();

    let result =
        document(&place.ask("fit", &request, &["--soak=steps=20", "--json"]))["result"].clone();

    let best = &result["recommendation"];
    let peak = |of: &Value| of["peak_reserved_bytes"].as_u64().unwrap();
    let course = peak(&result["soak"]["report"]);
    let longest = &result["lengths"]["rows"][2]["recommendation"];
    assert_eq!(best["micro_batch"], longest["micro_batch"]);
    assert_eq!(peak(best), peak(longest));
    assert_eq!(peak(&result["soak"]["safe"]), peak(longest));
    assert!(course < peak(longest) / 2, "{course}");
}

/// A static cache has room for all tokens while the prompt's activations are there; the growing one only for the prompt.
#[test]
fn generation_alone_says_how_many_prompts_fit() {
    let place = Sandbox::new();
    let request = json!({
        "model": {"hf": {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
            "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 512
        }},
        "device": "sim:h200",
        "memory_limit": "1GiB",
    });
    let flags = |generation| ["--mode", "inference", generation, "--json"];
    let batch = |generation| {
        let answered = place.ask("fit", &request, &flags(generation));
        let result = &document(&answered)["result"]["recommendation"]["micro_batch"];
        result.as_u64().unwrap()
    };

    let grown = batch("--generation=prompt=192,tokens=16");
    let fixed = batch("--generation=prompt=192,tokens=16,cache=static,sample=true,top_p=0.9");
    let usual = batch("--generation");

    assert!(usual > 0);
    assert!(0 < fixed && fixed < grown, "{fixed} {grown}");
    for (generation, says) in [
        (
            "--generation=prompt=1020",
            "--generation: a prompt of 1020 tokens and 64 new ones",
        ),
        ("--generation=cache=paged", "static"),
        ("--generation=top_k=3", "the likeliest is taken"),
        ("--generation=prompts=3", "prompts"),
    ] {
        let refused = place.ask("fit", &request, &flags(generation));
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
}

/// Keys and values of 192 tokens and more are joined again at each token; blocks of ever new sizes are what a training of one
/// length does not ask for.
#[test]
fn training_validation_and_generation_share_a_process() {
    let place = Sandbox::new();
    let request = json!({
        "model": {"hf": {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
            "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 512
        }, "seq_len": 64},
        "device": "sim:h200",
        "memory_limit": "4GiB",
    });
    let ask = |flags: &[&str]| {
        let all = ["--batch", "8", "--steps", "20", "--epoch", "10", "--json"];
        document(&place.ask("soak", &request, &[&all[..], flags].concat()))
    };
    let generation = [
        "--generation-batch",
        "64",
        "--generation-prompt",
        "192",
        "--generation-tokens",
        "16",
        "--generation-times",
        "2",
    ];

    let without = ask(&["--validation-batch", "8", "--validation-steps", "3"]);
    let with = ask(&[
        &["--validation-batch", "8", "--validation-steps", "3"][..],
        &generation,
    ]
    .concat());

    assert_eq!(without["report"]["steps"], 26);
    assert_eq!(with["report"]["steps"], 30);
    assert_eq!(with["report"]["verdict"], "fits");
    assert_eq!(with["order"][13], json!([0, "generation"]));
    let reserved = |soaked: &Value| soaked["report"]["peak_reserved_bytes"].as_u64().unwrap();
    // Two layers of keys and values: 64 samples of 207 tokens, 64 numbers of four bytes each.
    let cache = 2 * 2 * 64 * 207 * 64 * 4;
    assert!(reserved(&with) > reserved(&without).max(cache), "{with}");
    let cached = ["--generation-cache", "static", "--generation-sample"];
    let cached = ask(&[&generation[..], &cached].concat());
    assert_eq!(cached["report"]["verdict"], "fits");
    for (flags, says) in [
        (
            vec!["--generation-batch", "1", "--generation-top-p", "0.9"],
            "the likeliest is taken",
        ),
        (
            vec!["--generation-tokens", "8"],
            "generation_tokens needs generation_batch",
        ),
        (
            vec!["--generation-batch", "1", "--generation-prompt", "1020"],
            "--generation-prompt: a prompt of 1020 tokens and 64 new ones are 1083 tokens that are read, but n_positions",
        ),
        (
            vec![
                "--generation-batch",
                "1",
                "--generation-tokens",
                "256",
                "--generation-prompt",
                "8",
                "--generation-cache",
                "paged",
            ],
            "--generation-cache: ",
        ),
    ] {
        let refused = place.ask("soak", &request, &[&["--batch", "8"], &flags[..]].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
    let within = "--soak=steps=8,generation_batch=1,generation_prompt=1020";
    let refused = place.ask("fit", &request, &[within]);
    assert!(
        stderr(&refused).contains("--soak: a prompt of 1020"),
        "{}",
        stderr(&refused)
    );
    // What nobody said is told of the flag that asked for text.
    let mut short = request.clone();
    short["model"]["hf"]["n_positions"] = json!(64);
    let refused = place.ask("soak", &short, &["--batch", "8", "--generation-batch", "1"]);
    assert!(
        stderr(&refused).contains("--generation-batch: a prompt of 128"),
        "{}",
        stderr(&refused)
    );
    let other = place.ask(
        "soak",
        &bert(),
        &["--batch", "8", "--seq-len", "64", "--generation-batch", "1"],
    );
    assert!(
        stderr(&other).contains("not for BertForSequenceClassification"),
        "{}",
        stderr(&other)
    );
}

#[test]
fn a_target_is_made_by_batches_that_last() {
    let place = Sandbox::new();
    let mut request = bert();
    request["memory_limit"] = json!("6GiB");
    request["target_batch"] = json!(96);
    request["lengths"] = json!({"seq_len": "64,192,320"});
    request["soak"] = json!({"steps": 40});

    let result = document(&place.ask("fit", &request, &["--json"]))["result"].clone();

    let best = &result["recommendation"];
    let figure = |name: &str| best[name].as_u64().unwrap();
    assert_eq!(figure("micro_batch") * figure("accumulation_steps"), 96);
    assert_eq!(figure("global_batch"), 96);
    assert_eq!(result["soak"]["safe"]["batch"], best["micro_batch"]);
}

#[test]
fn what_cannot_be_soaked_says_why() {
    let place = Sandbox::new();
    let refused = |change: &dyn Fn(&mut Value), flags: &[&str], says: &str| {
        let mut request = bert();
        change(&mut request);
        let flags = [&["--batch", "4"], flags].concat();
        let answered = place.ask("soak", &request, &flags);
        assert_eq!(answered.status.code(), Some(2), "{says}");
        assert!(stderr(&answered).contains(says), "{}", stderr(&answered));
    };
    let same = |_: &mut Value| {};
    refused(
        &same,
        &["--seq-len", "1-100000"],
        "more than the 512 lengths",
    );
    refused(&same, &["--seq-len", "64-32"], "seq-len");
    refused(
        &same,
        &["--seq-len", "64", "--steps", "100001"],
        "steps must be a whole number from 1 to 100000",
    );
    refused(
        &same,
        &[
            "--seq-len",
            "64",
            "--epoch",
            "1",
            "--steps",
            "60000",
            "--validation-batch",
            "1",
        ],
        "more than the 100000",
    );
    refused(
        &|request| request["device"] = json!("cuda:0"),
        &["--seq-len", "64"],
        "simulated card",
    );
    refused(
        &|request| request["world_size"] = json!(2),
        &["--seq-len", "64"],
        "one process",
    );
    refused(
        &|request| request["training"]["precision"] = json!(["fp32", "bf16"]),
        &["--seq-len", "64"],
        "one variant",
    );
}

#[test]
fn what_a_soak_cannot_follow_is_refused_and_not_passed_over() {
    let place = Sandbox::new();
    let target = place.ask("soak", &bert(), &["--batch", "8", "--target", "64"]);
    let twice = place.ask("fit", &bert(), &["--soak=epoch=5,epoch=6"]);

    for (answered, said) in [
        (target, "error: --target: a soak is of one batch"),
        (twice, "error: --soak: epoch is given twice"),
    ] {
        assert_eq!(answered.status.code(), Some(2));
        assert!(stderr(&answered).contains(said), "{}", stderr(&answered));
    }
}
