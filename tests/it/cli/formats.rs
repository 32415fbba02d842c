//! `--format`.

use std::process::Output;

use super::{Place, document, request, stderr, stdout};

fn fit(arguments: &[&str]) -> Output {
    Place::new().ask("fit", &request(), arguments)
}

#[test]
fn a_shell_gets_five_assignments_of_the_answer() {
    let answered = fit(&[
        "--format",
        "env",
        "--target",
        "1048576",
        "--world-size",
        "2",
    ]);
    let json = document(&fit(&[
        "--json",
        "--target",
        "1048576",
        "--world-size",
        "2",
    ]));

    assert_eq!(stderr(&answered), "");
    let best = &json["result"]["recommendation"];
    assert_eq!(
        stdout(&answered),
        format!(
            "export BATCHFIT_MICRO_BATCH={}\nexport BATCHFIT_ACCUMULATION_STEPS={}\n\
             export BATCHFIT_GLOBAL_BATCH=1048576\nexport BATCHFIT_WORLD_SIZE=2\n\
             export BATCHFIT_PEAK_RESERVED_BYTES={}\n",
            best["micro_batch"], best["accumulation_steps"], best["peak_reserved_bytes"]
        )
    );
}

#[test]
fn where_there_is_no_answer_a_shell_goes_no_further() {
    let fails = "unset BATCHFIT_MICRO_BATCH BATCHFIT_ACCUMULATION_STEPS BATCHFIT_GLOBAL_BATCH BATCHFIT_WORLD_SIZE \
                 BATCHFIT_PEAK_RESERVED_BYTES; false\n";
    for (arguments, code, said) in [
        (vec!["--format", "env", "--memory-limit", "1MiB"], 3, fails),
        (vec!["--format", "hf", "--memory-limit", "1MiB"], 3, ""),
        (vec!["--format", "env", "--target", "x"], 2, fails),
        (vec!["--format", "env", "--device", "cuda:4095"], 4, fails),
        (vec!["--format", "env", "--seq-len", "1,2"], 2, fails),
        (vec!["--format=env", "--nothing"], 2, fails),
        (vec!["--format", "nothing"], 2, ""),
    ] {
        let answered = fit(&arguments);

        assert_eq!(
            answered.status.code(),
            Some(code),
            "{arguments:?}: {}",
            stderr(&answered)
        );
        assert_eq!(stdout(&answered), said, "{arguments:?}");
        assert!(stderr(&answered).starts_with("error: "), "{arguments:?}");
    }
    for quoted in ["$(cat)", "\"$(cat)\""] {
        let script =
            format!("BATCHFIT_MICRO_BATCH=8; set -e; eval {quoted}; echo $BATCHFIT_MICRO_BATCH");
        let mut shell = assert_cmd::Command::new("sh");
        let ended = shell
            .args(["-c", &script])
            .write_stdin(fails)
            .output()
            .unwrap();
        assert_eq!(
            (ended.status.code(), stdout(&ended).as_str()),
            (Some(1), "")
        );
    }
}

/// What a snippet has to be, and what it says.
fn snippet(place: &Place, question: &str, format: &str, says: &[&str]) {
    let words = question.split(' ').filter(|word| !word.is_empty());
    let asked = place
        .batchfit()
        .arg("fit")
        .args(words)
        .args(["--format", format])
        .output();
    let asked = asked.unwrap();
    let text = stdout(&asked);
    assert_eq!(
        asked.status.code(),
        Some(0),
        "{question}: {}",
        stderr(&asked)
    );
    for part in says {
        assert!(
            text.contains(part),
            "{format} of {question}: {part} is not in\n{text}"
        );
    }
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/cli/");
    let mut python = assert_cmd::Command::new("python3");
    let script = [
        format!("{here}snippet.py"),
        format!("{here}signatures.json"),
    ];
    let checked = python
        .args(script)
        .write_stdin(text.clone())
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}{text}", stderr(&checked));
}

const LORA: &str = "Qwen/Qwen2.5-0.5B --on h100 --seq-len 1024 --amp bf16 --checkpoint per_block --clip-grad-norm 0.5 \
                    --with lora={\"r\":16,\"target_modules\":[\"q_proj\"]} --with param_dtype=bf16 --allocator expandable_segments:True";
const DDP: &str = "resnet18 --on 2xt4 --image-size 64 --amp fp16 --optimizer sgd_momentum --checkpoint modules:layer1.*+layer2.*";
const FSDP2: &str = "gpt2 --on 8xa100-80g --seq-len 512 --amp bf16 --parallel fsdp2 --checkpoint per_block --mixed-precision bf16,fp32";

