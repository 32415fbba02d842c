#!/bin/sh
# Compares training steps with PyTorch's on a machine with a GPU and PyTorch: see numerics.py.
# Usage: numerics.sh [CHECK]; without CHECK, the test binary is built first.
set -eu
here=$(dirname "$0")
if [ $# -gt 0 ]; then
    check=$1
    shift
else
    check=$(cargo test --test gpu --no-run --message-format=json |
        python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("target", {}).get("name") == "gpu" and message.get("executable"): print(message["executable"])')
fi
# Wheels of PyTorch bring the libraries but do not put them on the search path.
wheels=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
if [ -n "$wheels" ]; then
    LD_LIBRARY_PATH=$wheels/cudnn/lib:$wheels/cu13/lib:${LD_LIBRARY_PATH:-}
    export LD_LIBRARY_PATH
fi
exec python3 "$here/numerics.py" "$check" "$@"
