"""When PyTorch's caching allocator retries: convolutional networks of torchvision under a limit, five steps each, on one GPU.

Writes the rows of tests/golden/first_step_retries.json: `python first_step_retries.py OUT.json SECONDS`. float32, AdamW, batches in
rising order until one runs out of memory; caches are emptied between them. PyTorch 2.11, CUDA 13.0, an H100 80 GB.
"""

import gc
import json
import sys
import time

import torch
import torchvision

GIB = 1 << 30
# Model, pixels, limit in GiB, batches.
CASES = [
    ("resnet50", 32, 8, [800, 900, 1000, 1200, 1500, 1800, 2200, 2600, 3000, 3400, 3800, 4200, 4600]),
    ("resnet50", 224, 8, [60, 64, 68, 70, 72, 74, 76, 78, 80, 82, 84, 86, 88, 92]),
    ("vgg11_bn", 224, 8, [20, 30, 40, 50, 52, 54, 56, 60, 64, 70]),
    ("efficientnet_b0", 64, 8, [300, 400, 500, 600, 700, 800, 900, 1000, 1100]),
    ("wide_resnet50_2", 32, 8, [200, 300, 400, 500, 650, 800, 1000, 1200, 1400, 1600, 1900, 2200, 2600]),
    ("resnet18", 32, 4, [2000, 2500, 3000, 3500, 4000, 4500, 5000, 5500, 6000, 7000, 8000]),
    ("densenet121", 32, 8, [800, 1000, 1200, 1400, 1600, 1800, 2000, 2400, 2800]),
    ("regnet_x_3_2gf", 64, 6, [200, 300, 400, 500, 600, 700, 800, 900, 1000]),
    ("mobilenet_v2", 96, 4, [100, 140, 180, 200, 220, 240, 260, 280, 300]),
    ("vgg16", 64, 6, [100, 200, 300, 400, 450, 500, 550, 600, 700]),
]


def steps(name: str, pixels: int, batch: int, row: dict) -> None:
    model = getattr(torchvision.models, name)().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.time()
        x = torch.randn(batch, 3, pixels, pixels, device="cuda")
        y = torch.randint(1000, (batch,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        row["retries"].append(stats["num_alloc_retries"])
        row["peak_reserved_bytes"] = stats["reserved_bytes.all.peak"]
        row["peak_allocated_bytes"] = stats["allocated_bytes.all.peak"]
        row["seconds"] = round(time.time() - began, 4)


def main() -> None:
    out, seconds = sys.argv[1], float(sys.argv[2])
    until = time.time() + seconds
    total = torch.cuda.get_device_properties(0).total_memory
    rows = []
    for name, pixels, gib, batches in CASES:
        for batch in batches:
            if time.time() > until:
                return
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.reset_accumulated_memory_stats()
            torch.cuda.set_per_process_memory_fraction(gib * GIB / total)
            # `retries` is what memory_stats()["num_alloc_retries"] says after each step.
            row = {"model": name, "pixels": pixels, "limit_gib": gib, "batch": batch, "finishes": False, "retries": []}
            try:
                steps(name, pixels, batch, row)
                row["finishes"] = True
            except torch.OutOfMemoryError:
                pass
            rows.append(row)
            with open(out, "w", encoding="utf-8") as file:
                file.write("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
            print(row, flush=True)
            if not row["finishes"]:
                break


main()
