#!/usr/bin/env python3
"""Asks PyTorch how much scratch memory sums take on cards that differ in multiprocessors and in the threads that one holds.

    python tests/record/card_reductions.py > tests/golden/reductions/cards.txt

With a stand-in for the CUDA runtime that says it is a card of FAKE_SM_MAJOR, FAKE_SM_MINOR and FAKE_SMS, this needs no GPU: how a
reduction is split is decided on the host. Multiprocessors and the threads that one holds are written into what PyTorch keeps of the
device: the stand-in says the same number of threads for all. A row has a compute capability, multiprocessors, threads, and for each shape what the sums over
rows, over columns and over everything took besides their result.
"""

import ctypes
import os
import subprocess
import sys
import warnings

# What the catalogue has (crates/card/src/device/sim/catalogue): a compute capability, threads of a multiprocessor, and multiprocessors.
CARDS = [
    ("7.0", 2048, [80]),
    ("7.5", 1024, [40, 68, 72]),
    ("8.0", 2048, [56, 108]),
    ("8.6", 1536, [28, 38, 46, 48, 64, 68, 70, 72, 80, 82, 84]),
    ("8.9", 1536, [24, 34, 46, 58, 66, 76, 80, 128, 142]),
    ("9.0", 2048, [78, 114, 132]),
    ("10.0", 2048, [148, 152]),
    ("10.3", 2048, [148]),
    ("12.0", 1536, [36, 48, 70, 84, 170, 188]),
]
SHAPES = [(4096, 768), (65536, 512), (8192, 64), (1048576, 3), (2048, 50257), (16384, 3072), (300, 1000), (32, 4096), (1, 512000), (131072, 1280)]


# A number of multiprocessors that stands nowhere else in the properties.
MARK = 9973


def become(found):
    """How the properties that PyTorch keeps are changed: threads are behind the two sizes of the second-level cache."""
    address = ctypes.c_void_p.from_address(id(found) + 16).value
    words = (ctypes.c_int * 320).from_address(address)
    (count,) = [at for at, word in enumerate(words) if word == MARK]
    threads = next(at for at, word in enumerate(words) if word == found.L2_cache_size) + 2

    def change(multiprocessors, held):
        words[count], words[threads] = multiprocessors, held
        assert (found.multi_processor_count, found.max_threads_per_multi_processor) == (multiprocessors, held)

    return change


def ask():
    warnings.filterwarnings("ignore")
    import torch

    compute, threads, *all_multiprocessors = os.environ["ASKED"].split()
    found = torch.cuda.get_device_properties(0)
    assert f"{found.major}.{found.minor}" == compute, "this is not the card that was asked for"
    change = become(found)

    def scratch(reduce):
        # What was asked for: blocks that the allocator gives may be larger.
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        result = reduce()
        return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before - result.nbytes

    for multiprocessors in map(int, all_multiprocessors):
        change(multiprocessors, int(threads))
        row = []
        for rows, columns in SHAPES:
            matrix = torch.empty(rows, columns, device="cuda")
            took = [scratch(lambda: matrix.sum(0)), scratch(lambda: matrix.sum(1)), scratch(lambda: matrix.sum())]
            row.append(",".join(map(str, took)))
        print(compute, multiprocessors, threads, *row)


def main():
    if "ASKED" in os.environ:
        return ask()
    from importlib.metadata import version

    print(f"# By tests/record/card_reductions.py, PyTorch {version('torch')}.")
    print("shapes", *(f"{rows}x{columns}" for rows, columns in SHAPES), flush=True)
    for compute, threads, all_multiprocessors in CARDS:
        major, minor = compute.split(".")
        asked = " ".join(map(str, [compute, threads, *all_multiprocessors]))
        environment = os.environ | {"ASKED": asked, "FAKE_SM_MAJOR": major, "FAKE_SM_MINOR": minor, "FAKE_SMS": str(MARK)}
        subprocess.run([sys.executable, __file__], env=environment, check=True)


main()
