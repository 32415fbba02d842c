//! For a shell: `eval "$(batchfit fit ... --format env)"`.

use super::Answer;

/// What is assigned.
const NAMES: [&str; 5] = [
    "MICRO_BATCH",
    "ACCUMULATION_STEPS",
    "GLOBAL_BATCH",
    "WORLD_SIZE",
    "PEAK_RESERVED_BYTES",
];

/// Five assignments. Only numbers, so that nothing in them means anything to a shell.
pub fn env(answer: &Answer) -> String {
    let best = answer.best();
    if best.micro_batch == 0 {
        return no_env();
    }
    let values = [
        best.micro_batch,
        best.accumulation_steps,
        best.global_batch,
        answer.world_size,
        best.peak_reserved_bytes,
    ];
    let line = |(name, value): (&str, u64)| format!("export BATCHFIT_{name}={value}\n");
    NAMES.into_iter().zip(values).map(line).collect()
}

/// What a shell evaluates where there is no answer: what an earlier one left is gone, and the evaluation fails. In one line, since
/// `$(...)` without quotes makes one of several.
pub fn no_env() -> String {
    let names = NAMES.map(|name| format!("BATCHFIT_{name}"));
    format!("unset {}; false\n", names.join(" "))
}
