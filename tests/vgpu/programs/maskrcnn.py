"""Mask R-CNN (ResNet-50 FPN v2) on images of 400 x 400 with masks, fp16 autocast and GradScaler."""
import torch, torchvision
from measure import arguments

args = arguments(batch=2)
model = torchvision.models.detection.maskrcnn_resnet50_fpn_v2(weights=None, weights_backbone=None, num_classes=5, min_size=400, max_size=400).cuda().train()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
scaler = torch.amp.GradScaler()
for step in range(args.steps):
    images = [torch.rand(3, 400, 400, device="cuda") for _ in range(args.batch)]
    boxes = torch.tensor([[30.0, 30, 200, 200], [150, 120, 380, 390], [10, 200, 120, 350]], device="cuda")
    masks = torch.zeros(3, 400, 400, dtype=torch.uint8, device="cuda")
    for m, b in zip(masks, boxes.long()): m[b[1]:b[3], b[0]:b[2]] = 1
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2, 3], device="cuda"), "masks": masks} for _ in images]
    with torch.autocast("cuda", dtype=torch.float16): loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
