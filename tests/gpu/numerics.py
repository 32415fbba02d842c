"""Compares training steps of batchfit's kernels with PyTorch's, on the same weights and the same batch.

For each model and precision: export the model, write its weights and a batch to a file, run three steps in PyTorch and three
with batchfit, and compare the losses of all steps and every parameter's gradient in the first. Then the losses of twenty steps
of AdamW on one batch. Both sides run without TF32, and batchfit checks that each launch writes all of its results.

A gradient is itself uncertain by about as much as rounding changes it, which the column `noise` shows: PyTorch's own distance
from its float64 gradient. Two independent roundings are sqrt(2) times as far apart as one of them is from the truth, so an error
may be as large as the limit or, for all gradients together, 1.5 times the noise, whichever is larger; for a single gradient,
whose noise is one draw, 2.5 times. Gradients jump where an activation crosses the kink of
a relu, so that a freshly made ResNet-18 turns float32's 1e-7 into 1e-3 and bfloat16's 4e-3 into 0.4. Raising the biases in
front of its relus keeps all but a few activations away from the kink; VGG has no normalization that would make it possible.
A gradient that is zero but for rounding (of an attention key's bias) is measured against all gradients together.

Usage: python3 numerics.py CHECK [--only MODEL,..] [--precision PRECISION] [--jobs N] [--keep DIR] [--list]
           [--shard I/N] [--no-poison] [--memcheck | --dry-run]
CHECK is the test binary that `cargo test --test gpu --no-run` builds. Needs a GPU, torch, torchvision, transformers, safetensors.
--memcheck runs two steps of each model, on exactly as much memory as it asks for, under compute-sanitizer instead.
--dry-run needs no GPU: it exports and compiles, and checks that batchfit would get a value for each tensor.
"""
from __future__ import annotations

import argparse
import concurrent.futures as futures
import contextlib
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "clients/python/src"))

import torch
from batchfit.export.batches import as_batch
from batchfit.export.exporting import export_built
from batchfit.export.losses import with_loss
import numerics_families
import numerics_models
import numerics_operators
from numerics_models import weights
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint

MODELS = {**numerics_models.MODELS, **numerics_operators.MODELS, **numerics_families.MODELS}
LIMITS = {"fp32": 1e-3, "amp_fp16": 2e-2, "amp_bf16": 2e-2, "bf16": 2e-2, "fp16": 2e-2}
DEVICE = "cuda"
Tensors = dict[str, torch.Tensor]
CURVE_LIMIT = 1e-2
AUTOCAST = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
PARAMETERS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
SANITIZERS = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")


@dataclass(frozen=True)
class Check:
    """One run of a model on both sides."""
    model: str
    precision: str
    checkpointed: bool = False
    accumulation: int = 1
    # Of AdamW, to compare losses; otherwise three steps of SGD with momentum, to compare gradients.
    curve: bool = False

    @property
    def name(self) -> str:
        marks = ["curve"] * self.curve + ["ckpt"] * self.checkpointed
        marks += [f"accum{self.accumulation}"] * (self.accumulation > 1)
        return "-".join([self.model, self.precision, *marks])

    @property
    def steps(self) -> int:
        return 20 if self.curve else 3

    @property
    def rate(self) -> float:
        return MODELS[self.model].rate if self.curve else 1e-4

    @property
    def files(self) -> str:
        """What names its graph and values: checks that differ in autocast alone share them."""
        return f"{self.model}-{self.precision}" if self.precision in PARAMETERS else self.model


CHECKS = [
    *(Check(name, precision) for name, model in MODELS.items() for precision in model.precisions),
    *(Check("gpt2", precision, checkpointed=True) for precision in ("fp32", "amp_bf16")),
    Check("resnet18", "fp32", checkpointed=True),
    Check("bottlenecks", "amp_fp16", checkpointed=True),
    Check("gpt2", "amp_fp16", accumulation=2),
    Check("resnet18", "fp32", accumulation=2),
    *(Check(name, precision, curve=True) for name, model in MODELS.items() if model.curve for precision in ("fp32", "amp_bf16")),
]


# The values that both sides start from.

