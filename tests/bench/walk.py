#!/usr/bin/env python3
"""The files whose code a fit runs: tests/bench/walk.py [BINARY] [--most N]; fails where there are more than N.

A debug build under valgrind, which writes down each file that a called function is from. Left out is what all fits share and few changes of
a request's way touch: the models, operators, allocator and tables of crates/{models,torch,card,step} and crates/store, the flags of
other commands, and the roots of crates: they have no code of their own, and the compiler's own glue is said to be from there.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

OTHERS = re.compile(r"^crates/(models|torch|card|step|store)/|^src/cli/arguments/(?!mod|question)|(.*/)?src/lib[.]rs$")

flags = argparse.ArgumentParser()
flags.add_argument("binary", nargs="?", default="target/debug/batchfit")
flags.add_argument("--most", type=int)
arguments = flags.parse_args()
root = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
with tempfile.TemporaryDirectory() as folder:
    trace = os.path.join(folder, "trace")
    command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={trace}", arguments.binary]
    subprocess.run(
        [*command, "fit", "resnet50", "--on", "rtx4090"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "BATCHFIT_DATABASE": os.path.join(folder, "batchfit.db")},
    )
    with open(trace, encoding="utf-8", errors="replace") as lines:
        named = {line.split(") ", 1)[1].strip() for line in lines if re.match(r"c?f[ile]=\(\d+\) ", line)}
files = {os.path.relpath(os.path.join(root, path), root) for path in named}
files = sorted(path for path in files if re.match("(src|crates)/.*[.]rs$", path) and not OTHERS.match(path))
print(*files, sep="\n")
print(len(files), "files")
sys.exit(arguments.most is not None and len(files) > arguments.most)
