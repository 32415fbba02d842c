"""How long fits over the exported graphs take, and whether two binaries give the same answers.

    times.py OUT [NAME...] --batchfit BINARY [--batchfit OTHER] [--runs 5]

Each model is asked about in both precisions, on the card that `run.py answer` asks about. Times are of the whole process, its
start included: of the processor (user and system), which other work on the machine hardly changes, and by the clock, which needs
an idle machine. Several binaries take turns. Prints medians over the runs, and exits with 1 where recommendations differ.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from run import Lines, card_of
from zoo import PRECISIONS
from table import percentile


@dataclass
class Times:
    """Milliseconds of one binary's fits of one question, a number for each run."""

    processor: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    recommendation: object = None


def fit(binary: str, graph: Path, question: str, database: str, times: Times) -> None:
    arguments = [binary, "fit", "-", "--model", str(graph), "--json", "--database", database]
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as asked:
        asked.write(question.encode())
        asked.seek(0)
        begin = time.monotonic()
        child = subprocess.Popen(arguments, stdin=asked, stdout=told, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        times.clock.append(1000 * (time.monotonic() - begin))
        times.processor.append(1000 * (used.ru_utime + used.ru_stime))
        # It is waited for already.
        child.returncode = os.waitstatus_to_exitcode(status)
        told.seek(0)
        if child.returncode in (0, 3):
            times.recommendation = json.loads(told.read())["result"]["recommendation"]


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):6.1f}  95 % {percentile(values, 95):6.1f}  most {max(values):7.1f}  sum {sum(values):8.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Times fits over exported graphs.")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="models; all without")
    parser.add_argument("--batchfit", action="append", help="a binary; several are compared")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_intermixed_args()
    binaries = options.batchfit or ["target/release/batchfit"]
    recordings = [*Lines(Path(__file__).parent / "recordings.jsonl").rows, *Lines(options.out / "recordings.jsonl").rows]
    questions: dict[tuple[str, str], dict[str, Times]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for graph in sorted((options.out / "graphs").glob("*.json.gz")):
            name = graph.name.removesuffix(".json.gz")
            if options.names and name not in options.names:
                continue
            card = card_of([row for row in recordings if row["model"] == name])
            for precision in PRECISIONS:
                question = json.dumps({"training": {"precision": precision, "optimizer": "adamw"}, "device": card})
                asked = {binary: Times() for binary in binaries}
                for _ in range(options.runs):
                    for binary, times in asked.items():
                        fit(binary, graph, question, str(Path(folder, "times.db")), times)
                if asked[binaries[0]].recommendation is not None:
                    questions[name, precision] = asked
    if not questions:
        parser.error("no fit was answered")
    for binary in binaries:
        asked = {question: times[binary] for question, times in questions.items()}
        processor = {question: statistics.median(times.processor) for question, times in asked.items()}
        clock = [statistics.median(times.clock) for times in asked.values()]
        print(f"{binary}: {len(asked)} fits, milliseconds")
        print(f"  processor  {spread(list(processor.values()))}")
        print(f"  clock      {spread(clock)}")
        for name, precision in sorted(processor, key=processor.get, reverse=True)[:10]:
            print(f"    {processor[name, precision]:7.1f}  {name} {precision}")
    different = [
        question
        for question, asked in questions.items()
        if any(times.recommendation != asked[binaries[0]].recommendation for times in asked.values())
    ]
    for name, precision in different:
        print(f"different: {name} {precision}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
