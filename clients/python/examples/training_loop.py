"""A training loop of one's own: `batchfit.tune` before it starts. Run it on a machine with an NVIDIA GPU."""

import torch
import torchvision

import batchfit

model = torchvision.models.resnet18(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)


def train(images, labels):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    schedule.step()


def step(b):
    train(torch.randn(b, 3, 224, 224, device="cuda"), torch.randint(10, (b,), device="cuda"))


plan = batchfit.tune(step, batch=8, state=[model, optimizer, scaler, schedule], target_batch=512, memory_limit="4GiB")
print(plan)

# From here on as ever; here with random images.
for _ in range(2):
    for _ in range(plan.accumulation_steps):
        images = torch.randn(plan.micro_batch, 3, 224, 224, device="cuda")
        labels = torch.randint(10, (plan.micro_batch,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels) / plan.accumulation_steps
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    schedule.step()
