//! Whatever the bytes: an answer or an error, never a panic.

use batchfit::replay::pickle::{self, Pickle};
use batchfit::replay::{Bounds, ReplayOptions, read, replay};
use batchfit::report::replay_svg;
use proptest::prelude::*;

use super::decompressed;

/// Small, so that a test that runs into it is quick.
const BOUNDS: Bounds = Bounds {
    mib: 4,
    events: 1 << 16,
    pickle: pickle::Bounds {
        bytes: 16 << 20,
        depth: 32,
    },
};

fn answer(bytes: &[u8]) {
    if let Ok(recording) = read(bytes, BOUNDS)
        && let Ok(replay) = replay(&recording, &ReplayOptions::default())
    {
        let _ = replay_svg(&replay.report);
    }
}

/// A text that is nearly a trace.
fn trace() -> impl Strategy<Value = String> {
    let action = prop::sample::select(vec![
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
    ]);
    let address = prop::sample::select(vec![
        0_u64,
        0x20_0000,
        0x40_0000,
        0x200_0000,
        u64::MAX - 511,
    ]);
    let size = prop::sample::select(vec![
        0_u64,
        1,
        512,
        1 << 20,
        (1 << 20) + 1,
        2 << 20,
        20 << 20,
        1 << 40,
        (1 << 60) - 1,
        1 << 63,
        u64::MAX,
    ]);
    let line = (action, address, size, 0..3_u64).prop_map(|(action, address, size, stream)| {
        format!("{action} {address:x} {size} {stream}\n")
    });
    let settings = prop::sample::select(vec![
        "",
        "expandable_segments:True",
        "max_split_size_mb:32,garbage_collection_threshold:0.5",
        "roundup_power2_divisions:8",
    ]);
    (settings, prop::collection::vec(line, 0..40)).prop_map(|(settings, lines)| {
        let header = format!(
            "# {{\"total\": 1099511627776, \"limit\": 536870912, \"alloc_conf\": \"{settings}\"}}\n"
        );
        header + &lines.concat()
    })
}

#[test]
fn a_segment_given_back_after_a_part_of_it_was_unmapped_is_refused() {
    let text = "# {\"total\": 1099511627776, \"limit\": 536870912}\n\
                segment_alloc 0 20971520 0\nsegment_unmap 0 1 0\nsegment_free 0 20971520 0\n";

    let refused = read(text.as_bytes(), BOUNDS).unwrap_err().to_string();

    assert!(
        refused.contains("after a part of it was unmapped"),
        "{refused}"
    );
}

proptest! {
    #[test]
    fn pickles_of_random_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Pickle::read(&bytes, BOUNDS.pickle);
        let _ = Pickle::read(&[&[0x80, 4], &bytes[..]].concat(), BOUNDS.pickle);
        answer(&bytes);
    }

    #[test]
    fn random_lines_are_replayed_or_refused(text in trace()) {
        answer(text.as_bytes());
    }
}

proptest! {

    /// One byte of a snapshot is another: mostly a number, a size or a state that cannot be.
    #[test]
    fn damaged_snapshots_are_replayed_or_refused(
        name in prop::sample::select(vec!["overrun", "overrun-expandable", "started-late"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = decompressed(&format!("snapshots/{name}.pickle.gz"));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        answer(&bytes);
    }

    #[test]
    fn damaged_traces_are_replayed_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = decompressed("traces/trace-cifarnet-fp32-sgd-b4039.split128gc80.txt.gz");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        answer(&bytes);
    }
}
