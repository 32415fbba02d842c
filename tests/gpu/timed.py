#!/usr/bin/env python3
"""How long a training step takes batchfit on a real GPU, beside PyTorch, for models drawn from public_models.py.

Three models of each family, drawn by a seed (12, unless another is given: so that nobody chose them), alternately in fp32 and
amp_bf16, AdamW. Both sides make the same model from the same list: PyTorch runs it eagerly with its defaults (TF32 in cuDNN's
convolutions, none in matrix products), batchfit its exported graph; a step is forward, backward, optimizer and zero_grad, and
the median of ten after three is compared. Prints a table; exits 1 when a model does not run, its memory is not the simulated,
the geometric mean of the ratios is above 1.0 or one of them above 1.15.

Usage: timed.py CHECK GRAPHS [--seed N] [--batch N] [--only NAME,...] [--precision PRECISION] [--out FILE] [--dry-run]
       timed.py CHECK GRAPHS --profile --only NAME,... [--precision PRECISION]
CHECK is the test binary that `cargo test --release --test gpu --no-run` builds, GRAPHS a folder of what
`tests/models/run.py export OUT --list tests/gpu/public_models.py` writes. Needs torch, torchvision, timm, transformers.
--dry-run makes every model that was drawn, and takes one step on the CPU. --profile lists where batchfit's third step spends its
time, launch by launch, with some 13 us for each wait.
"""
import argparse
import itertools
import json
import math
import os
import pathlib
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "clients/python/src"))

import public
import public_models

SEED, OF_EACH = 12, 3
STEPS, WARM = 13, 3
MEAN, WORST = 1.0, 1.15
PRECISIONS = ("fp32", "amp_bf16")


def drawn(models, seed, precision):
    """Names and precisions: as many of each family, in the order of the list."""
    rng, found = random.Random(seed), []
    families = {}
    for name, model in models.items():
        families.setdefault(model.area, []).append(name)
    for names in families.values():
        chosen = set(rng.sample(names, min(OF_EACH, len(names))))
        found += [name for name in names if name in chosen]
    turns = itertools.cycle(PRECISIONS)
    return [(name, precision or next(turns)) for name in found]


# PyTorch's side, in a process of its own.

class Trainer:
    def __init__(self, model, precision, device):
        import torch
        from batchfit.export.batches import parse_batch
        from batchfit.export.losses import with_loss
        self.torch, self.device, self.precision = torch, device, precision
        self.spec = parse_batch(model.batch)
        torch.manual_seed(0)
        self.model = built(model, device).train()
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-5)
        self.scored = with_loss(self.model, model.loss, self.spec.tensors)

    def batch(self, size):
        torch, made = self.torch, {}
        for name, tensor in self.spec.tensors.items():
            shape = self.spec.shape(name, size)
            if id(tensor) in made:
                continue
            if name in self.spec.values:
                made[id(tensor)] = torch.full(shape, self.spec.values[name], dtype=tensor.dtype, device=self.device)
            elif tensor.is_floating_point():
                made[id(tensor)] = torch.randn(shape, dtype=tensor.dtype, device=self.device)
            else:
                made[id(tensor)] = torch.randint(below(name, self.model), shape, dtype=tensor.dtype, device=self.device)
        return [made[id(tensor)] for tensor in self.spec.tensors.values()]

    def step(self, size):
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16, enabled=self.precision == "amp_bf16"):
            loss = self.scored(*self.batch(size))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


def built(model, device):
    """The model with random weights, made where they will be: on the CPU that would take longer than to train."""
    import torch
    try:
        with torch.device(device):
            return model.build().to(device)
    except Exception:  # Some constructors compute with NumPy.
        return model.build().to(device)


def below(name, model):
    """What whole numbers in a batch are below: classes, words, places."""
    config, kind = getattr(model, "config", None), type(model).__name__
    if config is None:
        return 21 if name == "y" and "segmentation" in type(model).__module__ else 1000
    if name.endswith("positions"):
        return 128
    if name == "labels" and kind.endswith(("Classification", "Segmentation")):
        return config.num_labels
    return config.get_text_config().vocab_size


