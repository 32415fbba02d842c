//! The properties of `tests/it/properties/alloc`, on steps that are read from bytes.
//!
//! Three bytes set the stage (settings, limit, moods of the device); every four after them are a step.
#![no_main]

use batchfit::units::Bytes;
use libfuzzer_sys::fuzz_target;
use stage::{Moody, SETTINGS, Stage, Step};

#[path = "../../it/properties/alloc/stage.rs"]
mod stage;

fuzz_target!(|bytes: &[u8]| {
    let Some((&[settings, limit, moods], steps)) = bytes.split_first_chunk() else {
        return;
    };
    let settings = SETTINGS[settings as usize % SETTINGS.len()];
    let limit = (limit > 0).then(|| Bytes::mib(u64::from(limit) * 2));
    let refusals = (0..8).map(|bit| moods >> bit & 1 == 1).collect();
    let mut stage = Stage::new(Moody::new(Bytes::mib(400), refusals), settings, limit);
    for step in steps.as_chunks().0 {
        stage.play_checked(&read(*step));
    }
    stage.finish();
});

fn read([kind, a, b, c]: [u8; 4]) -> Step {
    let block = u16::from_le_bytes([a, b]);
    let stream = c % 4;
    match kind {
        // Sizes up to 64 MiB, and absurd ones.
        0..100 => Step::Alloc {
            stream: if kind < 80 { 0 } else { kind % 4 },
            size: match a {
                0..27 => ((256 + u64::from(b)) << a >> 8).saturating_add(u64::from(c % 3)).saturating_sub(1).max(1),
                27 => u64::MAX << (c % 64),
                _ => (u64::from(b) << 8 | u64::from(c)) * 512 + 1,
            },
        },
        100..200 => Step::Free(block),
        200..220 => Step::RecordStream { block, stream },
        220..230 => Step::Synchronize(stream),
        230..236 => Step::EmptyCache,
        236..244 => Step::Change(a),
        244..252 => Step::Limit((a > 0).then_some(block % 512)),
        252..=255 => Step::ResetPeaks,
    }
}