@contextlib.contextmanager
def noting_constants(constants: Tensors) -> Iterator[None]:
    """Adds the values of tensors that the model's code makes of numbers, which a graph names but does not hold."""
    trace, make, made = torch.export.export, torch.tensor, []

    def making(data, *args, **named):
        result = make(data, *args, **named)
        if result.is_meta:
            made.append((data, result.dtype, result.shape))
        return result

    def traced(*args, **named):
        made.clear()
        with mock.patch.object(torch, "tensor", making):
            program = trace(*args, **named)
        lifted = {path.removeprefix("model."): value for path, value in program.constants.items() if "lifted_tensor" in path}
        # They are numbered in the order in which the code makes them.
        numbered = sorted((path for path in lifted if lifted[path].is_meta), key=lambda path: int(path.rsplit("_", 1)[1]))
        if [told[1:] for told in made] == [(lifted[path].dtype, lifted[path].shape) for path in numbered]:
            lifted.update({path: make(data, dtype=dtype) for path, (data, dtype, _) in zip(numbered, made)})
        constants.update({path: value for path, value in lifted.items() if not value.is_meta})
        return program

    with mock.patch.object(torch.export, "export", traced):
        yield


def prepare(check: Check, folder: str) -> None:
    """Writes the graph and the values; in a process of its own, without a GPU."""
    torch.set_num_threads(1)
    spec, dtype = MODELS[check.model], PARAMETERS.get(check.precision, torch.float32)
    torch.manual_seed(1)
    batch = spec.make_batch(spec.batch)
    given = {id(tensor): tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in batch.values()}
    batch = {name: given[id(tensor)] for name, tensor in batch.items()}
    # Before anything else imports the model's modules: compiled functions in them take no sizes that stand for others.
    constants: Tensors = {}
    with noting_constants(constants):
        exported = export_built(spec.build, as_batch(batch, {}), spec.loss, None if dtype == torch.float32 else dtype)
    exported.save(f"{folder}/{check.files}.json")
    model = weights(spec).to(dtype)
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {name: tensor.detach().clone() for name, tensor in {**constants, **held, **batch}.items()}
    save_file(values, f"{folder}/{check.files}.values.part")
    os.replace(f"{folder}/{check.files}.values.part", f"{folder}/{check.files}.values")


# PyTorch's side.

def steps_in_pytorch(check: Check, values: Tensors, precision: str) -> tuple[list[float], Tensors]:
    """The loss of each step, and the gradients of the first."""
    spec = MODELS[check.model]
    dtype = PARAMETERS.get(precision, torch.float32)
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in values.items()}
    model = spec.build().to(DEVICE, dtype).train()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(cast[name])
    if check.checkpointed:
        for module in model.modules():
            if type(module).__name__ == spec.block:
                module.forward = checkpointing(module.forward)
    if check.curve:
        optimizer = torch.optim.AdamW(model.parameters(), lr=check.rate)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=check.rate, momentum=0.9)
    autocast = AUTOCAST.get(precision)
    scored = with_loss(model, spec.loss, list(spec.inputs))
    losses, gradients = [], {}
    for step in range(check.steps):
        for _ in range(check.accumulation):
            with torch.autocast(DEVICE, dtype=autocast or torch.float16, enabled=autocast is not None):
                loss = scored(*(cast[name] for name in spec.inputs))
            (loss / check.accumulation).backward()
            losses.append(loss.item())
        if step == 0:
            gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, gradients


def checkpointing(forward):
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


# batchfit's side.

def batchfit_command(check: Check, binary: str, folder: str, test: str, options) -> tuple[list[str], dict[str, str]]:
    values = dict(
        MODEL=f"{folder}/{check.files}.json",
        FEED=f"{folder}/{check.files}.values",
        DUMP=f"{folder}/{check.name}.dump",
        PRECISION=check.precision,
        BATCH=str(2 if "memcheck" in test else MODELS[check.model].batch),
        STEPS=str(check.steps),
        OPTIMIZER="adamw" if check.curve else "sgd_momentum",
        RATE=str(check.rate),
        ACCUMULATION=str(check.accumulation),
        CHECKPOINTING="per_block" if check.checkpointed else "none",
        OUTPUTS="trusted" if options.no_poison else "poisoned",
    )
    environment = {**os.environ, "RUST_BACKTRACE": "0", **{f"BATCHFIT_NUMERICS_{key}": value for key, value in values.items()}}
    return [binary, "--ignored", "--exact", test, "--nocapture"], environment


def steps_in_batchfit(check: Check, binary: str, folder: str, prepared: futures.Future, options) -> str | None:
    """Runs the steps; gives what went wrong, if anything did."""
    prepared.result()
    command, environment = batchfit_command(check, binary, folder, "numerics::steps_on_given_values", options)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    return None if succeeded(ran) else trouble(ran)


