#!/bin/sh
# What only a GPU can answer, in one go of less than eight minutes: the numerics and rates of attention, steps beside
# PyTorch's, public models with their memory, gradients beside PyTorch's, and accesses out of bounds.
# Usage: accept.sh CHECK BATCHFIT GRAPHS OUT [FIRST]
# CHECK is the test binary of `cargo test --release --test gpu --no-run`, GRAPHS a folder of exported public models (see
# public.py), OUT a folder for seven files of results. FIRST, names of public models with commas, are fitted before the
# others. Ends with one line for each part; exits 1 when one of them failed or found no time.
set -u
check=$(realpath "${1:?usage: accept.sh CHECK BATCHFIT GRAPHS OUT [FIRST]}")
batchfit=$(realpath "${2:?}") graphs=$(realpath "${3:?}") out=${4:?} first=${5:-timm-coatnet,timm-volo,timm-tiny_vit,timm-levit}
here=$(dirname "$(realpath "$0")")
mkdir -p "$out"
out=$(realpath "$out")
began=$(date +%s)
# Kernels are compiled once for all parts.
export XDG_CACHE_HOME="${XDG_CACHE_HOME:-/tmp/batchfit-accept}" PYTHONUNBUFFERED=1
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
[ -z "$wheels" ] || export LD_LIBRARY_PATH="$wheels/cudnn/lib:$wheels/cu13/lib:${LD_LIBRARY_PATH:-}"

# part NAME SECONDS COMMAND...: its output goes to OUT/NAME.log, and its exit status behind it.
part() {
    name=$1 seconds=$2
    shift 2
    timeout -k 5 "$seconds" "$@" >>"$out/$name.log" 2>&1
    status=$?
    echo "$(($(date +%s) - began)) s: $name ended with $status" | tee -a "$out/$name.log"
    [ $status -eq 0 ] || echo "$name" >>"$out/.failed"
}

rm -f "$out/.failed"
python3 -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' || exit 1

# Alone on the card, because they are timed. A run of no test succeeds as well: the counts are in the logs.
part kernels 90 "$check" --ignored --test-threads=1 attention:: sums:: --nocapture
part kernels 60 "$check" --ignored --exact speed::rate_of_attention --nocapture
part timed 240 python3 "$here/timed.py" "$check" "$graphs" --out "$out/timed.jsonl"

# Side by side, until eight minutes are over.
left=$((470 - $(date +%s) + began))
part numerics "$left" python3 "$here/numerics.py" "$check" --jobs 3 \
    --only coatnet,attention,levit,volo,swinv2,gpt2,llama,t5 &
numerics=$!
(
    part public "$left" python3 "$here/public.py" "$batchfit" "$graphs" --out "$out/public.jsonl" --jobs 6 --seconds 30 --only "$first"
    left=$((470 - $(date +%s) + began))
    [ $left -lt 30 ] ||
        part public "$left" python3 "$here/public.py" "$batchfit" "$graphs" --out "$out/public.jsonl" --jobs 6 --seconds $((left - 25))
) &
public=$!
if command -v compute-sanitizer >/dev/null || [ -x /usr/local/cuda/bin/compute-sanitizer ]; then
    # Names of the operators' modules and of small models: most of the generated kernels.
    part memcheck "$left" sh "$here/memcheck.sh" "$check" --jobs 4 --precision fp32 \
        --only coatnet,indexing,pools,reductions,activations,losses,cells,binary,mlp
else
    echo "compute-sanitizer is not here" | tee "$out/memcheck.log"
fi
wait $numerics $public

echo
grep -h "^test result\|TFLOP/s" "$out/kernels.log"
tail -n 3 "$out/timed.log"
tail -n 4 "$out/numerics.log"
tail -n 8 "$out/public.log"
tail -n 4 "$out/memcheck.log"
echo "$(($(date +%s) - began)) s in all"
[ ! -e "$out/.failed" ] || { echo "failed: $(sort -u "$out/.failed" | tr '\n' ' ')"; exit 1; }
