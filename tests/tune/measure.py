"""Measures `batchfit.tune` on a GPU: its answers beside bisection by real runs, and beside the finders of other libraries.

    python tests/tune/measure.py --out DIR [--only resnet50,bert] [--phases tune,truth,peers] [--budget 540]

For each program of programs.py, each in a process of its own: `tune` under its limit (the answer, seconds, warm-up, out-of-memory
errors, whether the state is bit for bit what it was); then real runs of three steps at batches around the answer, each in a fresh
process under the same limit, to the largest that finishes without retries of the allocator and, for the cases, at all; then the
finders of Lightning, Accelerate and Hugging Face on the four cases. A line of JSON for each, in DIR/results.jsonl, and a table.
BATCHFIT_BINARY names the binary where it is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Nothing that an earlier measurement found counts as known.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="batchfit-measure-")
# Where PyTorch looks for CUDA's headers when it compiles a kernel of one's own.
for _home in (Path(shutil.which("nvcc") or "/bin/nvcc").resolve().parents[1], Path("/usr/local/cuda")):
    if (_home / "include" / "cuda_runtime.h").exists():
        os.environ.setdefault("CUDA_HOME", str(_home))
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "clients" / "python" / "src")]

import torch  # noqa: E402

import programs  # noqa: E402

# Seconds that one process may take.
LONGEST = 60

# Seconds beyond the budget that runs under way may still take.
GRACE = 15

# Batches that peers begin with, as their users do: Accelerate and Hugging Face go down from a large one.
LARGE = 1024


class Child:
    """What a function gives in a process of its own.

    Forked before CUDA starts, so that what is imported need not be imported again; from a process that has no other threads of its
    own. torch.compile keeps helper processes, which do not survive a fork: its programs begin again, with `--one`.
    """

    def __init__(self, work, name, *arguments, timeout=LONGEST):
        entry = programs.PROGRAMS[name]
        self.timeout = timeout if entry.seconds is None else max(timeout, entry.seconds)
        self._end = time.monotonic() + self.timeout
        self._text = b""
        read, write = os.pipe()
        if entry.seconds is not None:
            command = [sys.executable, str(Path(__file__).resolve()), "--one", work, name, *map(str, arguments)]
            process = subprocess.Popen(command, stdout=write, start_new_session=True)
            self._process = process.pid
        else:
            self._process = os.fork()
            if self._process == 0:
                self._run(work, name, arguments, write, read)
        os.close(write)
        os.set_blocking(read, False)
        self._read = read

    def _run(self, work, name, arguments, write, read):
        try:
            os.setsid()
            os.close(read)
            # Where it is when its time is nearly over.
            faulthandler.dump_traceback_later(max(1, self.timeout - 3), exit=False)
            os.write(write, said(work, name, *arguments).encode())
        finally:
            os._exit(0)

    def result(self):
        """What it gave; None while it runs."""
        try:
            while more := os.read(self._read, 1 << 16):
                self._text += more
            return self._ended(None)
        except BlockingIOError:
            if time.monotonic() < self._end:
                return None
            self.stop()
            return self._ended({"error": f"stopped after {self.timeout:.0f} s"})

    def stop(self):
        """Ends it, with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)

    def _ended(self, result):
        os.close(self._read)
        _, status = os.waitpid(self._process, 0)
        if result is not None:
            return result
        try:
            # The last line: what libraries print comes before it.
            return json.loads(self._text.splitlines()[-1])
        except (ValueError, IndexError):
            return {"error": f"the process ended with status {status}"}


def said(work, name, *arguments):
    """A line of JSON with what a function gives."""
    try:
        return json.dumps(WORK[work](name, *arguments))
    except BaseException as error:  # noqa: BLE001
        last = traceback.format_exc().strip().splitlines()
        return json.dumps({"error": f"{type(error).__name__}: {error}"[:500], "trace": last[-8:]})


