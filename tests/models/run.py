"""Exports the models of the list, asks batchfit about each, and compares with what PyTorch allocated.

    run.py export  OUT [NAME...]                    graphs and exports.jsonl
    run.py record  OUT [NAME...] [--gpu-list]       recordings.jsonl, on an H200 or below `batchfit run --on h200 --steps 0 --`
    run.py answer  OUT [NAME...] --batchfit BINARY  answers.jsonl

Each model runs in a process of its own with a time limit, forked from one that has imported PyTorch, and each result is one
JSON line, so that a run can be continued: what has a line is left out, unless the model is named (an
area is no model). `table.py OUT` makes the tables
of README.md.

PYTHONPATH needs clients/python/src. What a recording is of, a card or a virtual one, is in its lines.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO
from unittest import mock

import one
import zoo

# What recordings are made on, and answers are about.
CARD = "sim:h200"


class Lines:
    """A file of JSON lines, to which results are added as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.rows = [json.loads(line) for line in text.splitlines()]

    def of(self, name: str) -> list[dict]:
        return [row for row in self.rows if row["model"] == name]

    def replace(self, name: str, rows: list[dict]) -> None:
        kept = [row for row in self.rows if row["model"] != name]
        if len(kept) < len(self.rows):
            self.rows = kept
            self.path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        self.rows += rows


