//! What follows from recordings of public cases, made on an H200.

use batchfit::alloc::Settings;
use batchfit::device::sim::{Card, SimulatedLauncher};
use batchfit::probe::{Detail, Evidence, Probe, Resources, Verdict};
use batchfit::program::Program;
use batchfit::recorded::{Check, Steps};
use batchfit::units::Bytes;

use super::{parsed, recording, recordings, text};
use crate::sample::sample;

/// Whether a batch runs without a retry under a limit in GiB, and the most bytes allocated.
fn run(program: &Program, batch: u64, gib: u64) -> (Verdict, u64) {
    let card = Card::find("h200").unwrap();
    let mut allocator = card
        .memory()
        .allocator(&Settings::default(), Bytes::gib(gib), ());
    let probe = Probe {
        program,
        batch,
        steps: 1,
        detail: Detail::Verdict,
    };
    let report = probe.run(&mut Resources {
        allocator: &mut allocator,
        launcher: &mut SimulatedLauncher::default(),
        evidence: Evidence::Recorded,
    });
    (report.verdict, report.peak_allocated_bytes)
}

#[test]
fn the_largest_batch_without_retries_is_pytorchs() {
    // By real training steps on an H200: tests/golden/recorded/truth.json.
    for (case, batches, gib, largest) in [
        ("resnet18-fp32-sgd", &[25, 50, 101][..], 8, 202),
        ("bert-ampfp16-adamw-seq512", &[6, 13, 26], 12, 52),
        ("gpt2-ampbf16-adamw", &[2, 4, 8], 40, 27),
        ("vit-ampbf16-adamw", &[8, 9], 12, 144),
        ("mobilenetv2-ampfp16-sgd", &[22, 45, 90], 8, 180),
        ("mlp-fp32-adam", &[64, 128, 256], 8, 20992),
        ("resnet50-fp16-inference", &[16, 17, 32], 4, 534),
    ] {
        let steps = Steps::learn(recordings(case, batches)).unwrap();

        let at = run(&steps.program, largest, gib).0;
        let above = run(&steps.program, largest + 1, gib).0;

        assert_eq!(at, Verdict::Fits, "{case} {largest}");
        assert_ne!(above, Verdict::Fits, "{case} {}", largest + 1);
    }
}

#[test]
fn one_that_is_left_out_is_predicted() {
    let cases = [
        ("unet-ampbf16-adam", &[2, 3, 4, 8][..]),
        ("bert-ampfp16-adamw-seq128-ckpt", &[9, 32, 125, 251]),
        ("cifarnet-ampfp16-sgd", &[64, 65, 128, 256]),
        ("llama1b-ampbf16-adamw-ckpt", &[2, 4, 7]),
    ];
    for (case, batches) in sample(2, cases) {
        let check = Check::of(recordings(case, batches), None).unwrap();

        assert_eq!(check.predictions.len(), batches.len());
        for one in check.predictions {
            assert!(one.bytes_at_peak >= 0.99, "{case}: {one:?}");
            assert_eq!(
                one.peak_requested_bytes, one.predicted_peak_requested_bytes,
                "{case} {}",
                one.batch
            );
        }
    }
}

#[test]
fn a_recorded_batch_comes_out_as_it_was_recorded() {
    // The second and third allocate other scratch memory than the first.
    let all = recordings("resnet18-fp32-sgd", &[8, 25, 101]);
    let together = Steps::learn(all.clone()).unwrap();

    for alone in all {
        let batch = alone.batch;
        let alone = Steps::learn(vec![alone]).unwrap();
        let scratch = together.program.convolutions.len();

        assert!(scratch > 0, "layers of a ResNet are recognized");
        assert_eq!(
            run(&alone.program, batch, 64),
            run(&together.program, batch, 64)
        );
        assert_eq!(together.uncertain_at_peak(batch), Bytes::ZERO);
    }
}

#[test]
fn steps_that_accumulate_keep_gradients() {
    let lines = ["a 1000000", "a 500000", "a 2000000", "f 2"].map(str::to_owned);
    let one = parsed(&text(2, &lines)).unwrap();
    let mut other = parsed(&text(4, &lines)).unwrap();
    let steps = Steps::learn(vec![one.clone(), other.clone()]).unwrap();

    let plain = run(&steps.accumulating(1), 4, 1).1;
    let accumulating = run(&steps.accumulating(2), 4, 1).1;

    assert!(accumulating >= plain + 1_500_000, "{accumulating} {plain}");
    other.accumulation = 4;
    let error = Steps::learn(vec![one.clone(), other.clone()]).unwrap_err();
    assert!(error.to_string().contains("micro-steps"), "{error}");
    let recorded = Steps::learn(vec![other]).unwrap();
    assert_eq!(run(&recorded.accumulating(4), 4, 1).1, plain);
}

