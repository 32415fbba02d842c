#!/usr/bin/env python3
"""Asks PyTorch which attention it chooses, and how large a workspace it gives cuBLAS, on every compute capability.

    python tests/record/attention_choices.py target/debug/batchfit [COMPUTE...] > tests/golden/attention/choices.txt

No GPU is needed: the choice is made on the host, and each compute capability is that of a virtual GPU. Those of which batchfit knows no card (8.7, 11.0,
12.1) are said to be missing; their choices were recorded before, below a library that named any. Each row is a type and the widths of a head (of query and key, and of value), and has a letter for each problem: cuDNN,
flash, efficient or math.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

COMPUTE = ["7.0", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]
WIDTHS = [(64, 64), (36, 36), (66, 66), (100, 100), (128, 128), (136, 136), (192, 192), (200, 200), (224, 224), (256, 256), (264, 264), (64, 128), (320, 320)]
LETTERS = "mfec"  # SDPBackend: math, flash attention, efficient attention, cuDNN.


def row(torch, dtype, width, value_width):
    letters = []
    for positions, keys in ((256, 256), (1, 256), (256, 1), (128, 256)):
        for mask in range(3):
            for causal in (False, True)[: 1 if mask else 2]:
                for number in range(8):
                    dropout, trained, grouped = number & 4, not number & 2, number & 1
                    make = lambda *sizes: torch.empty(*sizes, dtype=dtype, device="cuda", requires_grad=trained)
                    heads = 2 if grouped else 4
                    query = make(2, 4, positions, width)
                    key, value = make(2, heads, keys, width), make(2, heads, keys, value_width)
                    bias = torch.empty(2, 4, positions, keys, dtype=dtype, device="cuda", requires_grad=mask == 2) if mask else None
                    rate = 0.1 if dropout else 0.0
                    choice = torch._fused_sdp_choice(query, key, value, bias, rate, causal, enable_gqa=bool(grouped))
                    letters.append(LETTERS[choice])
    return "".join(letters)


def ask(asked, out):
    warnings.filterwarnings("ignore")
    import torch

    found = torch.cuda.get_device_properties(0)
    assert f"{found.major}.{found.minor}" == asked, "this is not the card that was asked for"
    operand = torch.empty(64, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    result = torch.mm(operand, operand)
    rows = [f"{torch.cuda.memory_allocated() - before - result.nbytes}"]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for width, value_width in WIDTHS:
            rows.append(f"{str(dtype).removeprefix('torch.')} {width} {value_width} {row(torch, dtype, width, value_width)}")
    Path(out).write_text("\n".join(rows) + "\n", encoding="utf-8")


def main():
    if "BATCHFIT_VGPU" in os.environ:
        return ask(*sys.argv[1:])
    binary, *wanted = sys.argv[1:]
    listed = subprocess.run([binary, "cards", "--json"], stdout=subprocess.PIPE, check=True).stdout
    cards = {card["compute_capability"]: card["card"] for card in json.loads(listed)["items"]}
    answers = {}
    workspaces = {}
    for compute in wanted or COMPUTE:
        if compute not in cards:
            print(f"no card has compute capability {compute}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "rows.txt")
            command = [binary, "run", "--on", cards[compute], "--steps", "0", "--", sys.executable, __file__, compute, out]
            subprocess.run(command, stdout=sys.stderr, check=True)
            workspace, rows = Path(out).read_text(encoding="utf-8").split("\n", 1)
        workspaces.setdefault(workspace, []).append(compute)
        answers.setdefault(rows, []).append(compute)
    from importlib.metadata import version

    print(f"# By tests/record/attention_choices.py, PyTorch {version('torch')}.")
    for workspace, compute in workspaces.items():
        print(f"# A workspace of cuBLAS of {workspace} bytes on", " ".join(compute))
    for rows, compute in answers.items():
        print("on", " ".join(compute))
        print(rows, end="")


main()
