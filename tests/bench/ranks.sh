#!/bin/sh
# How long answers for many ranks take: GPT-2 and Llama 1B under each strategy, for 8, 64 and 1,024 ranks.
# tests/bench/ranks.sh [BATCHFIT], from the repository's root; target/release/batchfit by default.
set -eu
batchfit=${1:-target/release/batchfit}
elapsed() {
    began=$(date +%s%N)
    "$@" >/dev/null
    echo $((($(date +%s%N) - began) / 1000000))
}
printf '%-10s %6s %8s %8s\n' model ranks strategy ms
for strategy in ddp zero1 fsdp2; do
    for ranks in 8 64 1024; do
        for model in gpt2 llama1b; do
            case $model in
            gpt2) set -- gpt2 --seq-len 1024 --amp bf16 ;;
            llama1b) set -- tests/golden/exported/llama1b-bf16.json.gz --precision bf16 ;;
            esac
            ms=$(elapsed "$batchfit" fit "$@" --on "${ranks}xh100-80g" --parallel "$strategy" --json)
            printf '%-10s %6s %8s %8s\n' "$model" "$ranks" "$strategy" "$ms"
        done
    done
done
