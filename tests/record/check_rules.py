"""An independent check of batchfit's rules: PyTorch itself runs exported graphs, and its allocator says what they ask for.

    PYTHONPATH=clients/python/src python tests/record/check_rules.py --binary target/release/batchfit --out OUT [--jobs 8] [PATH...]

Every exported graph under the PATHs (default: tests/golden) is trained for three steps at a small batch in several precisions by
the interpreter of `batchfit.recorder`, which knows nothing of batchfit's rules, and what PyTorch's allocator was asked for is
compared with what `batchfit program` says, event by event; then the peaks with those of `batchfit probe`. Where casts are cached,
frees between two allocations count in any order: a hash table of addresses decides about it.

Prints a table of what differs and where first, and writes OUT/check_rules.jsonl, a line for each graph and precision. Wants a GPU,
or a stub of the CUDA runtime that computes nothing (`--stub`): cuDNN does not start there. Exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
PRECISIONS = ("fp32", "amp_bf16", "amp_fp16")
# Seconds for one row: a virtual GPU's weights of a billion are made on the processor.
PATIENCE = 120


def graphs(paths: list[str]) -> list[tuple[str, str, str]]:
    """Graphs: a name, the file, and the member of it that is the graph, if it holds several."""
    found = []
    for path in paths:
        files = sorted(Path(path).rglob("*.json.gz")) if Path(path).is_dir() else [Path(path)]
        for file in files:
            opened = gzip.open(file) if file.suffix == ".gz" else open(file, "rb")
            with opened:
                document = json.load(opened)
            name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)
            name = name.removeprefix("tests/golden/").removesuffix(".json.gz")
            if "graph_module" in document:
                found.append((name, str(file), ""))
            elif isinstance(document, dict):
                inner = [key for key, value in document.items() if isinstance(value, dict) and "graph_module" in value]
                found += [(f"{name}:{key}", str(file), key) for key in inner]
    return found


# --- what PyTorch does, in a process of its own -------------------------------------------------------------------------------


def worker(arguments: argparse.Namespace) -> None:
    """Reads rows from stdin and answers each with a line."""
    import torch

    from batchfit.recorder import interpreter

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    interpreter.quiet()
    if arguments.stub:
        torch.backends.cudnn.enabled = False
    torch.cuda.init()
    documents: dict[str, Any] = {}
    for line in sys.stdin:
        row = json.loads(line)
        begin = time.monotonic()
        try:
            if row["file"] not in documents:
                documents.clear()
                opened = gzip.open(row["file"]) if row["file"].endswith(".gz") else open(row["file"], "rb")
                with opened:
                    documents[row["file"]] = json.load(opened)
            document = documents[row["file"]]
            answer = check(arguments, row, document[row["member"]] if row["member"] else document)
        except LeftBehind:
            answer = {"fatal": True, "again": True}
        except Exception as error:  # Whatever goes wrong is a row of the table.
            text = str(error).splitlines() or [""]
            answer = {"result": "failed", "what": f"{type(error).__name__}: {text[0][:400]}"}
            if "CUDA error" in str(error):
                answer["fatal"] = True
        answer["seconds"] = round(time.monotonic() - begin, 2)
        answers.write(json.dumps({**row, **answer}) + "\n")
        answers.flush()
        if answer.get("fatal"):
            # Nothing works on this card's context any more.
            os._exit(3)


class LeftBehind(Exception):
    """Something of the rows before is still there, as cuDNN's state for dropout in recurrent nets is: another process has none."""


