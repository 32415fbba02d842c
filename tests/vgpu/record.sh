#!/usr/bin/env bash
# Records the programs of this folder on this machine's GPU, from the root of the checkout: OUT=FOLDER bash tests/vgpu/record.sh [options of record.py]
# OUT: programs.json (rows and runs), programs.log, machine.txt, logs.tar (what programs that failed said). CARRY: a folder with site*.tar.xz, packages of Python 3.12 that the machine lacks; each tar holds
# site/ (for all) or site-NAME/ (only for programs that import NAME). SECS: wall seconds. RANKS: GPUs for the programs written for torchrun; with more than one only these run.
set -u
: "${OUT:?a folder}"; here=$(cd "$(dirname "$0")" && pwd); carry=${CARRY:-.carry}; unpacked=${UNPACKED:-/tmp/vgpu-site}; T0=$SECONDS
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/vgpu-triton} TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/vgpu-inductor}
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
mkdir -p "$unpacked" "$OUT"
for t in "$carry"/site*.tar.xz; do [ -f "$t" ] && python3 -c "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])" "$t" "$unpacked" 2>/dev/null; done
[ -d "$unpacked/site" ] && export PYTHONPATH="$unpacked/site${PYTHONPATH:+:$PYTHONPATH}"
extra=(); for d in "$unpacked"/site-*/; do [ -d "$d" ] && n=$(basename "$d") && extra+=(--extra "${n#site-}=${d%/}"); done
{ nvidia-smi --query-gpu=name,memory.total,memory.used,driver_version --format=csv; nproc; free -g | head -2; python3 - <<'P'
import importlib.metadata as m
for p in "torch torchvision torchaudio triton transformers accelerate peft trl bitsandbytes deepspeed datasets diffusers lightning pytorch-lightning sentence-transformers timm torch-geometric liger-kernel torchtune ultralytics tokenizers numpy nvidia-ml-py nvidia-cudnn-cu13".split():
    try: print(p, m.version(p))
    except Exception: print(p, "-")
P
} > "$OUT/machine.txt" 2>&1; cat "$OUT/machine.txt"
only=(); [ "${RANKS:-1}" -gt 1 ] && only=(--ranks "$RANKS" --only "$(grep -l 'for torchrun' "$here"/programs/*.py | xargs -n1 basename | sed 's/\.py$//' | paste -sd,)")
logs=${LOGS:-/tmp/vgpu-logs}; rm -rf "$logs"
python3 "$here/record.py" "$OUT/programs.json" --slots "${SLOTS:-14}" --room "${ROOM:-66}" --seconds "${SECS:-$((430 - SECONDS + T0))}" --no-fork --logs "$logs" ${extra[@]+"${extra[@]}"} ${only[@]+"${only[@]}"} ${DOUBLE---double} "$@" > "$OUT/programs.log" 2>&1
grep -v "ok=True" "$OUT/programs.log" | cut -c1-200 | head -60; tail -2 "$OUT/programs.log" | cut -c1-300
python3 - "$OUT/programs.json" "$logs" "$OUT/logs.tar" <<'P'
import json, os, sys, tarfile
bad = [r["program"] for r in json.load(open(sys.argv[1]))["runs"] if not r["ok"]]
with tarfile.open(sys.argv[3], "w") as t:
    for f in os.listdir(sys.argv[2]):
        if f.endswith(".log") and any(f.startswith(b) for b in bad): t.add(os.path.join(sys.argv[2], f), f)
P
ls -la "$OUT"; echo "$((SECONDS - T0)) s"
