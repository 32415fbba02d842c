"""Asks PyTorch itself, on a virtual GPU, whether what batchfit knows of PyTorch is right.

    oracle.py BATCHFIT [PART...] [--python PYTHON] [--out FOLDER] [--few]

`calls`: a call of each operator, forward and backward; what the allocator is asked for, beside tests/golden/calls.
`graphs`: three steps of each exported graph of tests/golden, the public cases among them; every request beside `batchfit program`
and the peaks beside `batchfit probe` (tests/record/check_rules.py).
`models`: three steps of the models of tests/models whose libraries are installed, as their own code has them; peaks beside `batchfit probe`, and beside those
that an H200 had (`card`).

PYTHON has PyTorch 2.11. `--few` takes two minutes: the calls, and the public cases that are not large. oracle.json has patterns of what is
known to differ, and why. Ends with 1 where anything else does.
"""

import argparse
import fnmatch
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
# Reserved memory also depends on where a driver puts segments, and on workspaces that were not recorded for a batch.
RESERVED = 0.05


class Asked:
    """One run of the oracle: where it keeps files, and what it found to differ."""

    def __init__(self, options):
        self.options, self.compared, self.found = options, 0, {}

    def on_virtual_gpu(self, *script):
        """Runs a script of the tests on a virtual H200; gives what it printed. The script's own exit code says that something differs."""
        command = [self.options.batchfit, "run", "--on", "h200", "--steps", "0", "--json", "--", self.options.python, *map(str, script)]
        done = subprocess.run(command, env=self.environment(), cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if '"verdict"' not in done.stdout:
            sys.exit(f"{script[0]} did not run:\n{done.stderr[-3000:]}")

    def environment(self):
        sources = str(TESTS.parent / "clients/python/src")
        return {**os.environ, "PYTHONPATH": sources, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def differs(self, name, why):
        self.found[name] = why

    def beside(self, name, ours, theirs, more=0):
        """Compares [allocated, reserved] of a simulation with PyTorch's; so many bytes more may be allocated."""
        off = [our / their - 1 for our, their in zip(ours, theirs)]
        if ours[0] - theirs[0] not in (0, more) or abs(off[1]) > RESERVED:
            self.differs(name, "allocated {:+.3%}, reserved {:+.2%}".format(*off))

    def graph(self, row):
        """A row of check_rules.py."""
        name = f"graphs {row['graph']} {row['precision']}"
        if row["result"] == "refused" or "RecorderError" in row["what"]:
            return  # The graph's own types cannot be trained so, by batchfit or by PyTorch.
        self.compared += 1
        # Without lifetimes, both sides go by rules about when a tensor dies; with them, only the order of frees may differ.
        if row["result"] in ("equal", "peaks", "untold") or row["what"].endswith("less ours: none"):
            # In the first step, what is left of blocks that are not split hangs on addresses.
            for ours, theirs in zip(row["our_peaks"][1:], row["peaks"][1:]):
                self.beside(name, ours, theirs)
        else:
            self.differs(name, f"{row['result']}: {row['what'][:300]}")


def calls(asked):
    folder = asked.options.out / "calls"
    asked.on_virtual_gpu(TESTS / "record/calls.py", folder)

    def read(path):
        with gzip.open(path, "rt") as file:
            return dict(line.rstrip("\n").split(" |", 1) for line in file)

    known, found = read(TESTS / "golden/calls/calls.txt.gz"), read(folder / "calls.txt.gz")
    asked.compared += len(known)
    for call in known:
        if found.get(call) != known[call]:
            asked.differs(f"calls {call}", found.get(call, "failed")[:200])


def graphs(asked):
    few, golden = asked.options.few, TESTS / "golden"
    paths = [golden / name for name in ("exported", "steps", "functions", "operations")]
    if few:
        paths = [path for path in sorted(paths[0].glob("*.json.gz")) if "llama1b" not in path.name]
    folder = asked.options.out / "graphs"
    limits = ["--seconds", "60" if few else "1500", "--jobs", "1" if few else str(asked.options.jobs), "--precisions", "fp32,amp_bf16"]
    asked.on_virtual_gpu(TESTS / "record/check_rules.py", "--binary", asked.options.batchfit, "--out", folder, *limits, *paths)
    for row in map(json.loads, (folder / "check_rules.jsonl").read_text().splitlines()):
        asked.graph(row)


def models(asked):
    folder, run = asked.options.out / "models", TESTS / "models/run.py"
    jobs = ["--jobs", str(asked.options.jobs)]
    subprocess.run([asked.options.python, run, "export", folder, *jobs], env=asked.environment(), stdout=subprocess.DEVNULL, check=True)
    asked.on_virtual_gpu(run, "record", folder, *jobs)
    answers = [asked.options.python, run, "answer", folder, "--no-fit", "--batchfit", asked.options.batchfit]
    subprocess.run(answers, env=asked.environment(), stdout=subprocess.DEVNULL, check=True)

    def read(path):
        rows = [row for row in map(json.loads, path.read_text().splitlines()) if "allocated" in row and not row.get("stub")]
        return {"{model} {precision} {batch}".format(**row): [row["allocated"], row["reserved"]] for row in rows}

    answered, on_card = read(folder / "answers.jsonl"), read(TESTS / "models/recordings.jsonl")
    for name, peaks in read(folder / "recordings.jsonl").items():
        if name in answered:
            asked.compared += 1
            # Simulations still have the loss of the step before; the loop of tests/models lets it go.
            asked.beside(f"models {name}", answered[name], peaks, 512)
        if name in on_card:
            asked.compared += 1
            asked.beside(f"card {name}", peaks, on_card[name])


PARTS = {"calls": calls, "graphs": graphs, "models": models}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit", type=os.path.abspath)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=pathlib.Path, help="a folder to keep what was found")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    options = parser.parse_args()
    parts = options.parts or [part for part in PARTS if not (options.few and part == "models")]
    with tempfile.TemporaryDirectory() as folder:
        options.out = (options.out or pathlib.Path(folder)).absolute()
        asked = Asked(options)
        for part in parts:
            PARTS[part](asked)
    known = json.loads((HERE / "oracle.json").read_text())
    unknown = [name for name in asked.found if not any(fnmatch.fnmatchcase(name, pattern) for pattern in known)]
    for name in unknown:
        print(f"differs: {name}: {asked.found[name]}")
    for pattern, why in known.items():
        names = [name for name in asked.found if fnmatch.fnmatchcase(name, pattern)]
        if names:
            print(f"known: {len(names)} as {names[0]}: {why}")
    print(f"{asked.compared} compared, {len(asked.found)} differ, {len(unknown)} of them for no reason that is known")
    return 1 if unknown or not asked.compared else 0


if __name__ == "__main__":
    sys.exit(main())