def child(work, name, *arguments, timeout=LONGEST):
    """What a function gives in a process of its own, waited for."""
    process = Child(work, name, *arguments, timeout=timeout)
    while (result := process.result()) is None:
        time.sleep(0.01)
    return result


def limit_memory(limit):
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))


def digest(things):
    """Of all tensors of modules, optimizers and scalers, and of the random generators."""
    sums = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            sums.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                sums.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        else:
            sums.update(repr(value).encode())

    for thing in things:
        add(thing.state_dict())
    add([torch.get_rng_state(), torch.cuda.get_rng_state()])
    return sums.hexdigest()


def outside():
    """What the process holds of the GPU beside PyTorch's allocator, if it is alone there."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def tuned(name, target):
    import batchfit

    entry = programs.PROGRAMS[name]
    torch.manual_seed(0)
    program = entry.build()
    before = digest(program.state)
    held = []

    def step(b):
        program.step(b)
        held.append(outside())

    started = time.monotonic()
    plan = batchfit.tune(
        step, batch=program.batch, state=program.state, memory_limit=entry.limit, target_batch=target
    )
    seconds = time.monotonic() - started
    return {
        "micro_batch": plan.micro_batch,
        "accumulation_steps": plan.accumulation_steps,
        "seconds": round(seconds, 2),
        "warm_up_seconds": round(plan.warm_up_seconds, 2),
        "out_of_memory": torch.cuda.memory_stats()["num_ooms"],
        "runs": [[run.batch, run.outcome, round(run.seconds, 2), run.peak_reserved_bytes] for run in plan.runs],
        "evidence": plan.evidence,
        "peak_reserved_bytes": plan.peak_reserved_bytes,
        "headroom_bytes": plan.headroom_bytes,
        "limited_by": plan.limited_by,
        "notes": list(plan.notes)[:6],
        "restored": digest(program.state) == before,
        "grows_by": max(held) - held[0],
        "outside": held[0],
    }


def trial(name, batch):
    """Three real steps in a fresh process."""
    entry = programs.PROGRAMS[name]
    limit_memory(entry.limit)
    torch.manual_seed(0)
    program = entry.build()
    for thing in program.state:
        if isinstance(thing, torch.amp.GradScaler):
            # A scale that overflows nothing: a skipped step makes no optimizer state.
            thing._init_scale = 1.0
    outcome = {"batch": batch}
    try:
        for _ in range(3):
            program.step(batch)
        torch.cuda.synchronize()
        outcome["fits"] = True
    except (torch.OutOfMemoryError, RuntimeError) as error:
        text = str(error)
        if "out of memory" not in text and "ALLOC_FAILED" not in text and not isinstance(error, torch.OutOfMemoryError):
            raise
        outcome["fits"] = False
    stats = torch.cuda.memory_stats()
    return {**outcome, "retries": stats["num_alloc_retries"], "peak_reserved_bytes": stats["reserved_bytes.all.peak"]}


def truth(name, answer, hard):
    """The largest batch without retries, and with them where `hard`, from runs around the answer.

    A generator that asks for runs at a batch, is sent what they came to, and gives what is known in the end.
    """
    seen = {}

    def fits(batch, calm):
        if batch < 1:
            return True
        if batch not in seen:
            seen[batch] = yield batch
        run = seen[batch]
        return bool(run.get("fits")) and (not calm or run.get("retries") == 0)

    def largest(calm, start):
        grain = max(1, start // 400)
        step = max(1, start // 100)
        if (yield from fits(start, calm)):
            low = start
            while (yield from fits(low + step, calm)):
                low += step
                step *= 2
            high = low + step
        else:
            high = start
            while high - step > 0 and not (yield from fits(high - step, calm)):
                high -= step
                step *= 2
            low = max(0, high - step)
        while high - low > grain:
            middle = (low + high) // 2
            if (yield from fits(middle, calm)):
                low = middle
            else:
                high = middle
        return low, high

    result = {}
    result["largest"], result["refused"] = yield from largest(True, max(1, answer))
    if hard:
        result["largest_with_retries"], _ = yield from largest(False, max(1, result["largest"]))
    result["runs"] = [[batch, run.get("fits", run.get("error")), run.get("retries")] for batch, run in sorted(seen.items())]
    return result


def truths_of(answers, jobs, end, tell):
    """The truths of all programs, so many runs at a time."""
    waiting = [(name, truth(name, answer, name in programs.CASES), None) for name, answer in answers.items()]
    running, found = [], {}
    while waiting or running:
        while waiting and len(running) < jobs and time.monotonic() < end:
            name, search, result = waiting.pop(0)
            try:
                batch = search.send(result)
            except StopIteration as stop:
                found[name] = stop.value
                tell(phase="truth", program=name, **stop.value)
                continue
            running.append((name, search, Child("trial", name, batch)))
        still = []
        for name, search, process in running:
            result = process.result()
            if result is None:
                still.append((name, search, process))
            else:
                # What was begun is ended first.
                waiting.insert(0, (name, search, result))
        running = still
        is_late = time.monotonic() >= end + GRACE
        if is_late or (not running and time.monotonic() >= end):
            for _, _, process in running:
                process.stop()
            for name, *_ in waiting + running:
                tell(phase="truth", program=name, error="out of time")
            break
        time.sleep(0.01)
    return found


# The finders of other libraries.


class Numbers(torch.utils.data.Dataset):
    """Samples that are only numbers: the batch is made on the GPU, in the batch's length."""

    def __len__(self):
        return 1 << 22

    def __getitem__(self, index):
        return {"index": index}


