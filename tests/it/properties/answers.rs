//! What is recommended runs as recommended, and nothing that would do is missed: whole fits, checked by probes.

use std::path::{Path, PathBuf};

use batchfit::jobs::{Engine as _, FitEngine, Isolation, Recommendation, Work};
use batchfit::limits::Cancel;
use batchfit::model::{ModelFiles, Request, RequestDocument};
use batchfit::probe::{Detail, ProbeReport, StepOutcome, Verdict};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Most micro-steps that a probe here runs. From the third on, each repeats the one before.
const MOST_MICRO_STEPS: u64 = 12;

/// A model in a mode, on a card.
struct Case {
    /// The request without a limit.
    request: Value,
    /// An exported graph that takes the place of a model.
    graph: Option<&'static str>,
}

impl Case {
    fn new(request: Value, graph: Option<&'static str>) -> Case {
        Case { request, graph }
    }

    /// The request under a limit and with other members of `training`.
    fn parse(&self, limit: u64, training: &Value, target: Option<u64>) -> Request {
        let mut document = self.request.clone();
        document["memory_limit"] = json!(limit);
        for (member, value) in training.as_object().unwrap() {
            document["training"][member] = value.clone();
        }
        if let Some(target) = target {
            document["target_batch"] = json!(target);
        }
        let document = RequestDocument::from(document);
        match self.graph {
            None => Request::parse(document).unwrap(),
            Some(graph) => {
                let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/exported");
                let graph = std::fs::read(golden.join(format!("{graph}.json.gz"))).unwrap();
                Request::parse(document.with_files(ModelFiles::Graph(graph))).unwrap()
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a limit"
    )]
    /// Whether a plan runs steadily, and would with `share` less of the limit.
    fn leaves(&self, limit: u64, (batch, steps): (u64, u64), share: f64) -> bool {
        let report = self.probe(limit, batch, steps);
        let room = limit as f64 * (1.0 - share);
        is_steady(&report)
            && (report.peak_reserved_bytes as f64 <= room + 1.0
                || is_steady(&self.probe(room as u64 + 1, batch, steps)))
    }

    fn fit(&self, limit: u64, target: Option<u64>) -> Recommendation {
        let request = self.parse(limit, &json!({}), target);
        let answered = engine().fit(&request, Isolation::Shared, &Work::UNWATCHED);
        answered.unwrap().recommendation
    }

    /// A probe of a batch with as many micro-steps as a plan has, or with enough of them.
    fn probe(&self, limit: u64, batch: u64, steps: u64) -> ProbeReport {
        let training = match steps {
            1 => json!({}),
            steps => json!({ "accumulation": steps.min(MOST_MICRO_STEPS) }),
        };
        engine()
            .probe(
                &self.parse(limit, &training, None),
                batch,
                Detail::Full,
                &Cancel::NEVER,
            )
            .unwrap()
    }
}

fn engine() -> FitEngine {
    FitEngine::new(PathBuf::from(env!("CARGO_BIN_EXE_batchfit")))
}

/// The share of the limit that an answer says it keeps free.
fn share_kept(answer: &Recommendation) -> Option<f64> {
    let note = answer
        .notes
        .iter()
        .find(|note| note.contains(" of the limit are "))?;
    let words = note.split(['%', ' ']).collect::<Vec<_>>();
    let shares = words.windows(3).filter(|words| words[1..] == ["", "for"]);
    Some(
        shares
            .map(|words| words[0].parse::<f64>().unwrap())
            .sum::<f64>()
            / 100.0,
    )
}

fn is_steady(report: &ProbeReport) -> bool {
    report.course() <= StepOutcome::Steady
}

/// Checks an answer by probes of its own: what it recommends, or that it rightly recommends nothing.
fn check(case: &Case, limit: u64, target: Option<u64>) -> Recommendation {
    let answer = case.fit(limit, target);
    let at = format!(
        "{} in {} MiB, target {target:?}: {answer:?}",
        case.request,
        limit / MIB
    );
    let share = share_kept(&answer);
    if answer.micro_batch == 0 {
        let one = case.probe(limit, 1, 1);
        let fits_without_room = share.is_some_and(|share| !case.leaves(limit, (1, 1), share));
        assert!(!is_steady(&one) || fits_without_room, "{at}");
        let missing = answer.missing_bytes.unwrap();
        assert!(missing > 0, "{at}");
        assert!(case.fit(limit + missing, target).micro_batch > 0, "{at}");
    } else {
        let report = case.probe(limit, answer.micro_batch, answer.accumulation_steps);
        let plan = (answer.micro_batch, answer.accumulation_steps);
        assert!(
            case.leaves(limit, plan, share.unwrap()),
            "{at}, but {:?}",
            report.verdict
        );
        assert_eq!(
            report.peak_reserved_bytes, answer.peak_reserved_bytes,
            "{at}"
        );
        assert!(answer.micro_batch <= answer.max_batch_steady, "{at}");
    }
    answer
}

fn inference_of_resnet18() -> Case {
    let training = json!({"precision": "fp16", "mode": "inference"});
    let request =
        json!({"model": {"preset": "resnet18"}, "training": training, "device": "sim:t4"});
    Case::new(request, None)
}

/// Convolutions and a classifier that holds most of the parameters.
fn layers(device: &str, training: &Value) -> Case {
    let layers = json!([
        {"type": "conv2d", "out_channels": 32, "kernel_size": 3, "padding": 1},
        {"type": "batch_norm2d"},
        {"type": "relu"},
        {"type": "max_pool2d", "kernel_size": 2},
        {"type": "flatten"},
        {"type": "linear", "out_features": 512},
        {"type": "relu"},
        {"type": "linear", "out_features": 10},
    ]);
    let model = json!({"layers": layers, "input": {"shape": [3, 64, 64]}, "loss": "cross_entropy"});
    let request = json!({"model": model, "training": training, "device": device});
    Case::new(request, None)
}

#[test]
fn what_fits_with_headroom_is_recommended_under_every_limit() {
    let bare = |training: Value, device: &str| json!({"training": training, "device": device});
    let cases = [
        (inference_of_resnet18(), 64..=768),
        (
            Case::new(
                bare(json!({"precision": "amp_fp16"}), "sim:a10"),
                Some("cifarnet"),
            ),
            64..=640,
        ),
        (
            Case::new(bare(json!({"optimizer": "adam"}), "sim:h200"), Some("mlp")),
            64..=640,
        ),
        (
            Case::new(
                bare(json!({"precision": "amp_bf16"}), "sim:l4"),
                Some("gpt2-tiny-table"),
            ),
            64..=640,
        ),
        (layers("sim:rtx3090", &json!({"accumulation": 3})), 64..=640),
        (layers("sim:t4", &json!({"mode": "inference"})), 64..=640),
    ];
    for (case, limits) in cases {
        for limit in limits.step_by(64) {
            check(&case, limit * MIB, None);
        }
    }
}

#[test]
fn a_target_that_a_divisor_makes_is_made_exactly() {
    let sgd = json!({"optimizer": "sgd"});
    let tiny = json!({"training": {"optimizer": "adamw"}, "device": "sim:l4"});
    let cases = [
        (layers("sim:t4", &json!({})), [700, 900]),
        (layers("sim:h200", &sgd), [450, 1100]),
        (Case::new(tiny, Some("gpt2-tiny-table")), [100, 420]),
    ];
    for (case, limits) in cases {
        for limit in limits.map(|limit| limit * MIB) {
            for target in [1, 30, 64, 97, 1009, 4096] {
                let answer = check(&case, limit, Some(target));
                let share = share_kept(&answer).unwrap_or(0.0);
                let mut divisors = (1..=target).filter(|divisor| target % divisor == 0);
                let would_do =
                    |divisor: u64| case.leaves(limit, (divisor, target / divisor), share);
                assert!(
                    answer.shortfall == 0 && answer.micro_batch > 0
                        // Or it says how, and that it takes much longer.
                        || answer.exactly.is_some_and(|it| it.micro_batch * it.accumulation_steps == target)
                        || !divisors.any(would_do),
                    "{} in {} MiB misses {target}: {answer:?}",
                    case.request,
                    limit / MIB
                );
            }
        }
    }
}

#[test]
fn batches_that_retry_below_the_largest_do_not_hide_those_that_do_not() {
    // The largest without retries is 2736, and 2530 to 2710 retry.
    let answer = check(&inference_of_resnet18(), 15_010_365_440, None);

    assert!(answer.micro_batch > 2400, "{answer:?}");
    assert_eq!(answer.missing_bytes, None);
}

#[test]
fn maxima_measured_without_gradients_do_not_rule_out_a_divisor() {
    // Without gradients of earlier micro-steps 11 samples run, and with them 8 do not leave headroom. Between 6
    // and 11, no other number divides the targets.
    let request = json!({"training": {"optimizer": "adamw"}, "device": "sim:h200"});
    let case = Case::new(request, Some("bert-seq128"));
    for target in [32, 256] {
        let answer = check(&case, 2528 * MIB, Some(target));

        assert_eq!((answer.micro_batch, answer.shortfall), (4, 0), "{answer:?}");
        let (hard, without_retries) = (answer.max_batch, answer.max_batch_without_retries);
        let verdict = |batch| case.probe(2528 * MIB, batch, 4).verdict;
        assert_eq!(verdict(without_retries), Verdict::Fits);
        assert_ne!(verdict(without_retries + 1), Verdict::Fits);
        assert_ne!(verdict(hard), Verdict::OutOfMemory);
        assert_eq!(verdict(hard + 1), Verdict::OutOfMemory);
    }
}

#[test]
fn the_maxima_of_a_fit_that_accumulates_are_those_of_its_probes() {
    let case = layers("sim:rtx3090", &json!({"accumulation": 5}));
    let limit = 600 * MIB;

    let answer = case.fit(limit, None);

    let verdict = |batch| {
        let request = case.parse(limit, &json!({}), None);
        engine()
            .probe(&request, batch, Detail::Full, &Cancel::NEVER)
            .unwrap()
            .verdict
    };
    let (hard, without_retries) = (answer.max_batch, answer.max_batch_without_retries);
    assert_eq!(answer.accumulation_steps, 5);
    assert_eq!(verdict(without_retries), Verdict::Fits);
    assert_ne!(verdict(without_retries + 1), Verdict::Fits);
    assert_eq!(verdict(hard + 1), Verdict::OutOfMemory);
}

#[test]
fn what_several_ranks_need_in_addition_is_said() {
    let case = layers("sim:t4", &json!({}));
    let mut ranks = Case::new(case.request.clone(), None);
    ranks.request["world_size"] = json!(8);

    let (one, eight) = (case.fit(1024 * MIB, None), ranks.fit(1024 * MIB, None));

    // 3 * 32 * 9 + 32, 2 * 32, 32768 * 512 + 512, 512 * 10 + 10 parameters of four bytes, in buckets once more.
    assert!(eight.max_batch < one.max_batch);
    let said = |words: &str| eight.notes.iter().any(|note| note.contains(words));
    assert!(said("8 ranks train under DistributedDataParallel"));
    assert!(said("each rank keeps 1.58 GiB outside the allocator"));
    assert!(!one.notes.iter().any(|note| note.contains("ranks")));
}
