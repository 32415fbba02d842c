#!/bin/bash
# How long a debug build takes after an edit, in wall-clock and processor seconds: tests/bench/edits.sh
#
# Each edit adds a line to a function's file and is taken back; the builds before and after it are not counted.
set -euo pipefail
cd "$(dirname "$0")/../.."
export TIMEFORMAT="%R %U %S"

edits=(
    "flag src/cli/arguments/question.rs"
    "HTTP crates/server/src/http/resources/fits.rs"
    "search crates/fit/src/search/state.rs"
    "operator crates/torch/src/ops/softmax/run.rs"
)

saved=$(mktemp)
restore() { [ ! -s "$saved" ] || { cat "$saved" > "$file"; : > "$saved"; }; }
trap restore EXIT

cargo build --quiet --locked
printf '%-10s %8s %10s\n' edit 'wall, s' 'processor, s'
for edit in "${edits[@]}"; do
    read -r name file <<< "$edit"
    cp "$file" "$saved"
    printf '\n/// Edited.\npub const fn edited_%s() -> u32 {\n    1\n}\n' "$RANDOM" >> "$file"
    read -r wall user system <<< "$({ time cargo build --quiet --locked 2> /dev/null; } 2>&1)"
    printf '%-10s %8.1f %10.1f\n' "$name" "$wall" "$(awk "BEGIN { print $user + $system }")"
    restore
    cargo build --quiet --locked
done
