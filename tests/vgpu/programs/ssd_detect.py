"""torchvision's SSD300: hard negative mining sorts losses, AdamW."""
import torch, torchvision
from measure import arguments

args = arguments(batch=8)
model = torchvision.models.detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=21).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(args.steps):
    images = torch.rand(args.batch, 3, 300, 300).cuda()
    targets = [{"boxes": torch.tensor([[20.0, 20, 120, 160], [100, 80, 260, 240]]).cuda(), "labels": torch.tensor([1, 7]).cuda()} for _ in range(args.batch)]
    loss = sum(model(list(images), targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
