//! Soaks count steps that can do nothing new; they say what carrying them out says.

use batchfit::alloc::Settings;
use batchfit::device::sim::{Card, SimulatedLauncher};
use batchfit::limits::Cancel;
use batchfit::model::{Mode, Variant};
use batchfit::probe::{Evidence, Resources, Shape, Soak, SoakReport};
use batchfit::program::Program;
use batchfit::units::Bytes;

use crate::compile::program;

/// Steps of several shapes in so much memory, of which equal ones are told to be the same shape, or not.
fn soaked(
    programs: &[Program; 2],
    (settings, limit): (&Settings, Bytes),
    steps: &[(usize, u64)],
    are_told: bool,
) -> SoakReport {
    let mut shapes: Vec<Shape<'_>> = Vec::new();
    let mut places = Vec::new();
    for (which, batch) in steps {
        let program = &programs[*which];
        let is_known = |shape: &Shape<'_>| {
            are_told && std::ptr::eq(shape.program, program) && shape.batch == *batch
        };
        let known = shapes.iter().position(is_known);
        places.push(known.unwrap_or(shapes.len()));
        if known.is_none() {
            let batch = *batch;
            shapes.push(Shape { program, batch });
        }
    }
    let soak = Soak {
        shapes: &shapes,
        steps: &places,
    };
    let mut allocator = Card::find("t4")
        .unwrap()
        .memory()
        .allocator(settings, limit, ());
    let mut launcher = SimulatedLauncher::default();
    let mut resources = Resources {
        allocator: &mut allocator,
        launcher: &mut launcher,
        evidence: Evidence::Simulated,
    };
    soak.run(&mut resources, &Cancel::NEVER).unwrap()
}

/// Batches in an order that looks random, each as often as others, of training and of validation.
fn steps(count: u64) -> Vec<(usize, u64)> {
    let mut state: u64 = 7;
    let draw = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let [which, batch] = [(state >> 40) % 5, (state >> 50) % 5];
        (usize::from(which == 0), 1 << batch)
    };
    std::iter::once((0, 8))
        .chain((1..count).map(draw))
        .collect()
}

#[test]
fn steps_that_are_counted_are_steps_that_happened() {
    let validation = Variant {
        mode: Mode::Inference,
        ..Variant::default()
    };
    let programs = ["gpt2-tiny-table", "mobilenetv2"].map(|model| {
        [
            program(model, &Variant::default()),
            program(model, &validation),
        ]
    });
    let all = [
        "",
        "expandable_segments:True",
        "max_split_size_mb:20",
        "garbage_collection_threshold:0.8",
    ];
    let steps = steps(150);
    let mut verdicts = std::collections::BTreeSet::new();
    for programs in &programs {
        let ample = Bytes::gib(14);
        let needed = soaked(programs, (&Settings::default(), ample), &steps, true);
        for settings in all.map(|text| text.parse::<Settings>().unwrap()) {
            for percent in [70, 90, 97, 110] {
                let limit = Bytes(needed.peak_reserved_bytes / 100 * percent);

                let [counted, carried_out] = [true, false]
                    .map(|are_told| soaked(programs, (&settings, limit), &steps, are_told));

                assert_eq!(counted, carried_out, "{settings:?} within {limit}");
                verdicts.insert(format!("{:?}", counted.verdict));
            }
        }
    }
    assert!(verdicts.len() >= 3, "{verdicts:?}");
}
