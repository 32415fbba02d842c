//! Recordings that are replayed as the service does it.

use batchfit::alloc::MemoryLimit;
use batchfit::replay::{ReplayOptions, Bounds, pickle, read, replay};
use batchfit::units::Bytes;

const BOUNDS: Bounds = Bounds {
    mib: 1,
    events: 10_000,
    pickle: pickle::Bounds {
        bytes: 1 << 20,
        depth: 32,
    },
};

/// Reads a file and replays it as recorded, and under other conditions.
pub fn play(file: &[u8]) {
    let Ok(recording) = read(file, BOUNDS) else {
        return;
    };
    let others = ReplayOptions {
        limit: Some(MemoryLimit::Bytes(Bytes::mib(64))),
        settings: Some(
            "expandable_segments:True"
                .parse()
                .expect("they are settings"),
        ),
        compare: recording.entries.len() < 64,
        events: true,
    };
    for asked in [ReplayOptions::default(), others] {
        if let Ok(replay) = replay(&recording, &asked) {
            assert!(serde_json::to_string(&replay.report).is_ok());
        }
    }
}
