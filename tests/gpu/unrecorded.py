#!/usr/bin/env python3
"""How near answers are for convolutional networks whose layers no table has: sizes and widths that libraries do not have.

    unrecorded.py export                      writes the graphs in tests/golden/unrecorded again (PyTorch, torchvision, timm, the Python package)
    unrecorded.py record FILE [--only NAME]   what PyTorch does on a GPU: reserved peaks at three batches, and the largest batches in 6 GiB,
                                              with retries of the allocator and without
    unrecorded.py check BATCHFIT [FLAG ...]   compares answers with what was recorded (truth.json); flags go to `batchfit fit` and `probe`
    unrecorded.py bisect BATCHFIT [FLAG ...]  the same of the bisection by which the largest batches were recorded, with probes in the place of training

Each is trained three steps with AdamW, in float32 and with autocast to bfloat16. truth.json was recorded on an NVIDIA H100 80GB HBM3 with driver
580.159.04, PyTorch 2.11.0 and cuDNN 9.19.0 on 2026-11-26. Which of several batches with and without retries is found depends on where a
bisection begins: this one doubles a batch of one until it fails.
"""
import argparse
import copy
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import time

GOLDEN = pathlib.Path(__file__).parents[1] / "golden/unrecorded"
LIMIT = 6 << 30
BATCHES = (4, 12, 28)
STEPS = 3
PRECISIONS = ("fp32", "amp_bf16")

try:
    import torch
    import torch.nn.functional as F
    from unrecorded_nets import NETS
except ImportError:  # comparing needs no PyTorch
    NETS = {}


class Trainer:
    """One network, of which each trial trains a fresh copy."""

    def __init__(self, name, precision):
        build, self.shape, self.classes = NETS[name]
        self.model, self.autocast = build(), precision == "amp_bf16"
        self.known = {}

    def trial(self, batch, limit=None):
        """Reserved and allocated peaks, or nothing where memory ends; and retries."""
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total) if limit else 1.0)
        self.clean()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        fits = True
        try:
            self.steps(batch)
        except torch.OutOfMemoryError:
            fits = False
        stats = torch.cuda.memory_stats()
        self.clean()
        peaks = (stats["reserved_bytes.all.peak"], stats["allocated_bytes.all.peak"]) if fits else None
        return peaks, stats["num_alloc_retries"]

    def clean(self):
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def steps(self, batch):
        model = copy.deepcopy(self.model).to("cuda").train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        for _ in range(STEPS):
            x, y = torch.randn(batch, *self.shape, device="cuda"), torch.randint(self.classes, (batch,), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.autocast):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            del loss, x, y
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def largest(self, wanted):
        """The largest batch of which `wanted(peaks, retries)` holds; all smaller ones are taken to be as good."""

        def holds(batch):
            # Once each: cuDNN's plans that fit in the end are kept for the shape, and with them a second trial has fewer retries.
            if batch not in self.known:
                self.known[batch] = self.trial(batch, LIMIT)
            return wanted(*self.known[batch])

        return bisection(holds)