def lightning_finder(name, mode):
    import logging

    import lightning
    from lightning.pytorch.tuner import Tuner

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    entry = programs.PROGRAMS[name]
    case = entry.case

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = case.make()
            self.batch_size = 2

        def training_step(self, batch, _index):
            return case.loss(self.model, len(batch["index"]))

        def configure_optimizers(self):
            return case.optimizer(self.model.parameters())

        def train_dataloader(self):
            return torch.utils.data.DataLoader(Numbers(), batch_size=self.batch_size)

    limit_memory(entry.limit)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, precision="16-mixed" if case.dtype == torch.float16 else "bf16-mixed",
        default_root_dir="/tmp/lightning",
    )
    module = Module()
    started = time.monotonic()
    # So that no less is tried than of the others: three steps, and as many trials as it takes.
    answer = Tuner(trainer).scale_batch_size(module, mode=mode, steps_per_trial=3, max_trials=25)
    return {"micro_batch": answer, "seconds": round(time.monotonic() - started, 2), **ooms()}


def accelerate_finder(name):
    from accelerate.utils import find_executable_batch_size

    entry = programs.PROGRAMS[name]
    limit_memory(entry.limit)
    started = time.monotonic()

    @find_executable_batch_size(starting_batch_size=LARGE)
    def train(batch_size):
        program = entry.build()
        for _ in range(3):
            program.step(batch_size)
        torch.cuda.synchronize()
        return batch_size

    answer = train()
    return {"micro_batch": answer, "seconds": round(time.monotonic() - started, 2), **ooms()}


def hf_finder(name):
    import transformers

    transformers.logging.set_verbosity_error()
    entry = programs.PROGRAMS[name]
    case = entry.case

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = case.make()

        def forward(self, index):
            return {"loss": case.loss(self.model, len(index))}

    limit_memory(entry.limit)
    optimizer = {"resnet50": "sgd", "unet": "adamw_torch"}.get(name, "adamw_torch")
    arguments = transformers.TrainingArguments(
        output_dir="/tmp/hf", per_device_train_batch_size=LARGE, auto_find_batch_size=True, max_steps=3, report_to=[],
        fp16=case.dtype == torch.float16, bf16=case.dtype == torch.bfloat16, optim=optimizer, save_strategy="no",
        disable_tqdm=True, logging_strategy="no",
    )
    trainer = transformers.Trainer(model=Wrapped(), args=arguments, train_dataset=Numbers())
    started = time.monotonic()
    trainer.train()
    answer = trainer._train_batch_size
    return {"micro_batch": answer, "seconds": round(time.monotonic() - started, 2), **ooms()}


