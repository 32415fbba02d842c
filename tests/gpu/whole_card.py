#!/usr/bin/env python3
"""Recommendations without a memory limit, tried in PyTorch on the same card.

For each case: `batchfit fit --device cuda:0` with no limit; then PyTorch trains twenty steps at the recommended micro-batch
in a process of its own, which must neither run out of memory nor retry; then PyTorch's own largest batch is searched upwards
from there (three steps each, fresh models, to 0.5 %). Prints a table; exits 1 when a recommendation does not hold, or takes
less than 95 % of the memory that PyTorch takes at its own maximum.

Usage: whole_card.py BATCHFIT [--only CASE,...]    Needs a GPU nobody else uses, torch, torchvision, transformers.
"""
import argparse
import json
import pathlib
import subprocess
import sys

import cases

NAMES = ["gpt2-ampbf16-adamw", "resnet50-ampfp16-sgd", "llama1b-ampbf16-adamw-ckpt"]
HOLD, TRY = 20, 3
GIB = 2**30


def child(name):
    """Answers lines `BATCH STEPS` on stdin: how that many steps on a fresh model end."""
    import gc
    import torch
    training = json.loads((cases.GOLDEN / f"truth/requests/{name}.json").read_text())["training"]
    for line in sys.stdin:
        batch, steps = map(int, line.split())
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        answer = {"batch": batch, "fits": True}
        run = None
        try:
            run = cases.Trainer(name, training)
            for _ in range(steps):
                run.step(batch)
            torch.cuda.synchronize()
        except torch.OutOfMemoryError as error:
            answer["fits"] = False
            error.__traceback__ = None
        stats = torch.cuda.memory_stats()
        answer["allocated"] = stats["allocated_bytes.all.peak"]
        answer["reserved"] = stats["reserved_bytes.all.peak"]
        answer["retries"] = stats["num_alloc_retries"]
        run = None
        print(json.dumps(answer), flush=True)


class PyTorch:
    def __init__(self, name):
        here = str(pathlib.Path(__file__).parent)
        code = f"import sys; sys.path.insert(0, {here!r}); import whole_card; whole_card.child({name!r})"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, batch, steps):
        self.process.stdin.write(f"{batch} {steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"PyTorch ended while it ran batch {batch}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def largest(pytorch, known):
    """The largest batch that finishes, from one that does."""
    best, step = known, max(1, known["batch"] // 64)
    above = None
    while above is None:
        tried = pytorch.run(best["batch"] + step, TRY)
        if tried["fits"]:
            best, step = tried, step * 2
        else:
            above = tried["batch"]
    while above - best["batch"] > max(1, best["batch"] // 200):
        tried = pytorch.run((above + best["batch"]) // 2, TRY)
        if tried["fits"]:
            best = tried
        else:
            above = tried["batch"]
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("--only", help="cases, by the start of their names, with commas")
    options = parser.parse_args()
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    failed = 0
    names = [name for name in NAMES if name.startswith(wanted)]
    if not names:
        sys.exit(f"no case begins with {options.only}; there are {', '.join(NAMES)}")
    for name in names:
        request = json.loads((cases.GOLDEN / f"truth/requests/{name}.json").read_text())
        request.pop("memory_limit", None)
        request["device"] = "cuda:0"
        graph = cases.GOLDEN / f"exported/{cases.CASES[name][0]}.json.gz"
        command = [options.batchfit, "fit", "-", "--model", str(graph), "--json"]
        done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name}: exit {done.returncode}: {done.stderr.strip()}")
            failed += 1
            continue
        best = json.loads(done.stdout)["result"]["recommendation"]
        pytorch = PyTorch(name)
        held = pytorch.run(best["micro_batch"], HOLD)
        if not held["fits"]:
            print(f"{name}: {best['micro_batch']} recommended, and PyTorch ran OUT OF MEMORY in {HOLD} steps")
            failed += 1
            pytorch.close()
            continue
        most = largest(pytorch, held)
        pytorch.close()
        share = held["reserved"] / most["reserved"]
        good = share >= 0.95 and held["retries"] == 0
        failed += not good

        def told(run):
            return (f"{run['allocated'] / GIB:.1f} GiB allocated, {run['reserved'] / GIB:.1f} reserved, "
                    f"{run['retries']} retries")
        print(f"{name}: recommended {best['micro_batch']} ({best['evidence']}, retry-free maximum {best['max_batch_without_retries']}), "
              f"{HOLD} steps in PyTorch: {told(held)}; PyTorch's largest {most['batch']}: {told(most)}; "
              f"{100 * share:.1f} % of what it takes{'' if good else '  FAILED'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
