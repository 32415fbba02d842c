"""Stands for `python -m batchfit.recorder` in tests: it hands out golden recordings, or misbehaves as FAKE_RECORDER says.

Started with the arguments of the real one, it looks at none but `--module`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

CASE, BATCHES = "gpt2-ampbf16-adamw", (2, 3, 4, 8)
GOLDEN = os.environ["FAKE_RECORDINGS"]
HOW = os.environ.get("FAKE_RECORDER", "")


def say(**answer):
    print(json.dumps(answer), flush=True)


def main():
    if HOW == "babble":
        sys.stdout.write("x" * (2 << 20))
        sys.stdout.flush()
        signal.pause()
    if HOW == "dies":
        sys.exit("ModuleNotFoundError: No module named 'batchfit'")
    say(message="hello", version=2 if HOW == "other version" else 1)
    folder = ""
    for line in sys.stdin:
        order = json.loads(line)
        with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
            log.write(json.dumps({**order, "arguments": sys.argv[1:], "pid": os.getpid()}) + "\n")
        if order["message"] == "open":
            folder = order["folder"]
            if order["graph"] is not None and not os.path.getsize(order["graph"]):
                raise SystemExit("an empty graph")
            if HOW == "refuses":
                say(message="refused", refusal="invalid", detail="at /graph_module/graph/nodes/3: no such operator")
                continue
            say(
                message="ready", gpu="NVIDIA H200", total_bytes=150109880320, free_bytes=149291991040, torch="2.11.0", cudnn=None,
                least_batch=1, most_batch=1 << 20, notes=["a note of the recorder's"],
            )  # fmt: skip
            continue
        batch = order["batch"]
        if HOW == "hangs":
            # What it starts has to end with it.
            child = subprocess.Popen(["sleep", "600"])
            with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
                log.write(json.dumps({"message": "child", "pid": child.pid}) + "\n")
            signal.pause()
        if HOW == "crashes":
            sys.exit("CUDA error: an illegal memory access was encountered")
        if batch not in BATCHES or HOW == "out of memory":
            say(message="recorded", batch=batch, outcome="out_of_memory", path=None, peak_reserved_bytes=None, seconds=0.1)
            continue
        path = os.path.join(folder, f"b{batch}.gz")
        if HOW == "link":
            os.symlink("/etc/hostname", path)
        else:
            shutil.copy(os.path.join(GOLDEN, f"{CASE}.b{batch}.gz"), path)
        if HOW == "elsewhere":
            path = "/etc/passwd"
        say(message="recorded", batch=batch, outcome="fits", path=path, peak_reserved_bytes=1, seconds=0.1)


main()
