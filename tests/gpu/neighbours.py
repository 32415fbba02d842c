"""Batches that take less memory than the next smaller one: what batchfit says of them, and what PyTorch takes on a GPU.

    python3 tests/gpu/neighbours.py target/release/batchfit --card h100-80g    # the GPU's own card; two minutes

Looks through the batches of torchvision's models for neighbours of which the larger reserves 20 MiB less in three steps, takes
the largest falls of each model, trains both batches of each, every one in a process of its own, and compares.
"""
import argparse, contextlib, json, os, subprocess, sys, tempfile

CASES = [
    ("resnet18", "amp_fp16", "sgd"), ("resnet18", "amp_bf16", "adamw"), ("regnet_y_400mf", "amp_bf16", "adamw"),
    ("vgg11", "amp_bf16", "adamw"), ("alexnet", "amp_bf16", "adamw"), ("mobilenet_v3_large", "fp32", "sgd"),
    ("resnet50", "amp_bf16", "sgd"),
]
BATCHES = [*range(40, 72), *range(120, 140)]
FALL, OF_EACH = 20 << 20, 4


def say(binary, card, case, batch, folder):
    model, precision, optimizer = case
    words = [binary, "probe", model, "--on", card, "--precision", precision, "--optimizer", optimizer, "--batch", str(batch), "--json"]
    asked = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ, XDG_DATA_HOME=folder))
    return json.loads(asked.stdout)["steps"][-1]["peak_reserved_bytes"]


def falls(binary, card):
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            said = {batch: say(binary, card, case, batch, folder) for batch in BATCHES}
            found = [(said[b - 1] - said[b], b) for b in BATCHES if b - 1 in said and said[b - 1] - said[b] > FALL]
            for fall, batch in sorted(found, reverse=True)[:OF_EACH]:
                yield case, batch, said[batch - 1], said[batch]


def train(model, precision, optimizer, batch):
    import torch, torchvision

    torch.manual_seed(0)
    net = getattr(torchvision.models, model)().cuda().train()
    kinds = {"adamw": lambda p: torch.optim.AdamW(p), "sgd": lambda p: torch.optim.SGD(p, lr=0.01)}
    optimizer = kinds[optimizer](net.parameters())
    half = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(enabled=half == torch.float16)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        images, labels = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")
        with torch.autocast("cuda", half) if half else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    print(torch.cuda.max_memory_reserved())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("batchfit")
    parser.add_argument("--card")
    parser.add_argument("--train", nargs=4)
    arguments = parser.parse_args()
    if arguments.train:
        *case, batch = arguments.train
        return train(*case, int(batch))
    all_pairs = real = equal = 0
    for case, batch, before, after in falls(arguments.batchfit, arguments.card):
        took = []
        for one in (batch - 1, batch):
            words = [sys.executable, __file__, arguments.batchfit, "--train", *case, str(one)]
            took.append(int(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1]))
        all_pairs, real, equal = all_pairs + 1, real + (took[0] > took[1]), equal + (took[0] == before) + (took[1] == after)
        print(f"{' '.join(case)}, batch {batch}: said {(before - after) >> 20} MiB less than {batch - 1}, took {(took[0] - took[1]) >> 20}", flush=True)
    print(f"of {all_pairs} pairs the larger batch took less in {real}; {equal} of {2 * all_pairs} peaks equal")


if __name__ == "__main__":
    main()
