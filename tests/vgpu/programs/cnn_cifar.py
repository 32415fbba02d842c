"""A small convolutional network with batch norm, SGD with momentum and a one-cycle schedule, evaluation under no_grad."""
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=512, steps=3)


def block(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


model = nn.Sequential(block(3, 64), block(64, 128), nn.MaxPool2d(2), block(128, 256), block(256, 256), nn.MaxPool2d(2), block(256, 512), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.4, total_steps=args.steps + 1)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for step in range(args.steps):
    x, y = torch.randn(args.batch, 3, 32, 32, device="cuda"), torch.randint(0, 10, (args.batch,), device="cuda")
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
model.eval()
with torch.no_grad():
    x = torch.randn(args.batch * 2, 3, 32, 32, device="cuda")
    print("predictions", model(x).argmax(1).bincount(minlength=10).tolist())
mark("eval")