def succeeded(ran: subprocess.CompletedProcess) -> bool:
    """A binary without the test succeeds as well, having run none."""
    return ran.returncode == 0 and "1 passed" in ran.stdout


def trouble(ran: subprocess.CompletedProcess) -> str:
    lines = (ran.stdout + ran.stderr).splitlines()
    said = [line for line in lines if line.strip() and not line.startswith(("running ", "test ", "failures", "note: "))]
    return "\n".join(f"    {line}" for line in [*said[:12], f"exit status {ran.returncode}"])


# The comparison.

def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double().cpu(), b.double().cpu()
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


class References:
    """PyTorch's float64 gradients, kept until they are asked for with other values."""

    def __init__(self):
        self._known = {}

    def of(self, check: Check, values: Tensors) -> Tensors:
        if check.files not in self._known:
            self._known = {check.files: steps_in_pytorch(Check(check.model, "fp64"), values, "fp64")[1]}
        return self._known[check.files]


def compare_gradients(check: Check, losses, gradients, references, ours) -> tuple[bool, str]:
    limit = LIMITS[check.precision]
    names = list(gradients)
    together = [torch.cat([side[name].flatten().double().cpu() for name in names]) for side in (gradients, references)]
    if missing := [name for name in names if name not in ours]:
        return False, f"no gradient of {', '.join(missing[:5])}"
    everything = torch.cat([ours[name].flatten().double() for name in names])
    overall, overall_noise = distance(everything, together[0]), distance(*together)
    rows = []
    for name in names:
        noise = distance(gradients[name], references[name])
        if noise < 0.5:
            rows.append((name, distance(ours[name], gradients[name]), noise))
        else:
            off = (ours[name].double() - gradients[name].double().cpu()).norm() / together[0].norm()
            rows.append((f"{name} (zero)", off.item(), 0.0))
    failed = [row for row in rows if not row[1] <= max(limit, 2.5 * row[2])]
    worst = max(rows, key=lambda row: math.inf if math.isnan(row[1]) else row[1])
    off = largest_error(ours, losses)
    passed = not failed and overall <= max(limit, 1.5 * overall_noise) and off <= limit
    text = (f"{len(names):3} gradients, together {overall:.1e} (noise {overall_noise:.1e}), "
            f"worst {worst[1]:.1e} ({worst[0]}, noise {worst[2]:.1e}), {len(losses)} losses from {losses[0]:.4f} off {off:.1e}")
    beyond = sorted((row for row in rows if not row[1] <= limit), key=lambda row: -row[1])
    listed = [f"    {what:56} error {error:.1e}  noise {noise:.1e}" for what, error, noise in beyond[:6]]
    return passed, "\n".join([text, *listed])


def largest_error(ours: Tensors, losses: list[float]) -> float:
    """How far the losses are apart; infinite where there is no number."""
    off = [abs(a - b) / abs(b) for a, b in zip(ours["loss"].tolist(), losses, strict=True)]
    return max(off) if all(math.isfinite(error) for error in off) else math.inf


def compare_losses(losses: list[float], ours: Tensors) -> tuple[bool, str]:
    off = largest_error(ours, losses)
    falls = losses[-1] < 0.9 * losses[0]
    text = f"{len(losses)} losses from {losses[0]:.4f} to {losses[-1]:.4f}, off {off:.1e} at most"
    return off <= CURVE_LIMIT and falls, text if falls else f"{text}; they do not fall"


def one(check: Check, folder: str, failure: str | None, references: References) -> tuple[bool, str]:
    values = load_file(f"{folder}/{check.files}.values", device=DEVICE)
    losses, gradients = steps_in_pytorch(check, values, check.precision)
    if failure is not None:
        return False, f"batchfit failed\n{failure}"
    ours = load_file(f"{folder}/{check.name}.dump")
    if check.curve:
        return compare_losses(losses, ours)
    return compare_gradients(check, losses, gradients, references.of(check, values), ours)


# What can be asked for.

def compare_all(checks, binary, folder, makers, options) -> bool:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    references, passed = References(), []
    with futures.ThreadPoolExecutor(options.jobs) as runners:
        prepared = start_preparing(checks, folder, makers)
        running = [runners.submit(steps_in_batchfit, c, binary, folder, prepared[c.files], options) for c in checks]
        for check, run in zip(checks, running):
            try:
                ok, text = one(check, folder, run.result(), references)
            except Exception as error:  # one model's trouble must not hide the others' results
                ok, text = False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            report(check.name, ok, text)
            passed.append(ok)
            torch.cuda.empty_cache()
    return summary(checks, passed)


