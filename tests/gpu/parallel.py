#!/usr/bin/env python3
"""Training steps on several GPUs, one process each, beside PyTorch's: what they compute, and how long they take.

`values`: small models from numerics_models.py, with the same weights on all ranks and a batch of its own on each. The losses of
every step and rank are compared, and the gradients of the first step where each rank has whole ones (DDP, ZeRO-1). Both sides run
without TF32. `times`: ResNet-50, GPT-2 and Llama 1B; the median of ten steps after three, of the slower rank, and peaks of
memory. Exits 1 when a case does not run, values differ, or a step takes more than 1.15 times PyTorch's.

Usage: parallel.py CHECK [--world N] [--only NAME,..] [--what values,times] [--out FILE] [--limit SECONDS] [--list]
       parallel.py --dry-run [--only NAME,..]
CHECK is the test binary that `cargo test --release --test gpu --no-run` builds. Needs as many GPUs as ranks that are alike, torch,
torchvision, transformers, safetensors, and NCCL's library on the library path. --dry-run has PyTorch's side run on the CPU with
gloo, small, and needs neither CHECK nor GPUs.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "clients/python/src"))
sys.path.insert(0, str(HERE))

STEPS, WARM, WORST = 13, 3, 1.15
VALUE_STEPS = 4
LIMITS = {"fp32": 2e-4, "amp_fp16": 2e-2, "amp_bf16": 2e-2, "bf16": 2e-2}
BF16MP = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
UNITS = {"gpt2": "transformer.h.*", "llama": "model.layers.*", "llama1b": "model.layers.*", "mlp": "layers.*", "resnet18": "layer?.*", "resnet50": "layer?.*"}


@dataclass(frozen=True)
class Case:
    what: str
    model: str
    precision: str
    optimizer: str
    parallel: dict
    batch: int = 0
    accumulation: int = 1
    rate: float = 1e-3
    marks: str = ""

    @property
    def name(self) -> str:
        strategy = self.parallel["strategy"]
        marks = f"-{self.marks}" if self.marks else ""
        batch = f"-b{self.batch}" if self.batch else ""
        return f"{self.what}-{self.model}-{strategy}{marks}-{self.precision}-{self.optimizer.replace(':', '_')}{batch}"


def ddp(**kw): return {"strategy": "ddp", **kw}
def zero1(**kw): return {"strategy": "zero1", **kw}
def fsdp2(model, **kw): return {"strategy": "fsdp2", "units": [UNITS[model]], **kw}


CASES = [
    Case("times", "resnet50", "amp_fp16", "sgd_momentum", ddp(), 64),
    Case("times", "gpt2", "amp_bf16", "adamw", ddp(), 4),
    Case("values", "mlp", "fp32", "sgd_momentum", ddp()),
    Case("values", "resnet18", "fp32", "sgd_momentum", ddp()),
    Case("values", "gpt2", "fp32", "adamw", ddp()),
    Case("values", "gpt2", "amp_bf16", "adamw", ddp()),
    Case("values", "mlp", "fp32", "adamw", ddp(gradient_as_bucket_view=True), marks="gbv"),
    Case("values", "mlp", "fp32", "adamw", ddp(), accumulation=3, marks="accum3"),
    Case("values", "mlp", "fp32", "adamw", ddp(comm_hook="bf16"), marks="hook"),
    Case("values", "mlp", "fp32", "adamw", zero1()),
    Case("values", "gpt2", "fp32", "adamw", zero1()),
    Case("values", "mlp", "fp32", "adamw", fsdp2("mlp")),
    Case("values", "gpt2", "fp32", "adamw", fsdp2("gpt2")),
    Case("values", "llama", "fp32", "adamw", fsdp2("llama")),
    Case("values", "mlp", "fp32", "adamw", fsdp2("mlp", mixed_precision=BF16MP), marks="bf16mp"),
    Case("times", "gpt2", "amp_bf16", "adamw", ddp(), 16),
    Case("times", "gpt2", "amp_bf16", "adamw", zero1(), 4),
    Case("times", "resnet50", "amp_fp16", "sgd_momentum", ddp(gradient_as_bucket_view=True), 64, marks="gbv"),
    Case("times", "llama1b", "bf16", "adamw:fused", ddp(), 3),
    Case("times", "llama1b", "fp32", "adamw", fsdp2("llama1b", mixed_precision=BF16MP), 2, marks="bf16mp"),
    Case("times", "llama1b", "fp32", "adamw", fsdp2("llama1b", mixed_precision=BF16MP), 8, marks="bf16mp"),
    Case("times", "gpt2", "amp_bf16", "adamw", fsdp2("gpt2"), 4),
    Case("times", "resnet50", "amp_bf16", "sgd_momentum", fsdp2("resnet50"), 64),
]
LLAMA = dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, vocab_size=32000,
             max_position_embeddings=2048)


def config_of(model: str, small: bool):
    import transformers
    if model == "gpt2":
        return transformers.GPT2Config(**(dict(n_layer=2, n_head=2, n_embd=32, vocab_size=101) if small else {})), 16 if small else 1024
    tiny = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=101)
    return transformers.LlamaConfig(**(tiny if small else LLAMA)), 16 if small else 2048


def timed_model(case: Case, small: bool):
    """The model on the CPU, what makes a batch, and what makes the loss."""
    import torch
    if case.model == "resnet50":
        import torchvision
        model, size = (torchvision.models.resnet18(), 32) if small else (torchvision.models.resnet50(), 224)
        make = lambda b, device, dtype: (torch.randn(b, 3, size, size, device=device, dtype=dtype), torch.randint(1000, (b,), device=device))
        return model, make, lambda m, x, y: torch.nn.functional.cross_entropy(m(x), y)
    import transformers
    config, length = config_of(case.model, small)
    config.use_cache = False
    kind = {"gpt2": transformers.GPT2LMHeadModel, "llama1b": transformers.LlamaForCausalLM}[case.model]
    make = lambda b, device, dtype: (torch.randint(config.vocab_size, (b, length), device=device),)
    return kind(config), make, lambda m, ids: m(input_ids=ids, labels=ids).loss


# PyTorch's side: one rank, in a process of its own.

def in_pytorch(spec: dict) -> None:
    import torch
    import torch.distributed as dist
    case, rank, on_gpu = Case(**spec["case"]), spec["rank"], spec["device"] == "cuda"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(spec["port"]), RANK=str(rank), WORLD_SIZE=str(spec["world"]))
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    values = case.what == "values"
    if values:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    stored = torch.bfloat16 if case.precision == "bf16" else torch.float32
    torch.manual_seed(0)
    if values:
        import numerics_models
        from batchfit.export.losses import with_loss
        from safetensors.torch import load_file
        made = numerics_models.MODELS[case.model]
        fed = load_file(spec["feed"])
        model = made.build().to(stored)
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                tensor.copy_(fed[name])
        batch = tuple(fed[name].to(device) for name in made.inputs)
        make, score = (lambda *_: batch), (lambda m, *tensors: with_loss(m, made.loss, list(made.inputs))(*tensors))
    else:
        model, make, score = timed_model(case, not on_gpu)
        model = model.to(stored)
    model = wrapped(model, case, device)
    model.train()
    optimizer = optimizer_of(model, case, stepping=case.rate if values else 1e-5)
    amp = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(case.precision)
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0) if case.precision == "amp_fp16" and on_gpu else None
    torch.manual_seed(100 + rank)
    losses, times, allocated, reserved, gradients = [], [], [], [], {}
    steps = VALUE_STEPS if values else STEPS if on_gpu else 2
    for step in range(steps):
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for micro in range(case.accumulation):
            last = micro + 1 == case.accumulation
            with quiet(model, case, last):
                with torch.autocast(device.type, dtype=amp or torch.bfloat16, enabled=amp is not None):
                    loss = score(model, *make(case.batch if on_gpu else 2, device, stored))
                part = loss / case.accumulation
                (scaler.scale(part) if scaler else part).backward()
            losses.append(loss.detach())
        if values and step == 0 and case.parallel["strategy"] != "fsdp2":
            gradients = {name.removeprefix("module."): p.grad.detach().float().cpu().clone() for name, p in model.named_parameters() if p.grad is not None}
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
            allocated.append(torch.cuda.max_memory_allocated())
            reserved.append(torch.cuda.max_memory_reserved())
        times.append(1e3 * (time.perf_counter() - began))
    if gradients and rank == 0:
        from safetensors.torch import save_file
        save_file({name: tensor.contiguous() for name, tensor in gradients.items()}, spec["dump"])
    print(json.dumps({"rank": rank, "losses": [loss.float().item() for loss in losses], "step_ms": times, "allocated": allocated, "reserved": reserved}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def wrapped(model, case: Case, device):
    import fnmatch
    import torch
    given = dict(case.parallel)
    if given["strategy"] != "fsdp2":
        model = model.to(device)
        ids = [device.index] if device.type == "cuda" else None
        options = {key: given[key] for key in ("gradient_as_bucket_view", "static_graph", "bucket_cap_mb") if key in given}
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, **options)
        if "comm_hook" in given:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            model.register_comm_hook(None, getattr(default_hooks, f"{given['comm_hook']}_compress_hook"))
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    types = {"bf16": torch.bfloat16, "fp32": torch.float32}
    options = {"mesh": init_device_mesh(device.type, (torch.distributed.get_world_size(),))}
    if "mixed_precision" in given:
        options["mp_policy"] = MixedPrecisionPolicy(**{key: types[name] for key, name in given["mixed_precision"].items()})
    for pattern in given["units"]:
        for name, module in model.named_modules():
            if fnmatch.fnmatchcase(name, pattern) and name.count(".") == pattern.count("."):
                fully_shard(module, **options)
    fully_shard(model, **options)
    return model


def optimizer_of(model, case: Case, stepping: float):
    import torch
    kind, _, how = case.optimizer.partition(":")
    cls, options = {"sgd_momentum": (torch.optim.SGD, dict(momentum=0.9)), "adamw": (torch.optim.AdamW, {})}[kind]
    options = {**options, "lr": stepping, **({"fused": True} if how == "fused" else {})}
    if case.parallel["strategy"] == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=cls, **options)
    return cls(model.parameters(), **options)


def quiet(model, case: Case, last: bool):
    import contextlib
    if case.parallel["strategy"] == "fsdp2":
        model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()
    return contextlib.nullcontext() if last else model.no_sync()


# Both sides.

def ranks_of(commands: list[tuple[list[str], dict[str, str]]], limit: float) -> list[dict]:
    """What each rank printed last as JSON; a rank that fails ends the others."""
    with tempfile.TemporaryDirectory() as folder:
        files = [open(f"{folder}/{rank}", "w+") for rank in range(len(commands))]
        running = [subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT)
                   for (command, environment), file in zip(commands, files)]
        deadline, failed = time.time() + limit, None
        while any(one.poll() is None for one in running):
            bad = [rank for rank, one in enumerate(running) if one.poll() not in (None, 0)]
            if bad and failed is None:
                failed, deadline = f"rank {bad[0]} ended with {running[bad[0]].poll()}", min(deadline, time.time() + 3)
            if time.time() > deadline:
                failed = failed or f"took longer than {limit} s"
                for one in running:
                    one.kill()
            time.sleep(0.05)
        rows = []
        for rank, (one, file) in enumerate(zip(running, files)):
            file.seek(0)
            text = file.read()
            file.close()
            found = [line[line.index("{"):] for line in text.splitlines() if "{\"" in line and "step_ms" in line]
            if one.returncode != 0 or not found:
                said = [line for line in text.splitlines() if line.strip()]
                raise RuntimeError(f"{failed or f'rank {rank} ended with {one.returncode}'}: " + " / ".join(said[-12:])[-1500:])
            rows.append(json.loads(found[-1]))
        return rows


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask_pytorch(case: Case, world: int, device: str, folder: str, limit: float) -> list[dict]:
    port, commands = free_port(), []
    for rank in range(world):
        spec = dict(case=case.__dict__, rank=rank, world=world, device=device, port=port, feed=f"{folder}/feed.{rank}", dump=f"{folder}/theirs")
        commands.append(([sys.executable, "-W", "ignore", __file__, "--pytorch", json.dumps(spec)], {"PYTHONUNBUFFERED": "1"}))
    return ranks_of(commands, limit)


def ask_batchfit(case: Case, check: str, world: int, folder: str, limit: float) -> list[dict]:
    kind, _, how = case.optimizer.partition(":")
    training = {"precision": case.precision, "optimizer": kind, "accumulation": case.accumulation, "parallel": {**case.parallel, "world_size": world}}
    if how:
        training["optimizer_impl"] = how
    request = {"training": training, "device": "sim:h200"}
    shared = {"REQUEST": f"{folder}/request.json", "WORLD": str(world), "MEET": f"{folder}/meet", "CACHE": os.environ.get("BATCHFIT_KERNEL_CACHE", "/tmp/batchfit-kernels")}
    pathlib.Path(folder, "meet").unlink(missing_ok=True)
    if case.what == "values":
        import numerics_models
        shared.update(MODEL=f"{folder}/model.json", BATCH=str(numerics_models.MODELS[case.model].batch), STEPS=str(VALUE_STEPS), RATE=str(case.rate), EXACT="1")
    else:
        shared.update(BATCH=str(case.batch), STEPS=str(STEPS))
        if case.model == "resnet50":
            request["model"] = {"preset": "resnet50"}
        else:
            config, length = config_of(case.model, False)
            name = {"gpt2": "GPT2LMHeadModel", "llama1b": "LlamaForCausalLM"}[case.model]
            request["model"] = {"hf": {**config.to_dict(), "architectures": [name]}, "seq_len": length}
    pathlib.Path(folder, "request.json").write_text(json.dumps(request, default=str))
    commands = []
    for rank in range(world):
        settings = {**shared, "RANK": str(rank)}
        if case.what == "values":
            settings.update(FEED=f"{folder}/feed.{rank}", DUMP=f"{folder}/ours.{rank}")
        environment = {f"BATCHFIT_RANKS_{key}": value for key, value in settings.items()}
        commands.append(([check, "--ignored", "--exact", "ranks::one_of_several", "--nocapture"], {**environment, "RUST_BACKTRACE": "0"}))
    return ranks_of(commands, limit)


def prepare(case: Case, world: int, folder: str) -> None:
    """The graph, and the values of each rank: weights alike, batches not."""
    import numerics
    import torch
    from safetensors.torch import load_file, save_file
    check = numerics.Check(case.model, case.precision)
    numerics.prepare(check, folder)
    os.replace(f"{folder}/{check.files}.json", f"{folder}/model.json")
    spec = numerics.MODELS[case.model]
    held = load_file(f"{folder}/{check.files}.values")
    for rank in range(world):
        torch.manual_seed(1 + 100 * rank)
        batch = {name: tensor.to(held[name].dtype) for name, tensor in spec.make_batch(spec.batch).items()}
        save_file({**held, **{name: tensor.clone() for name, tensor in batch.items()}}, f"{folder}/feed.{rank}")


def compared_values(case: Case, ours: list[dict], theirs: list[dict], folder: str) -> tuple[bool, str]:
    from safetensors.torch import load_file
    limit, worst = LIMITS[case.precision], 0.0
    if "mixed_precision" in case.parallel or "comm_hook" in case.parallel:
        limit = LIMITS["bf16"]
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine["losses"], other["losses"], strict=True):
            off = abs(a - b) / max(abs(b), 1e-9) if a is not None else math.inf
            worst = max(worst, off)
    # Each rank has a batch of its own; in bfloat16 losses may be alike by rounding, and then PyTorch's are too.
    distinct = [len({round(row["losses"][0], 5) for row in rows}) for rows in (ours, theirs)]
    differ = distinct[0] >= distinct[1]
    text = f"{len(ours)} x {len(ours[0]['losses'])} losses from {ours[0]['losses'][0]:.4f} to {ours[0]['losses'][-1]:.4f}, off {worst:.1e}"
    ok = worst <= limit and differ
    if not differ:
        text += ", ALIKE ON ALL RANKS"
    if case.parallel["strategy"] == "fsdp2":
        return ok, text
    wanted, found = load_file(f"{folder}/theirs"), {}
    parts = [load_file(f"{folder}/ours.{rank}") for rank in range(len(ours))]
    for part in parts:
        for name, tensor in part.items():
            if name in found and not (found[name] == tensor).all():
                return False, f"{text}; ranks have other gradients of {name}"
            found[name] = tensor
    if missing := set(wanted) - set(found):
        return False, f"{text}; no gradient of {sorted(missing)[:3]}"
    together = lambda of: [of[name].flatten().double() for name in wanted]
    import torch
    a, b = torch.cat(together(found)), torch.cat(together(wanted))
    off = ((a - b).norm() / b.norm()).item()
    allowed = 1e-3 if limit < 1e-3 else 3e-2
    return ok and off <= allowed, f"{text}; {len(wanted)} gradients off {off:.1e}"


def compared_times(case: Case, ours: list[dict], theirs: list[dict]) -> tuple[bool, str]:
    slowest = lambda rows: max(statistics.median(row["step_ms"][WARM:]) for row in rows)
    mine, other = slowest(ours), slowest(theirs)
    mib = lambda rows, kind: "/".join(f"{max(row[kind]) / 2**20:.0f}" for row in rows)
    ratio = mine / other
    text = (f"{mine:8.2f} ms, PyTorch {other:8.2f} ms, {ratio:5.2f}{' SLOW' if ratio > WORST else ''}; MiB allocated {mib(ours, 'allocated')}, PyTorch "
            f"{mib(theirs, 'allocated')}, reserved {mib(ours, 'reserved')}, PyTorch {mib(theirs, 'reserved')}; libraries {ours[0]['libraries_mib']}, "
            f"communicator {ours[0]['communicator_mib']}, grown {ours[0]['grown_mib']}")
    return ratio <= WORST and all(loss is not None for row in ours for loss in row["losses"]), text


def main() -> None:
    if sys.argv[1:2] == ["--pytorch"]:
        return in_pytorch(json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", nargs="?")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--only", help="parts of names, with commas")
    parser.add_argument("--what", default="values,times")
    parser.add_argument("--out", type=pathlib.Path, help="where rows are written as well, a line of JSON each")
    parser.add_argument("--limit", type=float, default=90, help="seconds for one side of a case")
    parser.add_argument("--seconds", type=float, default=1e9, help="no case is begun later")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    cases = [case for case in CASES if case.what in options.what.split(",") and (not options.only or any(part in case.name for part in options.only.split(",")))]
    if options.list:
        print("\n".join(case.name for case in cases))
        return
    if not cases:
        sys.exit("no case is called so; see --list")
    if not options.dry_run and not options.check:
        parser.error("CHECK is missing")
    failed, began = [], time.time()
    for case in cases:
        if time.time() - began > options.seconds:
            print(f"no time  {case.name}", flush=True)
            failed.append(case.name)
            continue
        row = {"case": case.name}
        with tempfile.TemporaryDirectory() as folder:
            try:
                if case.what == "values":
                    prepare(case, options.world, folder)
                device = "cpu" if options.dry_run else "cuda"
                row["theirs"] = ask_pytorch(case, options.world, device, folder, 4 * options.limit if options.dry_run else options.limit)
                if options.dry_run:
                    ok, text = True, f"losses {[round(loss, 3) for loss in row['theirs'][-1]['losses']]}"
                else:
                    row["ours"] = ask_batchfit(case, os.path.abspath(options.check), options.world, folder, options.limit)
                    compare = compared_values(case, row["ours"], row["theirs"], folder) if case.what == "values" else compared_times(case, row["ours"], row["theirs"])
                    ok, text = compare
            except Exception as error:  # The next case runs all the same.
                ok, text = False, f"{type(error).__name__}: {error}"
        failed += [] if ok else [case.name]
        print(f"{'ok    ' if ok else 'FAILED'} {case.name:52} {text}  ({time.time() - began:.0f} s)", flush=True)
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps({**row, "ok": ok, "text": text}) + "\n")
    print(f"{len(cases) - len(failed)} of {len(cases)}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
