"""Every optimizer of torch.optim over the same network, one after the other, foreach or not."""
import torch
from torch import nn
from measure import arguments

args = arguments(batch=256, steps=2)
model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 64)).cuda()
x = torch.randn(args.batch, 4096, device="cuda")
for name, options in [("SGD", dict(lr=1e-3, momentum=0.9, foreach=False)), ("SGD", dict(lr=1e-3, momentum=0.9, fused=True)), ("Adam", dict(amsgrad=True)), ("AdamW", dict(fused=True)), ("NAdam", {}), ("RAdam", {}), ("Adamax", {}), ("Adadelta", {}), ("Adagrad", {}),
                      ("RMSprop", dict(centered=True, momentum=0.9)), ("Rprop", {}), ("ASGD", {}), ("Adafactor", {})]:
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    for step in range(args.steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    del optimizer