def in_pytorch(cells, batch, device, limit):
    """Prints the median step of each cell, a line of JSON each."""
    import torch
    models = public_models.load()

    def late(*_):
        raise TimeoutError(f"took longer than {limit} s")

    signal.signal(signal.SIGALRM, late)
    on_gpu = device == "cuda"
    for name, precision in cells:
        began, row = time.perf_counter(), {"model": name, "precision": precision}
        signal.alarm(limit)
        try:
            trainer = Trainer(models[name], precision, device)
            row["made_s"] = round(time.perf_counter() - began, 1)
            times = []
            for _ in range(STEPS if on_gpu else 1):
                if on_gpu:
                    torch.cuda.synchronize()
                start = time.perf_counter()
                loss = trainer.step(batch)
                if on_gpu:
                    torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - start))
            row.update(ms=statistics.median(times[WARM:] or times), loss=loss.item())
            row["parameters"] = sum(p.numel() for p in trainer.model.parameters())
        except Exception as error:  # The next model is timed all the same.
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        signal.alarm(0)
        trainer = loss = None
        if on_gpu:
            torch.cuda.empty_cache()
        row["seconds"] = round(time.perf_counter() - began, 1)
        print(json.dumps(row), flush=True)


def ask_pytorch(cells, batch, device, limit):
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import timed; timed.in_pytorch({cells!r}, {batch}, {device!r}, {limit})"
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        yield json.loads(line)
    if process.wait() != 0:
        print(f"PyTorch's side ended with {process.returncode}", file=sys.stderr)


# batchfit's side: one process for all, and another where one was lost.

def ask_batchfit(check, graphs, cells, batch, limit, profile=False):
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            request = {"training": {"precision": precision, "optimizer": "adamw"}, "device": "sim:h200"}
            pathlib.Path(folder, f"{precision}.json").write_text(json.dumps(request))
        left = list(cells)
        while left:
            cases = [{"request": f"{folder}/{precision}.json", "model": str(graphs / f"{name}.json.gz"), "batch": batch, "steps": STEPS}
                     for name, precision in left]
            listed = pathlib.Path(folder, "cases.jsonl")
            listed.write_text("".join(json.dumps(case) + "\n" for case in cases))
            for row in rows_of(check, listed, limit, profile):
                name, precision = left.pop(0)
                yield {**row, "model": name, "precision": precision}
                if row.get("verdict") != "fits":
                    break  # A kernel's fault stays with the process.
                if not left:
                    break


