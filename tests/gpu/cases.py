#!/usr/bin/env python3
"""Recorded cases on a real GPU: do they run, with the memory that the simulation says, and how fast beside PyTorch?

For each case of tests/golden/truth and each batch: three steps and more of the exported graph with batchfit's own kernels,
the allocator's peaks of each step beside the simulated ones (and, where the driver put segments elsewhere, beside those of
simulated memory that puts them there as well), and, at the batches that PyTorch was timed at, the median
step time beside PyTorch's own, measured in the same run on the same card (eager, PyTorch's defaults: TF32 in cuDNN's
convolutions, none in matrix products). Prints a table; exits 1 when a case does not run, a peak differs, a case takes
more than 1.15 times PyTorch's time or their geometric mean is above 1.

Usage: cases.py CHECK [--only CASE,...] [--no-torch] [--no-memory] [--profile]
CHECK is the test binary that `cargo test --release --test gpu --no-run` builds. Needs torch, torchvision, transformers.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
STEPS, WARM = 13, 3
# Batches of the recorded peaks, and batches at which PyTorch's step was timed.
CASES = {
    "bert-ampfp16-adamw-seq128-ckpt": ("bert-seq128", [8, 32, 256], []),
    "bert-ampfp16-adamw-seq512": ("bert-seq512", [2, 8, 32], [8, 32]),
    "bert-fp32-adamw-seq512": ("bert-seq512", [2, 8, 16], [8, 32]),
    "cifarnet-ampfp16-sgd": ("cifarnet", [64, 512, 4096], []),
    "cifarnet-fp32-sgd": ("cifarnet", [64, 512, 4096], [256, 4096]),
    "gpt2-ampbf16-adamw-ckpt": ("gpt2", [1, 2, 8], [4, 16]),
    "gpt2-ampbf16-adamw": ("gpt2", [1, 2, 8], [4, 16]),
    "gpt2-ampfp16-adamw-accum4": ("gpt2", [1, 2, 8], []),
    "gpt2-fp32-adamw": ("gpt2", [1, 2, 8], [4, 16]),
    "llama1b-ampbf16-adamw-ckpt": ("llama1b", [1, 2, 8], [2, 8]),
    "llama1b-bf16-adamw-fused": ("llama1b-bf16", [1, 2, 4], [2, 8]),
    "mlp-ampfp16-adam-fused": ("mlp", [64, 1024, 8192], []),
    "mlp-bf16-adam": ("mlp-bf16", [64, 1024, 8192], [1024, 8192]),
    "mlp-fp32-adam": ("mlp", [64, 1024, 8192], [1024, 8192]),
    "mobilenetv2-ampfp16-sgd": ("mobilenetv2", [32, 128], [64, 256]),
    "resnet152-ampfp16-adam": ("resnet152", [4, 16, 32], []),
    "resnet152-fp32-sgd": ("resnet152", [4, 16, 32], []),
    "resnet18-fp32-sgd": ("resnet18", [8, 32, 128], [32, 256]),
    "resnet50-ampbf16-adamw-accum4": ("resnet50", [4, 16, 64], []),
    "resnet50-ampfp16-sgd": ("resnet50", [4, 16, 64], [32, 256]),
    "resnet50-fp16-inference": ("resnet50-fp16", [16, 64, 256], []),
    "resnet50-fp32-sgd-ckpt": ("resnet50", [4, 16, 64], [32, 256]),
    "resnet50-fp32-sgd": ("resnet50", [4, 16, 64], [32, 256]),
    "unet-ampbf16-adam": ("unet", [2, 8, 24], [8, 32]),
    "vgg16-fp32-sgd": ("vgg16", [4, 16, 48], [32, 128]),
    "vit-ampbf16-adamw": ("vit", [8, 32, 96], []),
    "vit-fp32-adamw-ckpt": ("vit", [8, 32, 96], []),
}


def models():
    """How PyTorch makes each model that is timed, what a sample is, and how the loss comes about."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    import torchvision
    import transformers
    from torch.utils.checkpoint import checkpoint
    from numerics_models import CifarNet, DoubleConv

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4096, 4096) for _ in range(8)])
            self.head = nn.Linear(4096, 1000)

        def forward(self, x):
            for layer in self.layers:
                x = F.gelu(layer(x))
            return self.head(x)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            c = [64 * 2 ** i for i in range(5)]
            self.inc = DoubleConv(3, c[0])
            self.down = nn.ModuleList([DoubleConv(c[i], c[i + 1]) for i in range(4)])
            self.pool = nn.MaxPool2d(2)
            self.up = nn.ModuleList([nn.ConvTranspose2d(c[i + 1], c[i], 2, stride=2) for i in reversed(range(4))])
            self.dec = nn.ModuleList([DoubleConv(c[i + 1], c[i]) for i in reversed(range(4))])
            self.out = nn.Conv2d(c[0], 21, 1)

        def forward(self, x):
            skips = [self.inc(x)]
            for down in self.down:
                skips.append(down(self.pool(skips[-1])))
            x = skips.pop()
            for up, dec in zip(self.up, self.dec):
                x = dec(torch.cat([skips.pop(), up(x)], 1))
            return self.out(x)

    class CheckpointedResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torchvision.models.resnet50()

        def forward(self, x):
            n = self.net
            x = n.maxpool(n.relu(n.bn1(n.conv1(x))))
            for stage in (n.layer1, n.layer2, n.layer3, n.layer4):
                for block in stage:
                    x = checkpoint(block, x, use_reentrant=False)
            return n.fc(torch.flatten(n.avgpool(x), 1))

    def image(size, classes):
        def batch(b, dtype):
            return torch.randn(b, 3, size, size, device="cuda", dtype=dtype), torch.randint(classes, (b,), device="cuda")
        return batch

    def vectors(b, dtype):
        return torch.randn(b, 4096, device="cuda", dtype=dtype), torch.randint(1000, (b,), device="cuda")

    def pixels(b, dtype):
        x = torch.randn(b, 3, 256, 256, device="cuda", dtype=dtype)
        return x, torch.randint(21, (b, 256, 256), device="cuda")

    def tokens(length, words, classes=None):
        def batch(b, _):
            ids = torch.randint(words, (b, length), device="cuda")
            return ids, ids if classes is None else torch.randint(classes, (b,), device="cuda")
        return batch

    def scored(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def labelled(model, batch):
        return model(input_ids=batch[0], labels=batch[1]).loss

    def hf(kind, **config):
        config = getattr(transformers, f"{kind[1]}")(**config)
        config.use_cache = False
        return getattr(transformers, kind[0])(config)

    def gpt2():
        return hf(("GPT2LMHeadModel", "GPT2Config"))

    def bert():
        return hf(("BertForSequenceClassification", "BertConfig"))

    def llama():
        return hf(("LlamaForCausalLM", "LlamaConfig"), hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                  num_attention_heads=32, num_key_value_heads=4, vocab_size=32000, max_position_embeddings=2048)

    vision = torchvision.models
    return {
        "cifarnet": (CifarNet, image(32, 10), scored), "mlp": (Mlp, vectors, scored), "unet": (UNet, pixels, scored),
        "resnet18": (vision.resnet18, image(224, 1000), scored), "resnet50": (vision.resnet50, image(224, 1000), scored),
        "resnet50-ckpt": (CheckpointedResNet, image(224, 1000), scored), "vgg16": (vision.vgg16, image(224, 1000), scored),
        "mobilenetv2": (vision.mobilenet_v2, image(224, 1000), scored), "gpt2": (gpt2, tokens(1024, 50257), labelled),
        "bert": (bert, tokens(512, 30522, 2), labelled), "llama1b": (llama, tokens(2048, 32000), labelled),
    }


class Trainer:
    """A case's model in PyTorch, freshly moved to the GPU, with its optimizer."""
    built = {}  # on the CPU: what making a model leaves in the GPU's cache would change what training reserves

    def __init__(self, name, training):
        import copy
        import torch
        self.torch = torch
        known = models()
        checkpointed = training["checkpointing"] != "none"
        family = name.split("-")[0]
        build, self.batch, self.loss_of = known.get(f"{family}-ckpt", known[family]) if checkpointed else known[family]
        precision = training["precision"]
        self.autocast = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
        if name not in self.built:
            self.built[name] = build().to(self.dtype)
        model = copy.deepcopy(self.built[name])
        self.model = model.to("cuda").train()
        if checkpointed and hasattr(model, "gradient_checkpointing_enable"):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        implementation = {"fused": True} if training.get("optimizer_impl") == "fused" else {}
        self.optimizer = {
            "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, **implementation),
            "adam": lambda p: torch.optim.Adam(p, lr=1e-5, **implementation),
            "adamw": lambda p: torch.optim.AdamW(p, lr=1e-5, **implementation),
        }[training["optimizer"]](model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1.0) if precision == "amp_fp16" else None

    def micro_step(self, b):
        data = self.batch(b, self.dtype)
        amp = {"dtype": self.autocast or self.torch.float16, "enabled": self.autocast is not None}
        with self.torch.autocast("cuda", **amp):
            loss = self.loss_of(self.model, data)
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def step(self, b):
        self.micro_step(b)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def in_pytorch(names):
    """Prints the median step time of cases in PyTorch, a line of JSON each. Runs in a process of its own."""
    import torch
    for name in names:
        training = json.loads((GOLDEN / f"truth/requests/{name}.json").read_text())["training"]
        trainer = Trainer(name, training)
        for b in CASES[name][2]:
            times = []
            for _ in range(STEPS):
                torch.cuda.synchronize()
                began = time.perf_counter()
                trainer.step(b)
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - began))
            print(json.dumps({"case": name, "batch": b, "ms": statistics.median(times[WARM:])}), flush=True)
        del trainer
        Trainer.built.clear()
        torch.cuda.empty_cache()