class Child:
    """A process that works on one model and writes JSON lines."""

    def __init__(self, name: str, work: Callable[[TextIO], None], limit: int) -> None:
        self.name, self.limit, self.end = name, limit, time.monotonic() + limit
        handle, self.path = tempfile.mkstemp(prefix="batchfit-model-")
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                # A group of its own, so that what it forks ends with it.
                os.setpgid(0, 0)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                with os.fdopen(handle, "w") as file:
                    work(file)
                status = 0
            finally:
                os._exit(status)
        os.close(handle)

    def result(self) -> tuple[list[dict], str | None] | None:
        """Its lines and what is wrong, once it has ended."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        wrong = None if status == 0 else f"the process ended with status {status}"
        if not ended:
            if time.monotonic() < self.end:
                return None
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            wrong = f"took longer than {self.limit} s"
        text = Path(self.path).read_text(encoding="utf-8")
        os.unlink(self.path)
        return [json.loads(line) for line in text.splitlines()], wrong


def card_of(recordings: list[dict]) -> str:
    """The simulated card to compare the recordings of a model with: an A100 where they are of nothing else."""
    return "sim:a100-80g" if {row.get("compute") for row in recordings} - {None} == {"8.0"} else CARD


def export(name: str, model, out: Path, file: TextIO) -> None:
    file.write(json.dumps(one.export(model, str(out / "graphs" / f"{name}.json.gz"))) + "\n")


def record(name: str, model, out: Path, file: TextIO) -> None:
    one.record(model, [f"{precision}:{batch}" for precision in model.precisions for batch in model.batches], file)


def answer(name: str, model, options: argparse.Namespace) -> list[dict]:
    """Both precisions at both batches, as `batchfit probe` tells them, and the largest batch of each."""
    out, limit, binary = options.out, options.limit, options.batchfit
    graph = out / "graphs" / f"{name}.json.gz"
    if not graph.exists():
        return []
    recordings = (Path(__file__).parent / "recordings.jsonl", out / "recordings.jsonl")
    card = card_of([row for path in recordings for row in Lines(path).of(name)])
    found = []
    for precision in model.precisions:
        request = json.dumps({"training": {"precision": precision, "optimizer": "adamw"}, "device": card})
        for batch in model.batches:
            row = {"model": name, "precision": precision, "batch": batch, "device": card}
            found.append({**row, **asked(binary, ["probe", "-", "--model", str(graph), "--batch", str(batch)], request, limit)})
            if "error" in found[-1]:
                break
        if "error" not in found[-1] and not options.no_fit:
            row = {"model": name, "precision": precision, "device": card}
            found.append({**row, **fitted(binary, graph, request, limit)})
    return found


def asked(binary: str, arguments: list[str], request: str, limit: int) -> dict:
    """What a command says: the peaks, or why there is no answer."""
    begin = time.monotonic()
    try:
        done = subprocess.run([binary, *arguments, "--json"], input=request, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit} s"}
    milliseconds = round(1000 * (time.monotonic() - begin))
    if done.returncode not in (0, 3):
        return {"error": done.stderr.strip()[:2000]}
    told = json.loads(done.stdout)
    told = told.get("result") or told
    return {
        "allocated": told["peak_allocated_bytes"], "reserved": told["peak_reserved_bytes"], "verdict": told["verdict"],
        "notes": told.get("notes", []), "assumptions": told.get("assumptions", []), "ms": milliseconds,
    }  # fmt: skip


def fitted(binary: str, graph: Path, request: str, limit: int) -> dict:
    begin = time.monotonic()
    try:
        arguments = [binary, "fit", "-", "--model", str(graph), "--json"]
        done = subprocess.run(arguments, input=request, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"fit": None, "error": f"fit took longer than {limit} s"}
    milliseconds = round(1000 * (time.monotonic() - begin))
    if done.returncode not in (0, 3):
        return {"fit": None, "error": done.stderr.strip()[:2000]}
    result = json.loads(done.stdout)["result"]
    recommendation = result.get("recommendation") or {}
    return {"fit": recommendation.get("max_batch"), "assumptions": recommendation.get("assumptions", []), "ms": milliseconds}


def main() -> int:
    parser = argparse.ArgumentParser(description="Exports models, asks batchfit about them and compares with PyTorch.")
    parser.add_argument("command", choices=("export", "record", "answer"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="models, or areas; all without")
    parser.add_argument("--list", type=Path, help="a Python file whose `load` gives other models than zoo's")
    parser.add_argument("--batchfit", default="target/release/batchfit", help="the binary that answers")
    parser.add_argument("--no-fit", action="store_true", help="only probes, not the largest batch")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one model")
    parser.add_argument("--gpu-list", action="store_true", help="only models for a recording of a few minutes")
    parser.add_argument("--again", action="store_true", help="those that failed, once more")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    options = parser.parse_intermixed_args()
    models = zoo.load(options.list)
    areas = {model.area for model in models.values()}
    unknown = [name for name in options.names if name not in models and name not in areas]
    if unknown:
        parser.error(f"no model or area is called {', '.join(unknown)}")
    (options.out / "graphs").mkdir(parents=True, exist_ok=True)
    file = {"export": "exports.jsonl", "record": "recordings.jsonl", "answer": "answers.jsonl"}[options.command]
    lines = Lines(options.out / file)
    wanted = []
    for name, model in models.items():
        if options.names and name not in options.names and model.area not in options.names:
            continue
        if options.gpu_list and not model.on_gpu:
            continue
        known = lines.of(name)
        failed = any("error" in row for row in known)
        if known and name not in options.names and not (failed and options.again):
            continue
        wanted.append(name)

    def note(name: str, rows: list[dict]) -> None:
        lines.replace(name, rows)
        errors = [row["error"].strip().splitlines()[0][:160] for row in rows if row.get("error")]
        print(f"{name:45} {errors[0] if errors else 'ok' if rows else '-'}", flush=True)

    if options.command == "answer":
        for name in wanted:
            note(name, answer(name, models[name], options))
        return 0
    preload()
    work = export if options.command == "export" else record
    running: list[Child] = []
    while wanted or running:
        while wanted and len(running) < options.jobs:
            name = wanted.pop(0)
            running.append(Child(name, partial(work, name, models[name], options.out), options.limit))
        for child in list(running):
            result = child.result()
            if result is not None:
                running.remove(child)
                rows, wrong = result
                model = models[child.name]
                told = {"model": child.name, "library": model.library, "area": model.area, "error": wrong}
                note(child.name, rows if rows or not wrong else [told])
        time.sleep(0.02)
    return 0


def preload() -> None:
    """What most models import, once for all of their processes."""
    for module in ("torch", "torch.export", "torchvision", "transformers.modeling_utils", "transformers.models.auto"):
        # torchao asks for the card as it is imported, and where CUDA has started it starts in no process that is forked.
        with contextlib.suppress(ImportError), mock.patch("torch.cuda.is_available", lambda: False):
            importlib.import_module(module)


if __name__ == "__main__":
    sys.exit(main())
