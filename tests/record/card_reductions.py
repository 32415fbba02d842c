#!/usr/bin/env python3
"""Asks PyTorch how much scratch memory sums take on cards that differ in multiprocessors and in the threads that one holds.

    python tests/record/card_reductions.py BATCHFIT > tests/golden/reductions/cards.txt

This needs no GPU: how a reduction is split is decided on the host, so PyTorch runs on each card of `BATCHFIT cards` as a virtual one.
A row has a compute capability, multiprocessors, threads, and for each shape what the sums over rows, over columns and over everything
took besides their result.
"""

import json
import subprocess
import sys
import warnings

SHAPES = [(4096, 768), (65536, 512), (8192, 64), (1048576, 3), (2048, 50257), (16384, 3072), (300, 1000), (32, 4096), (1, 512000), (131072, 1280)]


def ask():
    warnings.filterwarnings("ignore")
    import torch

    def scratch(reduce):
        # What was asked for: blocks that the allocator gives may be larger.
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        result = reduce()
        return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before - result.nbytes

    card = torch.cuda.get_device_properties(0)
    row = []
    for rows, columns in SHAPES:
        matrix = torch.empty(rows, columns, device="cuda")
        took = [scratch(lambda: matrix.sum(0)), scratch(lambda: matrix.sum(1)), scratch(lambda: matrix.sum())]
        row.append(",".join(map(str, took)))
    with open(sys.argv[2], "w") as told:
        print(f"{card.major}.{card.minor}", card.multi_processor_count, card.max_threads_per_multi_processor, *row, file=told)


def main():
    if sys.argv[1] == "--ask":
        return ask()
    import tempfile
    from importlib.metadata import version

    print(f"# By tests/record/card_reductions.py, PyTorch {version('torch')}.")
    print("shapes", *(f"{rows}x{columns}" for rows, columns in SHAPES), flush=True)
    cards = json.loads(subprocess.check_output([sys.argv[1], "cards", "--json"]))["items"]
    kinds = {(float(it["compute_capability"]), it["multiprocessors"], it["threads_per_multiprocessor"]): it["card"] for it in cards}
    for (compute, *held), card in sorted(kinds.items()):
        with tempfile.NamedTemporaryFile("r") as told:
            run = [sys.argv[1], "run", "--on", card, "--steps", "0", "--quiet", "--", sys.executable, __file__, "--ask", told.name]
            subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
            row = told.read()
        assert row.startswith(" ".join(map(str, (compute, *held))) + " "), row
        print(row, end="", flush=True)


main()