def bisection(holds):
    """A batch of which this holds, below one of which it does not. One is taken to: batch normalization cannot be trained with one pixel."""
    good, bad = 1, 2
    while holds(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def record(file, only):
    rows = json.loads(file.read_text()) if file.exists() else []
    done = {(row["name"], row["precision"]) for row in rows}
    for name in NETS:
        for precision in PRECISIONS:
            if (name, precision) in done or (only and name != only):
                continue
            trainer = Trainer(name, precision)
            peaks = {str(batch): trainer.trial(batch)[0] for batch in BATCHES}
            largest = trainer.largest(lambda peaks, _: peaks is not None)
            calm = trainer.largest(lambda peaks, retries: peaks is not None and retries == 0)
            rows.append(dict(name=name, precision=precision, peaks=peaks, max_batch=largest, max_batch_without_retries=calm))
            file.write_text(json.dumps(rows, indent=1) + "\n")
            print(rows[-1], flush=True)


def export():
    for name, (_, shape, _) in NETS.items():
        builder = f"unrecorded_nets:build_{name.replace('-', '_')}"
        output = GOLDEN / f"{name}.json.gz"
        arguments = [builder, "--batch", f"x=f32[B,{','.join(map(str, shape))}]", "y=i64[B]", "--loss", "cross_entropy", "-o", str(output)]
        subprocess.run([sys.executable, "-m", "batchfit.export", *arguments], check=True, cwd=pathlib.Path(__file__).parent)


def asking(binary, flags):
    def ask(*arguments):
        done = subprocess.run([binary, *arguments, "--on", "h100-80g", "--optimizer", "adamw", "--json", *flags], capture_output=True, text=True)
        if done.returncode not in (0, 3):
            sys.exit(done.stderr)
        return json.loads(done.stdout)

    return ask


def near(pairs):
    """The share of answers that are within 1 % of what was recorded, or one batch."""
    return sum(abs(found - truth) <= max(1, truth / 100) for found, truth in pairs) / len(pairs)


def bisect(binary, flags):
    ask, rows = asking(binary, flags), []
    for truth in json.loads((GOLDEN / "truth.json").read_text()):
        graph, known = str(GOLDEN / f"{truth['name']}.json.gz"), {}

        def verdict(batch):
            if batch not in known:
                known[batch] = ask("probe", graph, "--precision", truth["precision"], "--memory-limit", str(LIMIT), "--batch", str(batch))["verdict"]
            return known[batch]

        largest = bisection(lambda batch: verdict(batch) in ("fits", "fits_with_retries"))
        calm = bisection(lambda batch: verdict(batch) == "fits")
        rows.append([(calm, truth["max_batch_without_retries"]), (largest, truth["max_batch"])])
        name = f"{truth['name']} {truth['precision']}"
        print(f"{name:26} without retries {calm:5} of {truth['max_batch_without_retries']:5}, with {largest:5} of {truth['max_batch']:5}", flush=True)
    for at, which in enumerate(("without retries", "with them")):
        pairs = [row[at] for row in rows]
        same = sum(found == truth for found, truth in pairs)
        print(f"largest batch {which}: the same in {same} of {len(pairs)}, within 1 % in {near(pairs):.0%}")


def check(binary, flags):
    ask, rows, off, seconds = asking(binary, flags), [], [], []
    for truth in json.loads((GOLDEN / "truth.json").read_text()):
        graph, precision = str(GOLDEN / f"{truth['name']}.json.gz"), ("--precision", truth["precision"])
        begun = time.perf_counter()
        said = ask("fit", graph, *precision, "--memory-limit", str(LIMIT), "--database", "sqlite::memory:")["result"]["recommendation"]
        seconds.append(time.perf_counter() - begun)
        peaks = []
        for batch, (reserved, _) in truth["peaks"].items():
            peaks.append(ask("probe", graph, *precision, "--batch", batch)["peak_reserved_bytes"] / reserved - 1)
        off += map(abs, peaks)
        found = [(said[key], truth[key]) for key in ("max_batch_without_retries", "max_batch")]
        rows.append([*found, (said["micro_batch"], truth["max_batch"])])
        name = f"{truth['name']} {truth['precision']}"
        print(f"{name:26} without retries {found[0][0]:5} of {found[0][1]:5}, with {found[1][0]:5} of {found[1][1]:5}, recommended {said['micro_batch']:5}; reserved", *(f"{peak:+.1%}" for peak in peaks), flush=True)
    off.sort()
    share = lambda at: near([row[at] for row in rows])
    runs_out = sum(recommended > truth for *_, (recommended, truth) in rows)
    print(f"{len(rows)} fits: largest batch without retries within 1 % in {share(0):.0%}, with them in {share(1):.0%}; {runs_out} recommended batches run out of memory")
    print(f"{len(off)} reserved peaks: median {statistics.median(off):.1%}, p90 {off[int(0.9 * len(off))]:.1%}, p95 {off[int(0.95 * len(off))]:.1%}, worst {off[-1]:.1%}")
    print(f"a fit takes {statistics.median(seconds):.2f} s in the median, {max(seconds):.2f} s at most")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["export", "record", "check", "bisect"])
    parser.add_argument("file", nargs="?", type=pathlib.Path)
    parser.add_argument("--only")
    options, flags = parser.parse_known_args()
    match options.what:
        case "export":
            export()
        case "record":
            record(options.file, options.only)
        case "check":
            check(options.file, flags)
        case "bisect":
            bisect(options.file, flags)


if __name__ == "__main__":
    main()
