#!/usr/bin/env python3
"""Runs the targets of coverage-guided fuzzing, two at a time, and prints what came of each.

    tests/fuzz/run.py [--minutes 10] [--keep] [--together 2] [TARGET...]

Begins with the seeds of seeds.py and with corpus/. A crash, a hang of 10 s and more than 2 GiB are failures: the input is written to
found/TARGET-crash-…, and the target goes on. With --keep, corpus/TARGET.tar.xz becomes the smallest set of inputs that covers as
much, the small ones first, up to 128 KiB of them. Exits 1 where something was found.
"""
import argparse
import concurrent.futures
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib

import seeds

HERE = pathlib.Path(__file__).resolve().parent
CORPUS, FOUND = HERE / "corpus", HERE / "found"
TARGETS = [target["name"] for target in tomllib.loads((HERE / "Cargo.toml").read_text())["bin"]]
# What a target's corpus may take before it is packed.
KEPT = 128 << 10
# How long an input may be, where that is not 16 KiB.
LONGEST = {"exported": 40_000, "alloc": 4096, "texts": 512}


def build(folder):
    environment = {**os.environ, "RUSTC_WRAPPER": str(HERE / "rustc.sh")}
    command = ["cargo", "build", "--release", *(["--target-dir", folder] if folder else [])]
    subprocess.run(command, cwd=HERE, env=environment, check=True)


def begin(target, folder):
    """A folder with all that the target begins with."""
    inputs = folder / target
    inputs.mkdir(exist_ok=True)
    kept = CORPUS / target
    if kept.is_dir():
        for file in kept.iterdir():
            shutil.copy(file, inputs)
    packed = CORPUS / f"{target}.tar.xz"
    if packed.exists():
        with tarfile.open(packed) as archive:
            archive.extractall(inputs, filter="data")
    return inputs


def fuzz(target, program, folder, seconds):
    inputs = begin(target, folder)
    words = folder / f"{target}.dict"
    command = [program, inputs, f"-max_total_time={seconds}", "-fork=1", "-ignore_crashes=1", "-ignore_timeouts=1", "-ignore_ooms=1", "-timeout=10",
               "-rss_limit_mb=2048", f"-max_len={LONGEST.get(target, 16 << 10)}", f"-artifact_prefix={FOUND}/{target}-",
               *([f"-dict={words}"] if words.exists() else [])]
    with tempfile.TemporaryDirectory() as scratch:
        ran = subprocess.run(["nice", "-n", "19", *map(str, command)], capture_output=True, text=True, errors="replace", cwd=scratch)
    (FOUND / f"{target}.log").write_text(ran.stderr)
    lines = [line for line in ran.stderr.splitlines() if re.match(r"#\d+: cov:", line)]
    return lines[-1] if lines else f"did not run: {ran.stderr[-300:]}"


def keep(target, program, folder):
    """The smallest set that covers as much; says how many inputs and bytes."""
    least = folder / f"{target}-least"
    least.mkdir()
    inputs = folder / target
    subprocess.run([program, "-merge=1", "-timeout=10", least, inputs], capture_output=True, cwd=folder)
    files, size = [], 0
    for file in sorted(least.iterdir(), key=lambda file: (file.stat().st_size, file.name)):
        if size + file.stat().st_size <= KEPT:
            files.append(file)
            size += file.stat().st_size
    with tarfile.open(CORPUS / f"{target}.tar.xz", "w:xz") as archive:
        for file in files:
            entry = tarfile.TarInfo(file.name)
            entry.size = file.stat().st_size
            archive.addfile(entry, io.BytesIO(file.read_bytes()))
    return f"{len(files)} of {len(list(least.iterdir()))} inputs kept, {size >> 10} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--together", type=int, default=2)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--target-dir", help="where to build, in the place of target/")
    arguments = parser.parse_args()
    build(arguments.target_dir)
    programs = pathlib.Path(arguments.target_dir or HERE / "target") / "release"
    FOUND.mkdir(exist_ok=True)
    before = set(FOUND.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        seeds.main(folder)

        def one(target):
            done = fuzz(target, programs / target, folder, round(60 * arguments.minutes))
            done += f"; {keep(target, programs / target, folder)}" if arguments.keep else ""
            print(f"{target:12} {arguments.minutes:g} min {done}", flush=True)

        with concurrent.futures.ThreadPoolExecutor(arguments.together) as pool:
            list(pool.map(one, arguments.targets))
    found = sorted(path.name for path in set(FOUND.iterdir()) - before if path.suffix != ".log")
    print(f"found: {', '.join(found) or 'nothing'}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
