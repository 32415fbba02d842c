#!/usr/bin/env python3
"""What 1,000 real steps of varying lengths reserve, beside what `batchfit soak` says of the same steps in the same order.

Trains GPT-2 and BERT (random weights, PyTorch's eager mode) on this machine's GPU: lengths that vary, a short batch at the end of
each epoch, and a validation after it. Prints for each training the peak reserved by both, the difference in percent, retries, and
how long batchfit took. Exits 1 where a difference is above 1 %.

Usage: tests/gpu/soak.py BATCHFIT [--only NAME,..]    (PyTorch 2.11, transformers; some minutes and 60 GiB on an H200)
"""
import argparse
import gc
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

GIB = 1 << 30

# Model, precision, optimizer, batch, the lengths, the limit in GiB; epochs of 250 steps.
TRAININGS = {
    "gpt2": ("gpt2", "amp_bf16", 8, "1024", 40),
    "gpt2-lengths": ("gpt2", "amp_bf16", 8, "64-1024:8", 40),
    "bert-lengths": ("bert", "amp_fp16", 32, "32-512:8", 40),
    "bert-lengths-fp32": ("bert", "fp32", 16, "32-512:1", 40),
    "gpt2-lengths-short-of-memory": ("gpt2", "amp_bf16", 8, "64-1024:8", 16),
}
# Without the cache of keys and values, which only generation reads.
CONFIGS = {"gpt2": (GPT2Config(use_cache=False), "GPT2LMHeadModel"), "bert": (BertConfig(), "BertForSequenceClassification")}
LAST_BATCH, EPOCH, VALIDATION_BATCH, VALIDATION_STEPS, STEPS = 5, 250, 16, 20, 1000


def lengths(text):
    span, _, step = text.partition(":")
    first, _, last = span.partition("-")
    return list(range(int(first), int(last or first) + 1, int(step or 1)))


def soaked(batchfit, name):
    model, precision, batch, seq_len, limit = TRAININGS[name]
    described = pathlib.Path(tempfile.mkdtemp()) / "config.json"
    config, architecture = CONFIGS[model]
    described.write_text(json.dumps({**config.to_dict(), "architectures": [architecture]}))
    begun = time.monotonic()
    run = subprocess.run(
        [batchfit, "soak", str(described), "--on", "h200", "--precision", precision, "--optimizer", "adamw", "--batch", str(batch), "--seq-len", seq_len,
         "--memory-limit", f"{limit}GiB", "--steps", str(STEPS), "--epoch", str(EPOCH), "--last-batch", str(LAST_BATCH),
         "--validation-batch", str(VALIDATION_BATCH), "--validation-steps", str(VALIDATION_STEPS), "--json"],
        stdout=subprocess.PIPE, check=False)
    if run.returncode not in (0, 3):
        sys.exit(f"FAILED: {run.args}")
    return json.loads(run.stdout), time.monotonic() - begun


def build(model):
    config, _ = CONFIGS[model]
    if model == "gpt2":
        net, vocab = GPT2LMHeadModel(config), 50257
        return net, lambda b, n: (lambda ids: (ids, ids))(torch.randint(vocab, (b, n), device="cuda"))
    net, vocab = BertForSequenceClassification(config), 30522
    return net, lambda b, n: (torch.randint(vocab, (b, n), device="cuda"), torch.randint(2, (b,), device="cuda"))


def trained(name, order):
    model, precision, size, seq_len, limit = TRAININGS[name]
    listed = lengths(seq_len)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit * GIB / total)
    net, batch_of = build(model)
    net = net.cuda().train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    amp = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0) if precision == "amp_fp16" else None
    first = 0
    try:
        for step, (length, kind) in enumerate(order):
            with torch.autocast("cuda", dtype=amp or torch.float16, enabled=amp is not None):
                if kind == "validation":
                    net.eval()
                    with torch.no_grad():
                        ids, _ = batch_of(VALIDATION_BATCH, listed[length])
                        net(input_ids=ids)
                    del ids, _
                    net.train()
                    continue
                ids, labels = batch_of(LAST_BATCH if kind == "last" else size, listed[length])
                loss = net(input_ids=ids, labels=labels).loss
            (scaler.scale(loss) if scaler else loss).backward()
            del loss, ids, labels
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step == 2:
                torch.cuda.synchronize()
                first = torch.cuda.max_memory_reserved()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        print(f"  out of memory in step {step + 1}: {str(error)[:100]}")
    stats = torch.cuda.memory_stats()
    return {"peak_reserved_bytes": stats["reserved_bytes.all.peak"], "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
            "reserved_at_first_bytes": first, "retries": stats["num_alloc_retries"]}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("batchfit")
    arguments.add_argument("--only")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.one:
        print(json.dumps(trained(given.one, json.load(sys.stdin))))
        return
    worst = 0
    for name in given.only.split(",") if given.only else TRAININGS:
        predicted, seconds = soaked(given.batchfit, name)
        # A process of its own: what PyTorch reserves is the process's.
        begun = time.monotonic()
        run = subprocess.run([sys.executable, __file__, given.batchfit, "--one", name], input=json.dumps(predicted["order"]), text=True,
                             stdout=subprocess.PIPE, check=True)
        real, report = json.loads(run.stdout.splitlines()[-1]), predicted["report"]
        print("".join(f"  {line}\n" for line in run.stdout.splitlines()[:-1]), end="")
        of = {key: 100 * (report[key] / real[key] - 1) for key in ("peak_reserved_bytes", "peak_allocated_bytes", "reserved_at_first_bytes")}
        worst = max(worst, abs(of["peak_reserved_bytes"]))
        print(f"{name:30} reserved {report['peak_reserved_bytes'] / GIB:6.2f} GiB for {real['peak_reserved_bytes'] / GIB:6.2f} "
              f"({of['peak_reserved_bytes']:+.2f} %)   allocated {of['peak_allocated_bytes']:+.2f} %   "
              f"after three steps {real['reserved_at_first_bytes'] / GIB:6.2f} GiB ({of['reserved_at_first_bytes']:+.2f} %)   "
              f"retries {report['retries']} for {real['retries']}   batchfit {seconds:.1f} s, training {time.monotonic() - begun:.0f} s", flush=True)
    sys.exit(1 if worst > 1 else 0)


if __name__ == "__main__":
    main()
