//! Files of recordings.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use batchfit::alloc::{Event, PoolKind, Stream};
use batchfit::recorded::{Steps, read};
use batchfit::replay::{self, Bounds, Recording};
use proptest::prelude::*;

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
    let mut allocator =
        Card::find("h200")
            .unwrap()
            .memory()
            .allocator(&Settings::default(), Bytes::gib(100), ());
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

    let replayed = replay::replay(&recording, &replay::ReplayOptions::default()).unwrap();
    assert_eq!(report.verdict, Verdict::Fits);
    assert_eq!(
        report.peak_reserved_bytes,
        replayed.report.peak_reserved_bytes
    );
}

/// A snapshot in batchfit's own format, as a program writes it that has its segments and entries.
fn own(recording: &Recording, batch: u64) -> String {
    let mut lines = vec!["batchfit recording 1".to_owned()];
    lines.push(match recording.settings.to_string() {
        none if none.is_empty() => format!("{{\"batch\":{batch},\"accumulation\":1}}"),
        some => format!("{{\"batch\":{batch},\"accumulation\":1,\"allocator\":{some:?}}}"),
    });
    lines.extend(recording.frames.iter().map(|frame| format!("p {frame}")));
    let mut streams: Vec<Stream> = Vec::new();
    let mut stream = |stream: Stream| {
        let known = streams.iter().position(|known| *known == stream);
        known.unwrap_or_else(|| {
            streams.push(stream);
            streams.len() - 1
        })
    };
    let mut alive = HashMap::new();
    let mut count = 0;
    for segment in &recording.initial.segments {
        let pool = match segment.pool {
            PoolKind::Small => "small",
            PoolKind::Large => "large",
        };
        let more = if segment.is_expandable {
            " expandable"
        } else {
            ""
        };
        lines.push(format!(
            "g {} {} {pool}{more}",
            segment.size.0,
            stream(segment.stream)
        ));
        for used in &segment.used {
            let offset = used.address.0 - segment.address.0;
            let rounded = recording.settings.round_size(used.requested);
            lines.push(if used.size == rounded {
                format!("b {offset} {}", used.requested.0)
            } else {
                format!("b {offset} {} {}", used.requested.0, used.size.0)
            });
            alive.insert(used.address, count);
            count += 1;
        }
    }
    for entry in &recording.entries {
        match entry.event {
            Event::Alloc { address, requested } => {
                let number = stream(entry.stream);
                lines.push(match entry.frame {
                    Some(frame) => format!("a {} {number} {frame}", requested.0),
                    None => format!("a {} {number}", requested.0),
                });
                alive.insert(address, count);
                count += 1;
            }
            Event::FreeCompleted { address, .. } => {
                lines.push(format!("f {}", alive.remove(&address).unwrap()));
            }
            _ => {}
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn a_snapshot_that_starts_late_is_the_same_steps_in_our_format() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/snapshots");
    for name in ["late-and-whole", "complete"] {
        let file = fs::read(root.join(format!("{name}.pickle.gz"))).unwrap();
        let snapshot = read(&file, Some(4), Bounds::default()).unwrap();
        let recording = replay::read(&file, Bounds::default()).unwrap();
        let text = own(&recording, 4);

        let written = parsed(&text).unwrap();

        assert_eq!(text.contains("\ng "), name == "late-and-whole");
        assert_eq!(written.to_text(), snapshot.to_text(), "{name}");
        let digest = |sequence| Steps::learn(vec![sequence]).unwrap().digest;
        assert_eq!(digest(written), digest(snapshot), "{name}");
    }
}

#[test]
fn a_header_says_where_and_how_it_was_recorded() {
    let header = r#"{"batch": 2, "gpu": "NVIDIA H200", "allocator": "expandable_segments:True"}"#;
    let text = format!("batchfit recording 1\n{header}\na 512\n");

    let read = parsed(&text).unwrap();

    assert_eq!(read.gpu.as_deref(), Some("NVIDIA H200"));
    assert_eq!(read.allocator.as_deref(), Some("expandable_segments:True"));
    let again = parsed(&read.to_text()).unwrap();
    assert_eq!(again.to_text(), read.to_text());
    let steps = Steps::learn(vec![read]).unwrap();
    assert_eq!(steps.gpu.as_deref(), Some("NVIDIA H200"));
    assert_eq!(steps.allocator.as_deref(), Some("expandable_segments:True"));
    let long = format!(
        "batchfit recording 1\n{{\"batch\": 2, \"gpu\": {:?}}}\na 1\n",
        "\u{e9}".repeat(5000)
    );
    assert_eq!(parsed(&long).unwrap().gpu.unwrap().len(), 200);
}

/// Segments, each with blocks in use: of each its gap before it and its bytes.
type There = Vec<(bool, bool, u64, Vec<(u64, u64)>)>;

fn there() -> impl Strategy<Value = There> {
    let small = prop::collection::vec((0..600_000_u64, 1..700_000_u64), 0..5);
    let large = prop::collection::vec((0..3_000_000_u64, 1..9_000_000_u64), 0..5);
    let segment = prop_oneof![
        (Just(true), any::<bool>(), 0..3_u64, small),
        (Just(false), any::<bool>(), 0..3_u64, large),
    ];
    prop::collection::vec(segment, 0..8)
}

proptest! {
    /// What is there takes as much as it says, and all of it can be freed.
    #[test]
    fn what_is_there_is_asked_for(there in there()) {
        use batchfit::alloc::Settings;
        use batchfit::device::sim::{Card, SimulatedLauncher};
        use batchfit::probe::{Detail, Evidence, Probe, Resources};
        use batchfit::units::Bytes;

        let (mut lines, mut count, mut reserved, mut used) = (Vec::new(), 0, 0, 0);
        // They are taken for ordinary ones here, of other sizes.
        let any_expandable = there.iter().any(|(is_small, is_expandable, _, _)| *is_expandable && !is_small);
        for (is_small, is_expandable, stream, blocks) in there {
            let size: u64 = if is_small { 2 << 20 } else { 64 << 20 };
            let (pool, is_expandable) = (if is_small { "small" } else { "large" }, is_expandable && !is_small);
            lines.push(format!("g {size} {stream} {pool}{}", if is_expandable { " expandable" } else { "" }));
            reserved += size;
            let mut end = 0_u64;
            for (gap, bytes) in blocks {
                // As PyTorch places blocks: those of the large pool have more than 1 MiB.
                let (offset, bytes) = (end + gap.next_multiple_of(512), if is_small { bytes } else { bytes + (1 << 20) });
                end = offset + bytes.next_multiple_of(512);
                if end > size {
                    break;
                }
                lines.push(format!("b {offset} {bytes}"));
                used += bytes;
                count += 1;
            }
        }
        lines.push("a 512".to_owned());
        lines.extend((0..count).map(|number| format!("f {number}")));
        let read = parsed(&text(1, &lines)).unwrap();
        prop_assert_eq!(parsed(&read.to_text()).unwrap().to_text(), read.to_text());
        let steps = Steps::learn(vec![read]).unwrap();
        let mut allocator = Card::find("h200").unwrap().memory().allocator(&Settings::default(), Bytes::gib(100), ());
        let probe = Probe { program: &steps.program, batch: 1, steps: 1, detail: Detail::Verdict };
        let report = probe.run(&mut Resources {
            allocator: &mut allocator,
            launcher: &mut SimulatedLauncher::default(),
            evidence: Evidence::Recorded,
        });
        prop_assert!(report.peak_allocated_bytes >= used);
        prop_assert!(report.peak_reserved_bytes >= used);
        prop_assert!(any_expandable || (reserved..=reserved + (2 << 20)).contains(&report.peak_reserved_bytes));
    }
}
