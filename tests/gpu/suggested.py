#!/usr/bin/env python3
"""What real trainings take with what `--suggest` suggests, beside what `batchfit probe` says: optimizers that keep less, and losses
in chunks.

Trains GPT-2 and a small Llama (random weights, PyTorch's eager mode) for three steps on this machine's GPU with each, in a process of
its own. Prints the peaks of both and the difference in percent. Exits 1 where one of what is reserved is above 1 %.

Usage: tests/gpu/suggested.py BATCHFIT [--only WORD,..]    (PyTorch 2.11, transformers; bitsandbytes and torchao where they are)
"""
import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

CONFIGS = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6,
              "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000},
}
# Precision, batch, tokens.
SHAPES = {"gpt2": ("amp_bf16", 8, 512), "llama": ("bf16", 4, 777)}
OPTIMIZERS = {
    "adamw": "torch", "adafactor": "torch", "adafactor_transformers": "transformers", "adamw_8bit": "bitsandbytes", "paged_adamw_8bit": "bitsandbytes",
    "adamw_8bit_torchao": "torchao",
}
CHUNKS = (None, 8)


def chunked_loss(head, hidden, labels, chunks):
    """docs/use/suggestions.md has the same."""
    from torch.nn.functional import cross_entropy, pad
    from torch.utils.checkpoint import checkpoint

    def loss_of(hidden, labels):
        logits = head(hidden).float()
        return cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="sum")

    labels = pad(labels, (0, 1), value=-100)[:, 1:]
    total = 0
    for part in zip(hidden.chunk(chunks, 1), labels.chunk(chunks, 1)):
        total = total + checkpoint(loss_of, *part, use_reentrant=False)
    return total / (labels != -100).sum()


def optimizer_of(name, parameters):
    import torch

    if name in ("adamw", "adafactor"):
        kind = {"adamw": torch.optim.AdamW, "adafactor": torch.optim.Adafactor}[name]
    elif name == "adafactor_transformers":
        from transformers.optimization import Adafactor as kind
    elif name == "adamw_8bit_torchao":
        from torchao.optim import AdamW8bit as kind
    else:
        import bitsandbytes

        kind = {"adamw_8bit": bitsandbytes.optim.AdamW8bit, "paged_adamw_8bit": bitsandbytes.optim.PagedAdamW8bit}[name]
    return kind(parameters, lr=1e-5) if name != "adafactor_transformers" else kind(parameters)


def train(model, optimizer, chunks):
    """In a process of its own: prints the peaks as JSON."""
    import torch
    import transformers

    config = CONFIGS[model]
    precision, batch, tokens = SHAPES[model]
    kind = getattr(transformers, config["architectures"][0])
    # Cast before it is moved: parameters that come in float32 leave blocks of that size behind, which later steps use otherwise.
    weights = torch.bfloat16 if precision == "bf16" else torch.float32
    net = kind(kind.config_class.from_dict({**config, "use_cache": False})).to(weights).cuda().train()
    updates = optimizer_of(optimizer, net.parameters())
    for _ in range(3):
        ids = torch.randint(config["vocab_size"], (batch, tokens), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp_bf16"):
            if chunks:
                hidden = net.base_model(input_ids=ids).last_hidden_state
                loss = chunked_loss(net.lm_head, hidden, ids, chunks)
                del hidden
            else:
                loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        updates.step()
        updates.zero_grad()
        del loss, ids
    torch.cuda.synchronize()
    print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))


def predicted(batchfit, card, model, optimizer, chunks):
    precision, batch, tokens = SHAPES[model]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "config.json"
        file.write_text(json.dumps(CONFIGS[model]))
        command = [batchfit, "probe", file, "--on", card, "--precision", precision, "--optimizer", optimizer, "--batch", str(batch), "--seq-len",
                   str(tokens), "--json", *(["--with", f"loss_chunks={chunks}"] if chunks else [])]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return answer["peak_allocated_bytes"], answer["peak_reserved_bytes"]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("batchfit")
    arguments.add_argument("--only", default="")
    arguments.add_argument("--card", default="h200")
    arguments.add_argument("--train", nargs=3)
    given = arguments.parse_args()
    if given.train:
        model, optimizer, chunks = given.train
        train(model, optimizer, int(chunks))
        return
    far = []
    print(f"{'training':46} {'allocated, MiB':>20} {'reserved, MiB':>20}")
    for model in CONFIGS:
        for optimizer, package in OPTIMIZERS.items():
            for chunks in CHUNKS:
                name = f"{model}, {optimizer}" + (f", loss in {chunks} chunks" if chunks else "")
                if not any(word in name for word in given.only.split(",")):
                    continue
                if not importlib.util.find_spec(package):
                    print(f"{name:46} left out: {package} is not installed")
                    continue
                command = [sys.executable, __file__, given.batchfit, "--train", model, optimizer, str(chunks or 0)]
                run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
                if run.returncode:
                    print(f"{name:46} failed: {run.stderr.strip().splitlines()[-1:]}")
                    far.append(name)
                    continue
                real = json.loads(run.stdout.splitlines()[-1])
                said = predicted(given.batchfit, given.card, model, optimizer, chunks)
                off = [100 * (a - b) / b for a, b in zip(said, real)]
                cells = [f"{a / 2**20:10.1f} ({o:+.2f} %)" for a, o in zip(real, off)]
                print(f"{name:46} {cells[0]:>20} {cells[1]:>20}", flush=True)
                far += [name] if abs(off[1]) > 1 else []
    if far:
        sys.exit(f"more than 1 % off, or failed: {'; '.join(far)}")


if __name__ == "__main__":
    main()
