"""Where more needs less: what batchfit says of such neighbours, and what PyTorch does on a GPU.

    python3 tests/gpu/neighbours.py target/release/batchfit --card h100-80g           # the GPU's own card; two minutes
    python3 tests/gpu/neighbours.py target/release/batchfit --card h100-80g --limits

Batches: looks through those of torchvision's models for one that reserves 20 MiB less in three steps than the next smaller one, takes the
largest falls of each model, trains both batches of each, every one in a process of its own, and compares. Limits (`--limits`): a batch that
runs steadily (no retry after the second step) under one memory limit and not under the next larger one.
"""
import argparse, contextlib, json, os, subprocess, sys, tempfile

CASES = [
    ("resnet18", "amp_fp16", "sgd"), ("resnet18", "amp_bf16", "adamw"), ("regnet_y_400mf", "amp_bf16", "adamw"),
    ("vgg11", "amp_bf16", "adamw"), ("alexnet", "amp_bf16", "adamw"), ("mobilenet_v3_large", "fp32", "sgd"),
    ("resnet50", "amp_bf16", "sgd"),
]
BATCHES = [*range(40, 72), *range(120, 140)]
FALL, OF_EACH, MIB = 20 << 20, 4, 1 << 20
LIMITS = [4096 + 64 * step for step in range(8)]


def say(binary, card, case, batch, folder, limit=None):
    """Each step's peak reserved and retries, as batchfit says."""
    model, precision, optimizer = case
    words = [binary, "probe", model, "--on", card, "--precision", precision, "--optimizer", optimizer, "--batch", str(batch), "--json"]
    words += ["--memory-limit", f"{limit}MiB"] if limit else []
    asked = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ, XDG_DATA_HOME=folder))
    said = json.loads(asked.stdout)
    return [(step["peak_reserved_bytes"], step["retries"]) for step in said["steps"]] if said["verdict"] != "out_of_memory" else None


def is_steady(steps):
    return steps is not None and not any(retries for _, retries in steps[2:])


def falls(binary, card, folder):
    for case in CASES:
        said = {batch: say(binary, card, case, batch, folder)[-1][0] for batch in BATCHES}
        found = [(said[b - 1] - said[b], b) for b in BATCHES if b - 1 in said and said[b - 1] - said[b] > FALL]
        for _, batch in sorted(found, reverse=True)[:OF_EACH]:
            yield case, batch, said[batch - 1], said[batch]


def narrow(binary, card, folder):
    """Pairs of limits of which only the smaller one lets a batch run steadily: around the largest such batch of each case."""
    for case in CASES:
        words = [binary, "fit", case[0], "--on", card, "--precision", case[1], "--optimizer", case[2], "--memory-limit", f"{LIMITS[0]}MiB", "--json"]
        asked = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ, XDG_DATA_HOME=folder))
        largest = json.loads(asked.stdout)["result"]["recommendation"]["max_batch"]
        found = 0
        for batch in range(largest * 19 // 20, largest * 11 // 10, max(1, largest // 40)):
            steady = [is_steady(say(binary, card, case, batch, folder, limit)) for limit in LIMITS]
            for index in range(len(LIMITS) - 1):
                if steady[index] and not steady[index + 1] and found < OF_EACH:
                    found += 1
                    yield case, batch, LIMITS[index], LIMITS[index + 1]


def train(model, precision, optimizer, batch, limit):
    import torch, torchvision

    torch.manual_seed(0)
    if limit:
        torch.cuda.set_per_process_memory_fraction((limit * MIB + 1) / torch.cuda.get_device_properties(0).total_memory)
    net = getattr(torchvision.models, model)().cuda().train()
    kinds = {"adamw": lambda p: torch.optim.AdamW(p), "sgd": lambda p: torch.optim.SGD(p, lr=0.01)}
    optimizer = kinds[optimizer](net.parameters())
    half = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(enabled=half == torch.float16)
    steps, before = [], 0
    for _ in range(12 if limit else 3):
        torch.cuda.reset_peak_memory_stats()
        images, labels = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")
        try:
            with torch.autocast("cuda", half) if half else contextlib.nullcontext():
                loss = torch.nn.functional.cross_entropy(net(images), labels)
            scaler.scale(loss).backward()
        except torch.OutOfMemoryError:
            return print("null")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        steps.append((torch.cuda.max_memory_reserved(), retries - before))
        before = retries
    print(json.dumps(steps))


def took(binary, case, batch, limit=0):
    words = [sys.executable, __file__, binary, "--train", *case, str(batch), str(limit)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("batchfit")
    parser.add_argument("--card")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--train", nargs=5)
    arguments = parser.parse_args()
    if arguments.train:
        *case, batch, limit = arguments.train
        return train(*case, int(batch), int(limit))
    all_pairs = real = equal = 0
    with tempfile.TemporaryDirectory() as folder:
        if arguments.limits:
            for case, batch, smaller, larger in narrow(arguments.batchfit, arguments.card, folder):
                steady = [is_steady(took(arguments.batchfit, case, batch, limit)) for limit in (smaller, larger)]
                all_pairs, real, equal = all_pairs + 1, real + (steady == [True, False]), equal + steady[0] + (not steady[1])
                print(f"{' '.join(case)}, batch {batch}: steady in {smaller} MiB and not in {larger}; PyTorch {steady}", flush=True)
            print(f"of {all_pairs} pairs the larger limit alone retries on in {real}; {equal} of {2 * all_pairs} runs as said")
            return
        for case, batch, before, after in falls(arguments.batchfit, arguments.card, folder):
            peaks = [took(arguments.batchfit, case, one)[-1][0] for one in (batch - 1, batch)]
            all_pairs, real, equal = all_pairs + 1, real + (peaks[0] > peaks[1]), equal + (peaks[0] == before) + (peaks[1] == after)
            print(f"{' '.join(case)}, batch {batch}: said {(before - after) >> 20} MiB less than {batch - 1}, took {(peaks[0] - peaks[1]) >> 20}", flush=True)
    print(f"of {all_pairs} pairs the larger batch took less in {real}; {equal} of {2 * all_pairs} peaks equal")


if __name__ == "__main__":
    main()