#[test]
fn a_snippet_has_all_that_its_answer_depends_on() {
    let place = Place::new();
    let lora = [
        "MAX_LENGTH = 1024",
        "model = model.to(torch.bfloat16)",
        "r=16,",
        "target_modules=[\"q_proj\"],",
        "os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"expandable_segments:True\"",
    ];
    let ddp = [
        "IMAGE_SIZE = 64",
        "(layer1\\\\.[^.]*|layer2\\\\.[^.]*)",
        "momentum=0.9",
    ];
    let of_hf = [
        "max_grad_norm=0.5,",
        "gradient_checkpointing=True,",
        "bf16=True,",
        "optim=\"adamw_torch\",",
    ];
    snippet(&place, LORA, "hf", &[&lora[..], &of_hf].concat());
    let of_ddp = [
        "ddp_find_unused_parameters=False",
        "fp16=True",
        "max_grad_norm=0.0",
    ];
    snippet(&place, DDP, "hf", &[&ddp[..], &of_ddp].concat());
    let of_lightning = [
        "gradient_clip_val=0.5",
        "precision=\"bf16-mixed\"",
        "repeated_blocks(model)",
    ];
    snippet(
        &place,
        LORA,
        "lightning",
        &[&lora[..], &of_lightning].concat(),
    );
    let of_ddp = [
        "strategy=DDPStrategy(find_unused_parameters=False)",
        "devices=2",
    ];
    snippet(&place, DDP, "lightning", &[&ddp[..], &of_ddp].concat());
    let of_accelerate = [
        "accelerator.clip_grad_norm_(model.parameters(), 0.5)",
        "mixed_precision=\"bf16\"",
    ];
    snippet(
        &place,
        LORA,
        "accelerate",
        &[&lora[..], &of_accelerate].concat(),
    );
    let of_ddp = [
        "DistributedDataParallelKwargs(find_unused_parameters=False)",
        "--num_processes 2",
    ];
    snippet(&place, DDP, "accelerate", &[&ddp[..], &of_ddp].concat());
    let of_python = [
        "clip_grad_norm_(model.parameters(), 0.5)",
        "dtype=torch.bfloat16",
    ];
    snippet(&place, LORA, "python", &[&lora[..], &of_python].concat());
    let of_ddp = [
        "DistributedDataParallel(model.cuda(), find_unused",
        "GradScaler()",
        "no_sync()",
    ];
    snippet(&place, DDP, "python", &[&ddp[..], &of_ddp].concat());
    let of_fsdp2 = [
        "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
        "fully_shard(model, reshard_after_forward=True, **policy)",
        "torchrun --nproc-per-node 8",
        "set_requires_gradient_sync(is_last)",
    ];
    snippet(&place, FSDP2, "python", &of_fsdp2);
    let zero1 =
        "gpt2 --on 2xh100 --seq-len 512 --parallel zero1 --optimizer adam --optimizer-impl fused";
    snippet(
        &place,
        zero1,
        "python",
        &["optimizer_class=torch.optim.Adam, lr=LEARNING_RATE, fused=True"],
    );
    let inference = "resnet18 --on t4 --mode inference";
    for format in ["hf", "lightning", "accelerate", "python"] {
        snippet(&place, inference, format, &["batch_size="]);
        for optimizer in ["adamw_8bit", "adafactor_transformers"] {
            let asked = format!("gpt2 --on t4 --seq-len 64 --optimizer {optimizer}");
            snippet(&place, &asked, format, &["batch_size="]);
        }
    }
}

#[test]
fn a_trainer_without_words_for_an_answer_is_refused() {
    let place = Place::new();
    for (question, format, expected) in [
        (FSDP2, "hf", "no word for FSDP2"),
        (FSDP2, "lightning", "fully_shard(model.get_submodule(name))"),
        (FSDP2, "accelerate", "`--format python` writes"),
        (
            "gpt2 --on 2xh100 --seq-len 512 --parallel zero1",
            "hf",
            "ZeroRedundancyOptimizer",
        ),
        (
            "gpt2 --on h100 --seq-len 512 --with loss_chunks=8",
            "python",
            "in 8 chunks",
        ),
    ] {
        let words = question.split(' ').filter(|word| !word.is_empty());
        let asked = place
            .batchfit()
            .arg("fit")
            .args(words)
            .args(["--format", format])
            .output();
        let asked = asked.unwrap();
        assert_eq!(
            (asked.status.code(), stdout(&asked).as_str()),
            (Some(2), ""),
            "{question}"
        );
        assert!(stderr(&asked).contains(expected), "{}", stderr(&asked));
    }
}

#[test]
fn json_is_a_format_too() {
    let answered = fit(&["--format", "json"]);

    assert_eq!(document(&answered)["state"], "done");
}

#[test]
fn a_wiki_gets_a_line_for_each_variant() {
    let answered = fit(&["--format", "markdown", "--optimizer", "sgd,adam"]);

    let text = stdout(&answered);
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("| NVIDIA H200 |"))
            .count(),
        2,
        "{text}"
    );
}