def in_batchfit(check, cells, profile):
    """What the test binary says of each cell, by case and batch."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for name, batch, steps in cells:
            graph = GOLDEN / f"exported/{CASES[name][0]}.json.gz"
            request = GOLDEN / f"truth/requests/{name}.json"
            row = {"request": str(request), "model": str(graph), "batch": batch, "steps": steps}
            file.write(json.dumps(row) + "\n")
        file.flush()
        environment = {**os.environ, "BATCHFIT_CASES": file.name, **({"BATCHFIT_PROFILE": "1"} if profile else {})}
        command = [check, "--ignored", "--exact", "cases::recorded_cases_run", "--nocapture"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines() if "{\"" in line]
    if done.returncode != 0:
        sys.exit(f"the check ended with {done.returncode} after {len(rows)} rows")
    found = {(pathlib.Path(row["request"]).stem, row["batch"]): row for row in rows if "request" in row}
    return rows[:1], found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check")
    parser.add_argument("--only", help="cases, by the start of their names, with commas")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch's times out")
    parser.add_argument("--no-memory", action="store_true", help="leave out the batches that are not timed")
    parser.add_argument("--profile", action="store_true", help="list where the time of step 3 goes")
    options = parser.parse_args()
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    names = [name for name in CASES if name.startswith(wanted)]
    if not names:
        sys.exit(f"no case begins with {options.only}; there are {', '.join(CASES)}")
    timed = [name for name in names if CASES[name][2]]
    cells = [] if options.no_memory else [(name, b, 3) for name in names for b in CASES[name][1] if b not in CASES[name][2]]
    steps = 3 if options.profile else STEPS
    cells += [(name, b, steps) for name in timed for b in CASES[name][2]]

    theirs = {}
    if not options.no_torch and timed:
        code = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import cases; cases.in_pytorch({timed!r})"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"PyTorch's side ended with {done.returncode}")
        for line in done.stdout.splitlines():
            row = json.loads(line)
            theirs[row["case"], row["batch"]] = row["ms"]
    opened, ours = in_batchfit(os.path.abspath(options.check), cells, options.profile)
    for row in opened:
        print(f"context {row['context_s']:.2f} s, libraries and kernels {row['libraries_s']:.2f} s, "
              f"{row['outside_bytes'] / 2**20:.0f} MiB outside the allocator")
    failed, ratios, most, exact = 0, [], 0, 0
    for name, batch, _ in cells:
        row = ours.get((name, batch))
        if row is None or row["verdict"] != "fits":
            print(f"{name:32} {batch:5}  DID NOT RUN: {row and (row['verdict'], row['cause'])}")
            failed += 1
            continue
        most = max(most, row["outside_bytes"])
        real, simulated = row["real"], row["simulated"]
        same, placed = real == simulated, real == row["replayed"]
        losses = [loss for step in row["losses"] for loss in step]
        inference = "inference" in name
        moves = inference or (all(map(math.isfinite, losses)) and len(set(losses)) > 1)
        failed += (not placed) + (not moves)
        memory = "memory as simulated" if same else ("segments elsewhere: " if placed else "MEMORY DIFFERS ") + " ".join(
            f"{kind} {100 * (max(real[kind]) / max(simulated[kind]) - 1):+.3f} %" for kind in real)
        exact += same
        ms = statistics.median(row["step_ms"][WARM:] or row["step_ms"][-1:])
        speed = f"{ms:8.2f} ms"
        if (name, batch) in theirs:
            ratio = ms / theirs[name, batch]
            ratios.append(ratio)
            failed += ratio > 1.15
            speed += f"  PyTorch {theirs[name, batch]:8.2f} ms  {ratio:5.2f}{' SLOW' if ratio > 1.15 else ''}"
        print(f"{name:32} {batch:5}  {memory}, {row['launches'][-1]:5} launches, {speed}"
              f"{'' if moves else '  LOSS ' + str(losses[:3])}")
    print(f"{exact} of {len(cells)} have the peaks of simulated memory; where segments are elsewhere, all would have them if the "
          f"driver had put segments where simulated memory puts them")
    print(f"at most {most / 2**20:.0f} MiB outside the allocator")
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(ratios)} timed: geometric mean {mean:.3f}, worst {max(ratios):.2f}, {sum(r > 1.15 for r in ratios)} above 1.15")
        failed += mean > 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
