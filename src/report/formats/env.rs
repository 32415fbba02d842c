//! For a shell: `eval $(batchfit fit ... --format env)`.

use super::Answer;

/// Five assignments. Only numbers, so that nothing in them means anything to a shell.
pub fn env(answer: &Answer) -> String {
    let best = answer.best();
    let values = [
        ("MICRO_BATCH", best.micro_batch),
        ("ACCUMULATION_STEPS", best.accumulation_steps),
        ("GLOBAL_BATCH", best.global_batch),
        ("WORLD_SIZE", answer.world_size),
        ("PEAK_RESERVED_BYTES", best.peak_reserved_bytes),
    ];
    let line = |(name, value): (&str, u64)| format!("export BATCHFIT_{name}={value}\n");
    values.into_iter().map(line).collect()
}