#[test]
fn frees_in_another_order_and_memory_of_only_some_batches_align() {
    let at = |batch: u64| {
        let own = |lines: &[&str]| {
            lines
                .iter()
                .map(|line| (*line).to_owned())
                .collect::<Vec<_>>()
        };
        let mut lines = own(&["a 4096"]);
        lines.push(format!("a {}", batch * 512));
        lines.push(format!("a {}", batch * 1024));
        if batch > 4 {
            // A kernel splits its work, for batches that are large enough.
            lines.extend(own(&["a 777777", "f 3"]));
        }
        lines.extend(own(if batch == 4 {
            &["f 2", "f 1"]
        } else {
            &["f 1", "f 2"]
        }));
        parsed(&text(batch, &lines)).unwrap()
    };
    let check = Check::of(vec![at(2), at(4), at(8)], None).unwrap();

    assert_eq!(check.alignments[0].unmatched, [0, 0]);
    assert_eq!(check.alignments[1].unmatched, [0, 1]);
    assert_eq!(check.borders.len(), 1);
    assert_eq!(
        (check.borders[0].bytes, &check.borders[0].batches[..]),
        (777_777, &[8][..])
    );
    let steps = Steps::learn(vec![at(2), at(4), at(8)]).unwrap();
    let peak = |batch| run(&steps.program, batch, 1).1;
    assert_eq!(peak(4), 4096 + 4 * 1536);
    // Between two recordings, there is what the larger one has.
    assert!(peak(6) > 500_000);
    assert_eq!(steps.uncertain_at_peak(8), Bytes::ZERO);
    assert!(steps.uncertain_at_peak(16) > Bytes(700_000));
}

#[test]
fn streams_have_memory_of_their_own() {
    let lines = |second: &str| {
        ["a 5000000", "f 0", second, "f 1"]
            .map(str::to_owned)
            .to_vec()
    };
    let reserved = |second: &str| {
        let sequences = vec![
            parsed(&text(1, &lines(second))).unwrap(),
            parsed(&text(2, &lines(second))).unwrap(),
        ];
        let steps = Steps::learn(sequences).unwrap();
        // Two segments of 20 MiB do not fit 32 MiB, unless the cache of the first is given back.
        let card = Card::find("h200").unwrap();
        let mut allocator = card
            .memory()
            .allocator(&Settings::default(), Bytes::mib(64), ());
        let probe = Probe {
            program: &steps.program,
            batch: 2,
            steps: 1,
            detail: Detail::Verdict,
        };
        let report = probe.run(&mut Resources {
            allocator: &mut allocator,
            launcher: &mut SimulatedLauncher::default(),
            evidence: Evidence::Recorded,
        });
        report.peak_reserved_bytes
    };

    assert_eq!(reserved("a 5000000 0"), 20 << 20);
    assert_eq!(reserved("a 5000000 1"), 40 << 20);
}

#[test]
fn recordings_of_other_programs_are_told_apart() {
    let several = vec![
        recording("resnet18-fp32-sgd", 8),
        recording("gpt2-fp32-adamw", 2),
    ];

    let error = Steps::learn(several).unwrap_err().to_string();

    assert!(
        error.contains("not of the same program") && error.contains("line "),
        "{error}"
    );
    // The same model in another precision, whose sizes are at another batch what these are.
    for (one, other) in [
        ("cifarnet-fp32-sgd", "cifarnet-ampfp16-sgd"),
        ("mlp-bf16-adam", "mlp-fp32-adam"),
    ] {
        let mixed = vec![recording(one, 64), recording(other, 256)];
        Steps::learn(mixed).unwrap_err();
    }
    let twice = vec![
        recording("gpt2-fp32-adamw", 2),
        recording("gpt2-fp32-adamw", 2),
    ];
    assert!(
        Steps::learn(twice)
            .unwrap_err()
            .to_string()
            .contains("batch 2")
    );
    assert!(Steps::learn(Vec::new()).is_err());
}
