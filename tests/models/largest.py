"""Compares the largest batches that batchfit answers with those that PyTorch itself trains with, found by bisection.

    largest.py OUT [NAME...] --batchfit BINARY      largest.jsonl, on an H200 or below `batchfit run --on h200 --steps 0 --`
    largest.py OUT --table                          what README.md shows of it

Each model that `run.py export` wrote to OUT is asked about under a limit at which some dozens of examples fit, and trained for three
steps under the same limit (`torch.cuda.set_per_process_memory_fraction`) at the batch answered, at the one above, and from there
on until the largest that finishes, and the largest that finishes without a retry of the allocator, are known. Each trial is a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

import one
import zoo
from run import CARD, Child, Lines, preload

MIB = 1 << 20
# More trials of one kind than this are not made: the rest of the search would cost more than it tells.
TRIALS = 24


def asked(binary: str, arguments: list[str], request: dict) -> dict:
    """The result of a command of batchfit's, which gets nothing of a virtual GPU."""
    plain = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    done = subprocess.run([binary, *arguments, "--json"], input=json.dumps(request), capture_output=True, text=True, env=plain, timeout=300)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr.strip()[:400])
    told = json.loads(done.stdout)
    return told.get("result") or told


def aim(name: str, precision: str, usual: int) -> int:
    """About how many examples are to fit: another number for each question, and at least those of the recordings."""
    return max(12 + zlib.crc32(f"{name} {precision}".encode()) % 90, usual)


def question(name: str, precision: str, usual: int, binary: str, graph: Path) -> dict:
    """A limit for a model, and the answers under it."""
    request = {"training": {"precision": precision, "optimizer": "adamw"}, "device": CARD}
    batch = aim(name, precision, usual)
    probe = asked(binary, ["probe", "-", "--model", str(graph), "--batch", str(batch)], request)
    limit = (probe["peak_reserved_bytes"] + batch % 7 * probe["peak_reserved_bytes"] // 500) // MIB * MIB
    request["memory_limit"] = limit
    answer = asked(binary, ["fit", "-", "--model", str(graph)], request).get("recommendation") or {}
    told = {"model": name, "precision": precision, "device": request["device"], "limit": limit}
    answers = {"finishes": answer.get("max_batch", 0), "without_retries": answer.get("max_batch_without_retries", 0)}
    return {**told, "answered": answers, "assumptions": probe.get("assumptions", [])}


def trial(name: str, precision: str, limit: int, batch: int) -> dict:
    """Three steps under a limit, in a process of their own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            result = one.peaks(zoo.load()[name], precision, batch, limit)
        except BaseException as error:  # Out of memory, or what is wrong with the model.
            result = one.failure(error)
        with os.fdopen(write, "w") as file:
            json.dump(result, file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "the process ended"}


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """The largest batch that fits; few trials where the guess is right or nearly so."""
    low, high, step = guess, guess + 1, max(1, guess // 128)
    if guess > 0 and not fits(guess):
        while low > 0 and not fits(low):
            low, high, step = max(0, low - step), low, 2 * step
    else:
        while fits(high):
            low, high, step = high, high + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def compare(name: str, model, binary: str, out: Path, file: TextIO) -> None:
    graph = out / "graphs" / f"{name}.json.gz"
    for precision in model.precisions:
        begin = time.monotonic()
        row: dict = {"model": name, "precision": precision}
        seen: dict[int, dict] = {}
        try:
            row = question(name, precision, max(model.batches), binary, graph)

            def run(batch: int, limit: int = row["limit"], seen: dict[int, dict] = seen, precision: str = precision) -> dict:
                if batch not in seen:
                    if len(seen) >= TRIALS:
                        raise RuntimeError(f"more than {TRIALS} trials")
                    seen[batch] = trial(name, precision, limit, batch)
                    error = seen[batch].get("error", "")
                    if error and "OutOfMemoryError" not in error:
                        raise RuntimeError(error[:400])
                return seen[batch]

            finishes = largest(lambda batch: "allocated" in run(batch), row["answered"]["finishes"])
            calm = largest(lambda batch: run(batch).get("retries") == 0, row["answered"]["without_retries"])
            row["trained"] = {"finishes": finishes, "without_retries": calm}
        except Exception as error:  # Whatever a model or its library does wrong is the result.
            row.update(one.failure(error))
        row.update(trials=len(seen), virtual=one.ON_VIRTUAL_GPU, seconds=round(time.monotonic() - begin, 1))
        file.write(json.dumps(row) + "\n")
        file.flush()


def table(rows: list[dict]) -> None:
    print("| | answers | equal | within 1 % | above what finishes | median | worst |\n| --- | --- | --- | --- | --- | --- | --- |")
    for title, kind in (("largest that finishes", "finishes"), ("largest without retries", "without_retries")):
        pairs = [(row["answered"][kind], row["trained"][kind], row["trained"]["finishes"]) for row in rows if "trained" in row]
        if not pairs:
            continue
        off = [abs(ours / theirs - 1) if theirs else float(ours > 0) for ours, theirs, _ in pairs]
        near = sum(error <= 0.01 for error in off)
        print(
            f"| {title} | {len(pairs)} | {sum(a == b for a, b, _ in pairs)} | {near} | {sum(a > c for a, _, c in pairs)} | "
            f"{100 * statistics.median(off):.2f} % | {100 * max(off):.2f} % |"
        )
    wrong = [row for row in rows if "trained" in row and row["answered"] != row["trained"]]
    if wrong:
        print("\nAnswers that differ, under the limit in MiB; the largest that finishes, and the largest without retries:\n")
    for row in wrong:
        ours, theirs = row["answered"], row["trained"]
        bound = ", rests on a stated bound" if row["assumptions"] else ""
        print(
            f"- `{row['model']}` {row['precision']} under {row['limit'] // MIB}: {ours['finishes']} and {ours['without_retries']}, "
            f"trained {theirs['finishes']} and {theirs['without_retries']}{bound}"
        )
    for row in rows:
        if "error" in row:
            print(f"- `{row['model']}` {row['precision']}: not compared: {row['error'].splitlines()[0][:160]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares largest batches with PyTorch's.")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="models, or areas; all without")
    parser.add_argument("--batchfit", default="target/release/batchfit", help="the binary that answers")
    parser.add_argument("--table", action="store_true", help="print what is known")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one model")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    options = parser.parse_intermixed_args()
    lines = Lines(options.out / "largest.jsonl")
    if options.table:
        table(sorted(lines.rows, key=lambda row: (row["model"], row["precision"])))
        return 0
    models = zoo.load()
    unknown = [name for name in options.names if name not in models and name not in zoo.AREAS]
    if unknown:
        parser.error(f"no model or area is called {', '.join(unknown)}")
    wanted = []
    for name, model in models.items():
        graph = options.out / "graphs" / f"{name}.json.gz"
        if options.names and name not in options.names and model.area not in options.names:
            continue
        if not graph.exists() or lines.of(name) and name not in options.names:
            continue
        wanted.append(name)
    preload()
    running: list[Child] = []
    while wanted or running:
        while wanted and len(running) < options.jobs:
            name = wanted.pop(0)
            running.append(Child(name, partial(compare, name, models[name], options.batchfit, options.out), options.limit))
        for child in list(running):
            result = child.result()
            if result is None:
                continue
            running.remove(child)
            rows, wrong = result
            lines.replace(child.name, rows)
            for row in rows:
                print(f"{child.name:40} {row['precision']:9} {row.get('answered')} {row.get('trained', row.get('error', ''))}", flush=True)
            if wrong:
                print(f"{child.name:40} {wrong}", flush=True)
        time.sleep(0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main())
