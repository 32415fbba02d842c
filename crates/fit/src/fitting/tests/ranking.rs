//! Several variants: which is recommended, and what is told of the others.

use super::script::*;
use crate::FitResult;
use crate::compile::Recomputed;
use crate::fitting::answer::cost;
use crate::fitting::engine::FitSpec;
use crate::model::{Checkpointing, Compare, Optimizer, Precision, Variant};

fn adamw() -> Variant {
    Variant::default()
}

fn checkpointed(variant: &Variant) -> Variant {
    Variant {
        checkpointing: Checkpointing::PerBlock,
        ..variant.clone()
    }
}

fn of(variants: &[Variant; 4], target_batch: Option<u64>) -> FitSpec<'static> {
    let mut question = question();
    question.request.to_mut().variants = variants.to_vec();
    question.request.to_mut().target_batch = target_batch;
    question
}

/// What is said of the other variants.
fn last_note(found: &FitResult) -> &str {
    found.recommendation.notes.last().unwrap()
}

/// Each variant by its optimizer, whether it is checkpointed, and its micro-batch.
fn order(found: &FitResult) -> Vec<(Optimizer, bool, u64)> {
    let variants = found.variants.iter();
    variants
        .map(|variant| {
            let is_checkpointed = variant.training.checkpointing != Checkpointing::None;
            let micro_batch = variant.recommendation.micro_batch;
            (variant.training.optimizer, is_checkpointed, micro_batch)
        })
        .collect()
}

fn all() -> [Variant; 4] {
    [adamw(), checkpointed(&adamw()), sgd(), checkpointed(&sgd())]
}

#[test]
fn variants_without_checkpoints_come_first_and_of_those_the_optimizer_that_is_listed_first() {
    let mut question = of(&all(), None);

    let found = fit(&question, &mut simulated(), None);

    let [adamw, checkpointed_adamw, sgd, checkpointed_sgd] = [
        (Optimizer::Adamw, false, 78),
        (Optimizer::Adamw, true, 156),
        (Optimizer::Sgd, false, 98),
        (Optimizer::Sgd, true, 196),
    ];
    let listed = [adamw, checkpointed_adamw, sgd, checkpointed_sgd];
    assert_eq!(order(&found), listed);
    assert_eq!(found.recommendation, found.variants[0].recommendation);
    assert_eq!(found.variants[0].cost, None);
    let cost = found.variants[1].cost.as_deref();
    assert_eq!(cost, Some("recomputes 8 blocks"));
    assert!((found.variants[1].recomputes - 0.9).abs() < f64::EPSILON);
    assert_eq!(
        last_note(&found),
        "with checkpointing (per_block) it could be a micro-batch of 156 instead of 78, but 90% of the forward \
         pass's operations would run twice"
    );

    question.request.to_mut().compare = Compare::AcrossOptimizers;
    let found = fit(&question, &mut simulated(), None);
    let largest = [sgd, adamw, checkpointed_sgd, checkpointed_adamw];
    assert_eq!(order(&found), largest);
}

#[test]
fn accumulation_comes_before_checkpoints_where_both_make_the_target() {
    let question = of(&all(), Some(1024));

    let found = fit(&question, &mut simulated(), None);

    assert_eq!(order(&found)[0], (Optimizer::Adamw, false, 64));
    assert_eq!(found.recommendation.shortfall, 0);
    let said = last_note(&found);
    assert!(
        said.contains("it could be 8 steps of 128 instead of 16 of 64"),
        "{said}"
    );
}

#[test]
fn checkpoints_are_recommended_where_nothing_fits_without() {
    let question = of(&all(), None);
    let mut simulated = simulated();
    simulated.per_sample = 900;

    let found = fit(&question, &mut simulated, None);

    let adamw = Optimizer::Adamw;
    assert_eq!(order(&found)[..2], [(adamw, true, 1), (adamw, false, 0)]);
    assert!(!notes(&found.recommendation, "with checkpointing"));
}

#[test]
fn the_next_optimizer_is_recommended_where_the_first_does_not_fit() {
    let question = of(&all(), None);
    let mut simulated = simulated();
    // 1100 MiB beside the activations, and 100 to be had by retries alone; AdamW keeps 200 more.
    simulated.fixed = 900;

    let found = fit(&question, &mut simulated, None);

    assert_eq!(order(&found)[0], (Optimizer::Sgd, false, 18));
    assert_eq!(
        last_note(&found),
        "`adamw`, the optimizer named first, fits nothing: the next one is recommended"
    );
}

#[test]
fn probes_name_their_variant_by_its_rank_and_say_how_they_accumulated() {
    let mut variants = all();
    variants.swap(0, 1);
    let question = of(&variants, Some(1024));

    let found = fit(&question, &mut simulated(), None);

    for probe in &found.probes {
        let variant = &found.variants[probe.variant as usize];
        let halved = variant.training.checkpointing != Checkpointing::None;
        let state = u64::from(variant.training.optimizer != Optimizer::Sgd) * 200;
        let needed = 100 + state + probe.report.batch * if halved { 5 } else { 10 };
        let needed = (needed * MIB).min(limit(&question).0);
        assert_eq!(probe.report.peak_allocated_bytes, needed);
        assert_eq!(probe.accumulation, 4);
    }
    assert!(found.probes.iter().any(|probe| probe.variant == 3));
}

#[test]
fn costs_are_those_beside_memory() {
    let blocks = Recomputed {
        calls: 24,
        operations: 97,
        of_operations: 100,
    };
    let one = Recomputed { calls: 1, ..blocks };
    let none = Recomputed::default();
    let per_block = Checkpointing::PerBlock;
    let modules = Checkpointing::Modules(vec!["h.*".into()]);
    let of = |precision, checkpointing: &Checkpointing, recomputed| {
        let variant = Variant {
            precision,
            checkpointing: checkpointing.clone(),
            ..Variant::default()
        };
        cost(&variant, recomputed).unwrap_or_default()
    };
    let plain = &Checkpointing::None;

    assert_eq!(of(Precision::Fp32, plain, none), "");
    assert_eq!(of(Precision::AmpBf16, plain, none), "");
    assert_eq!(of(Precision::AmpFp16, plain, none), "loss scaling");
    assert_eq!(of(Precision::Bf16, plain, none), "weights in bf16");
    assert_eq!(
        of(Precision::AmpFp16, &per_block, blocks),
        "recomputes 24 blocks, loss scaling"
    );
    assert_eq!(of(Precision::Fp32, &modules, one), "recomputes 1 module");
}
