//! Answers as people read them.

use batchfit::jobs::{
    Environment, FitResult, Headroom, ProbeSummary, Recommendation, VariantResult,
};
use batchfit::model::{Checkpointing, Optimizer, Precision, Variant};
use batchfit::probe::{Evidence, ProbeReport, Verdict};
use batchfit::report::{self, ShownRequest, Style};
use batchfit::units::Bytes;

const GIB: u64 = 1 << 30;

/// Without a word of how to train in the request.
fn fit(model: &str, result: &FitResult, style: &Style) -> String {
    report::fit(model, result, &ShownRequest::default(), style)
}

fn narrow() -> Style {
    Style {
        width: 80,
        ..Style::default()
    }
}

fn recommendation(micro_batch: u64) -> Recommendation {
    Recommendation {
        fits: Some(micro_batch > 0),
        micro_batch,
        accumulation_steps: 1024 / micro_batch.max(1),
        global_batch: 1024,
        shortfall: 0,
        max_batch: micro_batch * 2,
        max_batch_steady: micro_batch + 7,
        max_batch_without_retries: micro_batch + 7,
        peak_allocated_bytes: 20 * GIB,
        peak_reserved_bytes: 22 * GIB,
        limit_bytes: 23 * GIB,
        headroom_bytes: GIB,
        headroom: Headroom::default(),
        limited_by: "activations (94% of the peak); with batch 236 the allocator flushes its cache and retries once, \
                     which takes time"
            .to_owned(),
        why: None,
        evidence: Evidence::Simulated,
        step_ms: None,
        optimizer_step_ms: None,
        samples_per_second: None,
        speed_from: None,
        missing_bytes: None,
        host_bytes: 0,
        exactly: None,
        next_batch: None,
        parallel: None,
        notes: vec![
            format!(
                "{micro_batch} MiB of the limit are left free, because the prediction may be too low: 0.5% for where \
                 the GPU driver places memory"
            ),
            "the same for all".to_owned(),
        ],
    }
}

fn probe(variant: u32, batch: u64) -> ProbeSummary {
    ProbeSummary {
        variant,
        accumulation: 4,
        report: ProbeReport {
            peak_allocated_bytes: 20 * GIB,
            peak_reserved_bytes: 22 * GIB,
            model_allocated_bytes: GIB,
            ..ProbeReport::new(batch, Verdict::Fits, Evidence::Simulated, Bytes::gib(23))
        },
        wall_ms: 1.0,
    }
}

/// Three precisions, four optimizers, with and without checkpoints.
fn twenty_four() -> FitResult {
    let mut variants = Vec::new();
    for optimizer in [
        Optimizer::Adamw,
        Optimizer::Adam,
        Optimizer::SgdMomentum,
        Optimizer::Sgd,
    ] {
        for checkpointing in [Checkpointing::None, Checkpointing::PerBlock] {
            for precision in [Precision::AmpBf16, Precision::AmpFp16, Precision::Fp32] {
                let rank = u32::try_from(variants.len()).unwrap() + 1;
                let recomputes = checkpointing != Checkpointing::None;
                let cost = match (recomputes, precision) {
                    (true, Precision::AmpFp16) => Some("recomputes 24 blocks, loss scaling"),
                    (true, _) => Some("recomputes 24 blocks"),
                    (false, Precision::AmpFp16) => Some("loss scaling"),
                    (false, _) => None,
                };
                variants.push(VariantResult {
                    rank,
                    cost: cost.map(str::to_owned),
                    recomputes: if recomputes { 0.97 } else { 0.0 },
                    pareto: None,
                    training: Variant {
                        precision,
                        optimizer,
                        checkpointing: checkpointing.clone(),
                        ..Variant::default()
                    },
                    recommendation: recommendation(if recomputes { 64 } else { 16 }),
                });
            }
        }
    }
    let probes = (0..24).map(|variant| probe(variant, 16)).collect();
    let environment = Environment {
        batchfit: "0.1.0".to_owned(),
        pytorch: "2.11".to_owned(),
        ..Environment::new("sim:rtx4090", "NVIDIA GeForce RTX 4090")
    };
    FitResult {
        probes,
        assumptions: (1..=3).map(|n| format!("assumption number {n}")).collect(),
        ..FitResult::of(variants, environment)
    }
}

#[test]
fn twenty_four_variants_take_a_screen() {
    let mut many = twenty_four();
    many.assumptions.clear();

    let text = fit("gpt2", &many, &narrow());

    assert!(text.lines().count() <= 49, "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let wider = fit("gpt2", &many, &Style::default());
    assert!(wider.lines().count() <= 46, "{wider}");
    insta::assert_snapshot!(text);
}

#[test]
fn detail_has_every_probe_by_the_rank_of_its_variant() {
    let mut several = twenty_four();
    several.variants.truncate(2);
    several.probes = vec![probe(1, 64), probe(0, 16), probe(0, 17)];

    let text = fit(
        "gpt2",
        &several,
        &Style {
            verbose: true,
            ..narrow()
        },
    );

    insta::assert_snapshot!(text);
}

#[test]
fn one_variant_needs_no_table() {
    let mut one = twenty_four();
    one.variants.truncate(1);
    one.assumptions.clear();

    insta::assert_snapshot!(fit("gpt2", &one, &narrow()));
}

#[test]
fn names_of_any_kind_stay_within_the_width_or_stick_out_whole() {
    let glob = "解像度.*.\u{202e}blocks\u{1b}[2J".repeat(20);
    let mut strange = twenty_four();
    for variant in &mut strange.variants {
        variant.training.checkpointing = Checkpointing::Modules(vec![glob.clone(); 64]);
        variant.recommendation.notes = vec!["x".repeat(300), "words ".repeat(300)];
    }
    for width in [0, 1, 40, 80, 200] {
        for color in [false, true] {
            let style = Style {
                width,
                color,
                verbose: true,
            };

            let text = fit(&"名前 ".repeat(50), &strange, &style);

            assert!(text.contains(&"x".repeat(300)), "{text}");
            let bare = text
                .replace("\u{1b}[1m", "")
                .replace("\u{1b}[2m", "")
                .replace("\u{1b}[0m", "");
            assert!(!bare.contains('\u{1b}'), "{text}");
            assert!(!bare.contains('\u{202e}'), "{text}");
            assert_eq!(bare != text, color);
        }
    }
}