def ooms():
    gc.collect()
    stats = torch.cuda.memory_stats()
    return {"out_of_memory": stats["num_ooms"], "retries": stats["num_alloc_retries"]}


PEERS = {
    "lightning power": lambda name: lightning_finder(name, "power"),
    "lightning binsearch": lambda name: lightning_finder(name, "binsearch"),
    "accelerate": accelerate_finder,
    "hf trainer": hf_finder,
}

# What a process of its own may be asked to do.
WORK = {
    "tuned": lambda name, target="0": tuned(name, int(target) or None),
    "trial": lambda name, batch: trial(name, int(batch)),
    **PEERS,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--only", default="")
    parser.add_argument("--phases", default="tune,truth,peers")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--jobs", type=int, default=6, help="real runs at a time, for the truth")
    parser.add_argument("--target", type=int, default=None, help="tune for this target instead of the largest batch")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("\n" + said(*options.one), flush=True)
        return
    begun = time.monotonic()
    end = begun + options.budget
    names = [name for name in programs.PROGRAMS if not options.only or name in options.only.split(",")]
    phases = options.phases.split(",")
    # Imported once, before any process is forked.
    for module in ("torchvision", "transformers", "peft", "accelerate", "batchfit.tuning", *(["lightning"] * ("peers" in phases))):
        try:
            __import__(module)
        except ImportError as error:
            print(f"{module} is not here: {error}", flush=True)
    try:
        from transformers import BertForSequenceClassification, GPT2LMHeadModel, Trainer  # noqa: F401
    except ImportError:
        pass
    Path(options.out).mkdir(parents=True, exist_ok=True)
    results = open(Path(options.out) / "results.jsonl", "a")

    def tell(**line):
        results.write(json.dumps(line) + "\n")
        results.flush()
        short = {key: value for key, value in line.items() if key not in ("runs", "notes", "trace")}
        print(f"{time.monotonic() - begun:6.1f} {json.dumps(short)}", flush=True)
        if line.get("error"):
            print("       ", line.get("trace"), flush=True)

    answers, truths, peers = {}, {}, {}
    if "tune" in phases:
        for name in names:
            if time.monotonic() < end:
                answers[name] = child("tuned", name, options.target or 0, timeout=min(LONGEST, max(5, end - time.monotonic())))
                tell(phase="tune", program=name, **answers[name])
    if "peers" in phases:
        for name in [name for name in names if name in programs.CASES]:
            for finder in PEERS:
                if time.monotonic() < end - LONGEST:
                    peers[name, finder] = child(finder, name)
                    tell(phase="peers", program=name, finder=finder, **peers[name, finder])
    if "truth" in phases:
        starts = {name: answers[name]["micro_batch"] for name in names if answers.get(name, {}).get("micro_batch")}
        truths = truths_of(starts, options.jobs, end, tell)
    print(f"\n{'program':18} {'finder':20} {'answer':>7} {'truth':>7} {'off':>8} {'seconds':>8} {'warm-up':>8} {'OOMs':>5}")
    for name in names:
        largest = truths.get(name, {}).get("largest")
        lines = [("batchfit", answers.get(name, {}))] + [(who, one) for (of_name, who), one in peers.items() if of_name == name]
        for who, one in lines:
            answer = one.get("micro_batch")
            off = f"{100 * (answer / largest - 1):+.2f} %" if answer and largest else ""
            warm = one.get("warm_up_seconds", "")
            row = (one.get("seconds", ""), warm, one.get("out_of_memory", one.get("error", "")))
            print(f"{name:18} {who:20} {answer or '':>7} {largest or '':>7} {off:>8} {row[0]:>8} {row[1]:>8} {str(row[2])[:40]:>5}")


if __name__ == "__main__":
    main()