def start_preparing(checks, folder, makers) -> dict[str, futures.Future]:
    prepared: dict[str, futures.Future] = {}
    for check in checks:
        if check.files not in prepared:
            known = Path(f"{folder}/{check.files}.values").exists()
            prepared[check.files] = makers.submit(print, end="") if known else makers.submit(prepare, check, folder)
    return prepared


def run_all(checks, binary, folder, makers, options, test, wrapper=()) -> bool:
    """Runs a test of the binary on each check, without PyTorch's side."""
    def run(check):
        prepared[check.files].result()
        command, environment = batchfit_command(check, binary, folder, test, options)
        begin = time.time()
        ran = subprocess.run([*wrapper, *command], env=environment, capture_output=True, text=True)
        return ran, time.time() - begin

    prepared, passed = start_preparing(checks, folder, makers), []
    with futures.ThreadPoolExecutor(options.jobs) as runners:
        for check, running in zip(checks, [runners.submit(run, check) for check in checks]):
            ran, seconds = running.result()
            errors = [line for line in ran.stdout.splitlines() + ran.stderr.splitlines() if "ERROR SUMMARY" in line]
            said = [error.split("ERROR SUMMARY:")[1].strip() for error in errors]
            # Under the sanitizer, silence is no proof that anything was looked at.
            ok = succeeded(ran) and (not wrapper or said == ["0 errors"])
            text = f"{seconds:.0f} s {' '.join(said)}"
            report(check.name, ok, text if ok else f"{text}\n{trouble(ran)}")
            passed.append(ok)
    return summary(checks, passed)


def report(name: str, ok: bool, text: str) -> None:
    print(f"{'ok    ' if ok else 'FAILED'} {name:26} {text}", flush=True)


def summary(checks: list[Check], passed: list[bool]) -> bool:
    failed = [check.name for check, ok in zip(checks, passed) if not ok]
    print(f"{sum(passed)} of {len(checks)} checks passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return not failed


def sanitizer() -> str:
    found = shutil.which("compute-sanitizer") or next((path for path in SANITIZERS if os.access(path, os.X_OK)), None)
    if found is None:
        sys.exit(f"compute-sanitizer is neither on the path nor at {' or '.join(SANITIZERS)}")
    return found


def selected(options) -> list[Check]:
    names = options.only.split(",") if options.only else list(MODELS)
    if unknown := set(names) - set(MODELS):
        sys.exit(f"unknown models {', '.join(sorted(unknown))}; known are {', '.join(MODELS)}")
    if options.shard:
        which, of = map(int, options.shard.split("/"))
        names = names[which::of]
    checks = [c for c in CHECKS if c.model in names and options.precision in (None, c.precision)]
    if options.memcheck:
        # The others launch the same kernels.
        checks = [c for c in checks if c == Check(c.model, c.precision) and c.precision in ("fp32", "amp_fp16")]
    return sorted(checks, key=lambda check: names.index(check.model))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("check")
    parser.add_argument("--only", help="models, with commas between them")
    parser.add_argument("--precision")
    parser.add_argument("--shard", help="only every so many models, as in 0/4, for several of these at a time")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="runs of batchfit at a time")
    parser.add_argument("--keep", help="a folder for graphs and values, used again if they are there")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--no-poison", action="store_true")
    parser.add_argument("--memcheck", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    checks = selected(options)
    if options.list:
        print("\n".join(check.name for check in checks))
        return
    binary = os.path.abspath(options.check)
    begin = time.time()
    with contextlib.ExitStack() as stack:
        if options.keep:
            folder = os.path.abspath(options.keep)
            os.makedirs(folder, exist_ok=True)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        fresh = multiprocessing.get_context("spawn")
        workers = min(len({check.files for check in checks}), os.cpu_count() or 1)
        makers = stack.enter_context(futures.ProcessPoolExecutor(workers, mp_context=fresh))
        if options.dry_run:
            ok = run_all(checks, binary, folder, makers, options, "numerics::all_values_are_given")
        elif options.memcheck:
            wrapper = (sanitizer(), "--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no")
            ok = run_all(checks, binary, folder, makers, options, "numerics::memcheck::steps_in_exact_memory", wrapper)
        else:
            ok = compare_all(checks, binary, folder, makers, options)
    print(f"{time.time() - begin:.0f} s")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