def check(arguments: argparse.Namespace, row: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    batch, text = row["batch"], json.dumps(document).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        path.write_bytes(text)
        options = ["--on", arguments.card, "--batch", str(batch), "--precision", row["precision"], "--optimizer", row["optimizer"]]
        if arguments.stub:
            # It finds nothing where values choose.
            options += ["--chosen-percent", "0"]
        if row["checkpoint"] != "none":
            options += ["--checkpoint", row["checkpoint"]]
        listed = run([arguments.binary, "program", str(path), *options])
        probed = run([arguments.binary, "probe", str(path), *options, "--json"])
    if listed.returncode:
        return {"result": "refused", "what": listed.stderr.strip()[:400]}
    theirs, peaks = recorded(row, text)
    ours = [(words[0], " ".join(words[1:])) for words in map(str.split, listed.stdout.splitlines()) if words and words[0][0] in "+-"]
    difference = first_difference(ours, theirs, row["precision"].startswith("amp"))
    steps = json.loads(probed.stdout)["steps"] if probed.stdout else []
    our_peaks = [[step["peak_allocated_bytes"], step["peak_reserved_bytes"]] for step in steps]
    answer: dict[str, Any] = {"events": len(theirs), "peaks": peaks, "our_peaks": our_peaks}
    if difference is None:
        return {**answer, "result": "equal" if peaks == our_peaks else "peaks", "what": "" if peaks == our_peaks else f"ours {our_peaks} theirs {peaks}"}
    # Without a table of lifetimes both sides go by rules, and not by the same.
    return {**answer, "result": "differs" if "batchfit" in document else "untold", "what": difference}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs the binary, without what a stub puts into every process."""
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def recorded(row: dict[str, Any], text: bytes) -> tuple[list[str], list[list[int]]]:
    """What the allocator is asked for, and the peaks of each step."""
    import gc

    import torch

    from batchfit.recorder import graphs as read_graphs
    from batchfit.recorder.training import GraphProgram, Training, train

    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_allocated()
    if left:
        raise LeftBehind
    device = torch.device("cuda")
    torch.manual_seed(0)
    training = Training(precision=row["precision"], optimizer=row["optimizer"], checkpointing=row["checkpoint"])
    program = GraphProgram(read_graphs.read(text), training, device)
    peaks: list[list[int]] = []

    def end_step() -> None:
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        peaks.append([stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]])

    alive: object = None
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=2_000_000)
    try:
        alive = train(program, training, row["batch"], device, torch.cuda.reset_peak_memory_stats, end_step)
        torch.cuda.synchronize()
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
        del program, alive
    sign = {"alloc": "+", "free_requested": "-"}
    return [f"{sign[entry['action']]}{entry['size']}" for entry in entries if entry["action"] in sign], peaks


def first_difference(ours: list[tuple[str, str]], theirs: list[str], in_any_order: bool) -> Optional[str]:
    """Where two sequences part first, and what only one of them asks for; nothing if they are the same."""
    if in_any_order:
        ours, theirs = sorted_frees(ours, lambda event: event[0]), sorted_frees(theirs, lambda event: event)
    i = j = 0
    while i < len(ours) or j < len(theirs):
        mine = ours[i][0] if i < len(ours) else "end"
        if mine == "+workspace":
            # Of a convolution: whatever is allocated and freed at once, or nothing.
            after = ours[i + 2][0] if i + 2 < len(ours) else "end"
            pair = j + 1 < len(theirs) and theirs[j][0] == "+" and theirs[j + 1] == "-" + theirs[j][1:]
            follows = theirs[j + 2] if j + 2 < len(theirs) else "end"
            now = theirs[j] if j < len(theirs) else "end"
            i += 2
            if pair and (follows == after or now != after):
                j += 2
            continue
        if mine in ("+0", "-0"):
            i += 1
            continue
        if j < len(theirs) and mine == theirs[j]:
            i, j = i + 1, j + 1
            continue
        around = " ".join(theirs[max(0, j - 4) : j + 6])
        label = f"{ours[i][0]} {ours[i][1]}" if i < len(ours) else "nothing"
        before = [f"{event} {what}" for event, what in ours[max(0, i - 2) : i]]
        return f"event {j}: ours {label}, theirs {theirs[j] if j < len(theirs) else 'nothing'}; after {before}; theirs around {around}; {only(ours, theirs)}"
    return None


def only(ours: list[tuple[str, str]], theirs: list[str]) -> str:
    """Allocations that only one side has, the largest first."""
    counted = collections.Counter(event for event in theirs if event[0] == "+")
    counted.subtract(event for event, _ in ours if event[0] == "+" and event not in ("+workspace", "+0"))
    missing = sorted(((size, count) for size, count in counted.items() if count), key=lambda item: -int(item[0]))
    shown = ", ".join(f"{count:+d} of {size[1:]}" for size, count in missing[:8])
    return f"allocations of theirs less ours: {shown or 'none'}"


def sorted_frees(events: list[Any], key: Any) -> list[Any]:
    """The same with each run of frees sorted, but what was allocated last comes first: it may be a convolution's workspace."""
    result: list[Any] = []
    run_of: list[Any] = []

    def end_run() -> None:
        last = key(result[-1])[1:] if result else ""
        result.extend(sorted(run_of, key=lambda event: (key(event)[1:] != last, key(event))))
        run_of.clear()

    for event in events:
        if key(event)[0] == "-":
            run_of.append(event)
            continue
        end_run()
        result.append(event)
    end_run()
    return result


# --- the table ----------------------------------------------------------------------------------------------------------------


class Child:
    """A worker, started again when it dies or hangs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.row: Optional[dict[str, Any]] = None
        self.since = 0.0
        command = [sys.executable, __file__, "--worker", "--binary", arguments.binary, "--card", arguments.card]
        self.process = subprocess.Popen(
            command + (["--stub"] if arguments.stub else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            if arguments.silent else None, text=True,
        )  # fmt: skip

    def give(self, row: dict[str, Any]) -> None:
        self.row, self.since = row, time.monotonic()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(row) + "\n")
        self.process.stdin.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="*", default=[str(ROOT / "tests" / "golden")])
    parser.add_argument("--binary", default=str(ROOT / "target" / "release" / "batchfit"))
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--card", default="h200")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", default="", help="a part of the names of graphs")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--checkpoint", default="none")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=270, help="no row is begun later")
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return 0
    arguments.binary = str(Path(arguments.binary).resolve())
    rows = [
        {"graph": name, "file": file, "member": member, "precision": precision, "batch": arguments.batch, "optimizer": arguments.optimizer,
         "checkpoint": arguments.checkpoint}
        for name, file, member in graphs(arguments.paths)
        if arguments.only in name
        for precision in arguments.precisions.split(",")
    ]  # fmt: skip
    begin = time.monotonic()
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    done: list[dict[str, Any]] = []
    todo = list(reversed(rows))
    with open(Path(arguments.out) / "check_rules.jsonl", "w", encoding="utf-8") as log, selectors.DefaultSelector() as ready:

        def start() -> None:
            child = Child(arguments)
            ready.register(child.process.stdout, selectors.EVENT_READ, child)  # type: ignore[arg-type]
            next_row(child)

        def next_row(child: Child) -> None:
            if todo and time.monotonic() - begin < arguments.seconds:
                child.give(todo.pop())
            else:
                child.row = None
                child.process.stdin.close()  # type: ignore[union-attr]

        def finished(row: dict[str, Any]) -> None:
            done.append(row)
            log.write(json.dumps(row) + "\n")
            log.flush()

        for _ in range(min(arguments.jobs, len(todo))):
            start()
        while ready.get_map():
            for key, _ in ready.select(timeout=1):
                child = key.data
                line = child.process.stdout.readline()
                if line and line.startswith("{"):
                    answer = json.loads(line)
                    if answer.get("again"):
                        todo.append(child.row)
                    else:
                        finished(answer)
                    if not answer.get("fatal"):
                        next_row(child)
                    else:
                        child.row = None
                elif not line:
                    ready.unregister(child.process.stdout)
                    status = child.process.wait()
                    if child.row is not None:
                        finished({**child.row, "result": "died", "what": f"the process ended with {status}"})
                    if (status or child.row is not None) and todo and time.monotonic() - begin < arguments.seconds:
                        start()
            for key in list(ready.get_map().values()):
                if key.data.row is not None and time.monotonic() - key.data.since > PATIENCE:
                    key.data.process.kill()
    return report(done, len(rows), time.monotonic() - begin)


def report(done: list[dict[str, Any]], asked: int, seconds: float) -> int:
    results = collections.Counter(row["result"] for row in done)
    for row in sorted(done, key=lambda row: (row["result"], row["graph"])):
        if row["result"] != "equal":
            print(f"{row['result']:8} {row['graph']} {row['precision']}: {row['what'][:700]}")
    print(f"{len(done)} of {asked} rows in {seconds:.0f} s: " + ", ".join(f"{count} {name}" for name, count in sorted(results.items())))
    return 0 if set(results) <= {"equal"} and done else 1


if __name__ == "__main__":
    sys.exit(main())