def rows_of(check, listed, limit, profile):
    """What the test binary says of each case, until it ends or says nothing for too long; then why."""
    command = [check, "--ignored", "--exact", "cases::recorded_cases_run", "--nocapture"]
    environment = {**public.libraries(), "BATCHFIT_CASES": str(listed), "RUST_BACKTRACE": "0"}
    if profile:
        environment["BATCHFIT_PROFILE"] = "1"
    with tempfile.TemporaryFile("w+") as wrong:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=wrong, text=True)
        lines = queue.Queue()

        def read():
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=limit)
                except queue.Empty:
                    yield {"verdict": "failed", "cause": f"took longer than {limit} s"}
                    return
                if line is None:
                    process.wait()
                    wrong.seek(0)
                    said = " ".join(wrong.read().split())
                    yield {"verdict": "failed", "cause": f"the process ended with {process.returncode}: {said[:400]}"}
                    return
                if "{\"" in line:
                    row = json.loads(line[line.index("{"):])
                    if "verdict" in row:
                        yield row
        finally:
            process.kill()
            process.wait()
            if profile:
                wrong.seek(0)
                print(wrong.read(), end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check")
    parser.add_argument("graphs", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", choices=PRECISIONS, help="for all, instead of taking turns")
    parser.add_argument("--only", help="models, by the start of their names, with commas; drawn or not")
    parser.add_argument("--out", type=pathlib.Path, help="where rows are written as well, a line of JSON each")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one model on one side")
    parser.add_argument("--list", action="store_true", help="only tell which were drawn")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    models = public_models.load()
    if options.only:
        named = {name: model for name, model in models.items() if name.startswith(tuple(options.only.split(",")))}
        cells = [(name, precision) for name in named for precision in PRECISIONS if options.precision in (None, precision)]
    else:
        cells = drawn(models, options.seed, options.precision)
    if options.list:
        print("\n".join(f"{models[name].area:16} {name:44} {precision}" for name, precision in cells))
        return
    missing = [name for name, _ in cells if not (options.graphs / f"{name}.json.gz").exists()]
    if missing or not cells:
        sys.exit(f"no graph of {', '.join(sorted(set(missing))) or options.only} in {options.graphs}")
    if options.dry_run:
        failed = 0
        for row in ask_pytorch(cells, 2, "cpu", 10 * options.limit):
            print(f"{row['model']:44} {row['precision']:9} {row.get('error') or 'loss %.3f' % row['loss']}, {row['seconds']} s", flush=True)
            failed += "error" in row
        sys.exit(1 if failed else 0)

    if options.profile:
        for row in ask_batchfit(os.path.abspath(options.check), options.graphs.absolute(), cells, options.batch, options.limit, True):
            print(f"{row['model']} {row['precision']}: {row['verdict']} {row.get('cause') or ''}", flush=True)
        return

    began, rows = time.time(), {}
    for row in ask_pytorch(cells, options.batch, "cuda", options.limit):
        rows[row["model"], row["precision"]] = {"theirs": row}
    between = time.time()
    print(f"PyTorch took {between - began:.0f} s for {len(rows)} models", flush=True)
    failed, ratios = 0, []
    with (options.out or pathlib.Path(os.devnull)).open("w") as out:
        for ours in ask_batchfit(os.path.abspath(options.check), options.graphs.absolute(), cells, options.batch, options.limit):
            theirs = rows.get((ours["model"], ours["precision"]), {}).get("theirs", {"error": "no answer"})
            out.write(json.dumps({"ours": ours, "theirs": theirs}) + "\n")
            out.flush()
            ratio, text = compared(ours, theirs)
            failed += ratio is None or ratio > WORST or "DIFFERS" in text
            ratios += [] if ratio is None else [ratio]
            print(f"{models[ours['model']].area:16} {ours['model']:44} {ours['precision']:9} {text}", flush=True)
    print(f"batchfit took {time.time() - between:.0f} s")
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        above = sum(ratio > WORST for ratio in ratios)
        print(f"{len(ratios)} of {len(cells)} timed at batch {options.batch}, seed {options.seed}: geometric mean {mean:.3f}, "
              f"worst {max(ratios):.2f}, {above} above {WORST}")
        failed += mean > MEAN
    sys.exit(1 if failed or not ratios else 0)


def compared(ours, theirs):
    """The ratio of the times, if there is one, and what to print."""
    if ours["verdict"] != "fits":
        return None, f"DID NOT RUN: {ours['verdict']}: {ours['cause']}"
    ms = statistics.median(ours["step_ms"][WARM:])
    memory = "" if ours["real"] == ours["replayed"] else "  MEMORY DIFFERS " + " ".join(
        f"{kind} {100 * (max(real) / max(ours['replayed'][kind]) - 1):+.3f} %" if real and ours["replayed"][kind] else f"{kind} unknown"
        for kind, real in ours["real"].items())
    memory += "" if all(loss is not None for step in ours["losses"] for loss in step) else "  NO LOSS"
    text = f"{ms:8.2f} ms, {ours['launches'][-1]:5} launches"
    if "error" in theirs:
        return None, f"{text}  PyTorch failed: {theirs['error']}{memory}"
    ratio = ms / theirs["ms"]
    return ratio, f"{text}, PyTorch {theirs['ms']:8.2f} ms  {ratio:5.2f}{' SLOW' if ratio > WORST else ''}{memory}"


if __name__ == "__main__":
    main()
