//! Files of recordings.

use std::fs;
use std::path::Path;

use batchfit::recorded::{Steps, read};
use batchfit::replay::Bounds;

use super::{parsed, recording, text};

#[test]
fn what_is_written_is_read_again() {
    let recorded = recording("gpt2-fp32-adamw", 2);

    assert_eq!(
        parsed(&recorded.to_text()).unwrap().to_text(),
        recorded.to_text()
    );

    let lines = [
        "p train.py:12 forward",
        "a 512 0 0",
        "s",
        "a 100 3",
        "f 1",
        "f 0",
    ];
    let text = text(3, &lines.map(str::to_owned));
    let read = parsed(&text).unwrap();
    assert_eq!((read.batch, read.accumulation, read.len()), (3, 1, 4));
    let steps = Steps::learn(vec![read.clone()]).unwrap();
    assert_eq!(&*steps.program.tensors[0].label, "train.py:12 forward");
    assert_eq!(
        (
            steps.program.construction.len(),
            steps.program.tensors[1].stream
        ),
        (1, 3)
    );
    assert_eq!(parsed(&read.to_text()).unwrap().to_text(), read.to_text());
}

#[test]
fn traces_and_snapshots_are_recordings_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let trace = |batch: u64, size: u64| {
        format!(
            "# {{\"batch\": {batch}, \"total\": 1000000000}}\n# action addr size stream\nalloc 10 {size} 0\nalloc 20000 8 7\n\
             free_requested 10 {size} 0\nfree_completed 10 {size} 0\n"
        )
    };
    let small = parsed(&trace(2, 200)).unwrap();
    let large = parsed(&trace(4, 400)).unwrap();
    let steps = Steps::learn(vec![small, large]).unwrap();
    assert_eq!(steps.program.bytes_at(10)[0].0, 1000);
    assert_eq!(&*steps.program.tensors[0].label, "line 3");
    assert_eq!(steps.total.unwrap().0, 1_000_000_000);

    for name in ["complete", "late-and-whole"] {
        let file = fs::read(root.join(format!("snapshots/{name}.pickle.gz"))).unwrap();
        let error = read(&file, None, Bounds::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--batches"), "{error}");
        let recorded = read(&file, Some(16), Bounds::default()).unwrap();
        assert_eq!(recorded.batch, 16, "{name}");
        assert!(recorded.len() > 100, "{name}");
    }
    for name in ["started-late", "overrun"] {
        let file = fs::read(root.join(format!("snapshots/{name}.pickle.gz"))).unwrap();
        let error = read(&file, Some(16), Bounds::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("ran out of memory at device_traces[0]["),
            "{error}"
        );
    }
}

#[test]
fn memory_is_named_by_the_line_of_python_that_asked_for_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/snapshots");
    let file = fs::read(root.join("complete.pickle.gz")).unwrap();
    let recorded = read(&file, Some(16), Bounds::default()).unwrap();
    let steps = Steps::learn(vec![recorded]).unwrap();

    let named = steps
        .program
        .tensors
        .iter()
        .filter(|tensor| tensor.label.contains(".py:"));
    assert!(2 * named.count() > steps.program.tensors.len());
}

#[test]
fn a_recording_that_starts_late_starts_with_the_segments_that_were_there() {
    use batchfit::alloc::Settings;
    use batchfit::device::sim::{Card, SimulatedLauncher};
    use batchfit::probe::{Detail, Evidence, Probe, Resources, Verdict};
    use batchfit::replay;
    use batchfit::units::Bytes;

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/snapshots");
    let file = fs::read(root.join("late-and-whole.pickle.gz")).unwrap();
    let recording = replay::read(&file, Bounds::default()).unwrap();
    let there = recording.initial.reserved();
    assert!(there > Bytes::ZERO);

    let steps = Steps::learn(vec![read(&file, Some(1), Bounds::default()).unwrap()]).unwrap();
    let mut allocator = Card::find("h200")
        .unwrap()
        .memory()
        .allocator(&Settings::default(), Bytes::gib(100));
    let probe = Probe {
        program: &steps.program,
        batch: 1,
        steps: 1,
        detail: Detail::Verdict,
    };
    let report = probe.run(&mut Resources {
        allocator: &mut allocator,
        launcher: &mut SimulatedLauncher::default(),
        evidence: Evidence::Recorded,
    });

    let replayed = replay::replay(&recording, &replay::Asked::default()).unwrap();
    assert_eq!(report.verdict, Verdict::Fits);
    assert_eq!(report.peak_reserved_bytes, replayed.stats.peak_reserved().0);
}
