#!/usr/bin/env python3
"""How near answers from recordings of small batches come to what PyTorch did.

For each limit of `tests/golden/recorded/truth.json`, `batchfit fit --recorded` answers from the recordings of
`tests/golden/recorded` whose batches are at most a share of the largest batch that PyTorch trained without retries, at most
the four largest of them. Prints a line for each, and what share is exact, within 1, 3 and 5 %; exits 1 when a recommendation is
above what PyTorch finished.

Usage: recorded.py BATCHFIT [--share 0.5] [--only NAME] [--markdown]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
MOST = 4


def recordings():
    found = {}
    for path in (GOLDEN / "recorded").glob("*.gz"):
        name, batch = path.name.removesuffix(".gz").rsplit(".b", 1)
        found.setdefault(name, []).append((int(batch), path))
    return {name: sorted(files) for name, files in found.items()}


def answer(batchfit, files, cell):
    command = [batchfit, "fit", "--device", "sim:h200", "--memory-limit", f"{cell['limit_gib']}GiB", "--json", "--database", "sqlite::memory:",
               "--allocator", cell.get("allocator") or "", "--recorded", *[str(path) for _, path in files]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{files[0][1].name}: {done.stderr or done.stdout}")
    document = json.loads(done.stdout)
    return (document.get("result") or document)["recommendation"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("--share", type=float, default=0.5, help="of the answer, that recordings may have")
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    cells = json.loads((GOLDEN / "recorded/truth.json").read_text())["cells"]
    errors, above = [], []
    if options.markdown:
        print("| case | limit | recorded | PyTorch | predicted | off | recommended |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name, files in sorted(recordings().items()):
        for cell in (cell for cell in cells if cell["case"] == name):
            truth = cell["max_batch_without_retries"]
            if not name.startswith(options.only) or not truth:
                continue
            used = [file for file in files if file[0] <= truth * options.share][-MOST:]
            if len(used) < 2:
                continue
            found = answer(options.batchfit, used, cell)
            predicted, chosen = found["max_batch_without_retries"], found["micro_batch"]
            error = 100 * (predicted - truth) / truth
            errors.append(abs(error))
            limit = f"{cell['limit_gib']} GiB {cell.get('allocator') or ''}".strip()
            batches = ", ".join(str(batch) for batch, _ in used)
            row = [name, limit, batches, truth, predicted, f"{error:+.2f} %", chosen]
            print("| " + " | ".join(map(str, row)) + " |" if options.markdown else "  ".join(map(str, row)))
            if chosen > cell["max_batch"]:
                above.append(f"{name} {limit}: {chosen} is recommended, and {cell['max_batch']} is the most that finishes")
    within = ", ".join(f"{sum(error <= most for error in errors) / len(errors):.0%} within {most} %" for most in (1, 3, 5))
    exact = sum(error == 0 for error in errors) / len(errors)
    print(f"{'' if not options.markdown else chr(10)}{len(errors)} answers: {exact:.0%} exact, {within}; median {statistics.median(errors):.2f} %, "
          f"at most {max(errors):.1f} %")
    for line in above:
        print(line)
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()
