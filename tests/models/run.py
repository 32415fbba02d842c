"""Exports the models of the list, asks batchfit about each, and compares with what PyTorch allocated.

    run.py export  OUT [NAME...]                    graphs and exports.jsonl
    run.py record  OUT [NAME...] [--gpu-list]       recordings.jsonl, on a GPU or on a stub of the CUDA runtime
    run.py answer  OUT [NAME...] --batchfit BINARY  answers.jsonl

Each model runs in a process of its own with a time limit, and each result is one JSON line, so that a run can be continued:
what has a line is left out, unless it is named. `table.py OUT` makes the tables of README.md.

PYTHONPATH needs clients/python/src. What a recording is of, a card or a stub, is in its lines.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
PRECISIONS = ("fp32", "amp_bf16")
# What runs in cuDNN on a GPU, which does not start on a stub.
CUDNN = ("conv", "lstm", "gru", "rnn_", "batch_norm", "ctc_loss")
ATTENTION = "scaled_dot_product_attention"


class Lines:
    """A file of JSON lines, to which results are added as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.rows = [json.loads(line) for line in text.splitlines()]

    def of(self, name: str) -> list[dict]:
        return [row for row in self.rows if row["model"] == name]

    def replace(self, name: str, rows: list[dict]) -> None:
        with self.lock:
            self._replace(name, rows)

    def _replace(self, name: str, rows: list[dict]) -> None:
        kept = [row for row in self.rows if row["model"] != name]
        if len(kept) < len(self.rows):
            self.rows = kept
            self.path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        self.rows += rows


def child(*arguments: str, limit: int, environment: dict[str, str] | None = None) -> tuple[list[dict], str | None]:
    """Runs `one.py`; gives its JSON lines, and what is wrong if it ended badly."""
    command = [sys.executable, str(HERE / "one.py"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        out, err = process.communicate(timeout=limit)
        wrong = None if process.returncode == 0 else f"status {process.returncode}: {err.strip()[-400:]}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        wrong = f"took longer than {limit} s"
    lines = [json.loads(line) for line in out.splitlines() if line.startswith('{"model"')]
    return lines, wrong


def operators(graph: Path) -> set[str]:
    with gzip.open(graph) as file:
        text = json.load(file)

    def targets(graph: dict):
        for node in graph["nodes"]:
            yield node["target"].removeprefix("torch.ops.aten.")
            for argument in node["inputs"]:
                if "as_graph" in argument["arg"]:
                    yield from targets(argument["arg"]["as_graph"]["graph"])

    return set(targets(text["graph_module"]["graph"]))


def uses_cudnn(graph: Path) -> bool:
    return any(target.startswith(CUDNN) or target.startswith("_thnn") for target in operators(graph))


def card_of(graph: Path) -> str:
    """The simulated card to compare a stub's recording with: cuDNN's attention, which Hopper prefers, starts on no stub."""
    return "sim:a100-80g" if any(target.startswith(ATTENTION) for target in operators(graph)) else "sim:h200"


def export(name: str, model, out: Path, limit: int) -> list[dict]:
    rows, wrong = child("export", name, str(out / "graphs" / f"{name}.json.gz"), limit=limit)
    return rows or [{"model": name, "library": model.library, "area": model.area, "error": wrong or "no result"}]


def record(name: str, model, out: Path, limit: int) -> list[dict]:
    graph = out / "graphs" / f"{name}.json.gz"
    environment = dict(os.environ)
    if "LD_PRELOAD" in environment:
        if not graph.exists() or uses_cudnn(graph):
            return []
        major, sms = ("8", "108") if card_of(graph) == "sim:a100-80g" else ("9", "132")
        environment.update(FAKE_SM_MAJOR=major, FAKE_SM_MINOR="0", FAKE_SMS=sms)
    rows = [f"{precision}:{batch}" for precision in PRECISIONS for batch in model.batches]
    results, wrong = child("record", name, *rows, limit=limit, environment=environment)
    return results if results or not wrong else [{"model": name, "error": wrong}]


def answer(name: str, model, out: Path, limit: int, binary: str) -> list[dict]:
    """Both precisions at both batches, as `batchfit probe` tells them."""
    graph = out / "graphs" / f"{name}.json.gz"
    if not graph.exists():
        return []
    on_gpu = [row for row in Lines(out / "recordings.jsonl").of(name) if row.get("stub") is False]
    card = "sim:h200" if on_gpu else card_of(graph)
    found = []
    for precision in PRECISIONS:
        request = json.dumps({"training": {"precision": precision, "optimizer": "adamw"}, "device": card})
        for batch in model.batches:
            row = {"model": name, "precision": precision, "batch": batch, "device": card}
            found.append({**row, **asked(binary, ["probe", "-", "--model", str(graph), "--batch", str(batch)], request, limit)})
            if "error" in found[-1]:
                break
        if "error" not in found[-1]:
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
        "notes": told.get("notes", []), "ms": milliseconds,
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
    return {"fit": recommendation.get("max_batch"), "notes": result.get("notes", []), "ms": milliseconds}


def main() -> int:
    parser = argparse.ArgumentParser(description="Exports models, asks batchfit about them and compares with PyTorch.")
    parser.add_argument("command", choices=("export", "record", "answer"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="models, or areas; all without")
    parser.add_argument("--batchfit", default="target/release/batchfit", help="the binary that answers")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one model")
    parser.add_argument("--gpu-list", action="store_true", help="only models for a recording of a few minutes")
    parser.add_argument("--again", action="store_true", help="those that failed, once more")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    options = parser.parse_args()
    import zoo

    models = zoo.load()
    unknown = [name for name in options.names if name not in models and name not in zoo.AREAS]
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
        if known and not options.names and not (failed and options.again):
            continue
        wanted.append(name)

    def run(name: str) -> None:
        model = models[name]
        if options.command == "export":
            rows = export(name, model, options.out, options.limit)
        elif options.command == "record":
            rows = record(name, model, options.out, options.limit)
        else:
            rows = answer(name, model, options.out, options.limit, options.batchfit)
        lines.replace(name, rows)
        errors = [row["error"].strip().splitlines()[0][:160] for row in rows if row.get("error")]
        print(f"{name:45} {errors[0] if errors else 'ok' if rows else '-'}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
