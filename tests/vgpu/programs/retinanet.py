"""torchvision's RetinaNet, float32, SGD; then inference with its non-maximum suppression."""
import torch, torchvision
from measure import arguments, mark

args = arguments(batch=2)
model = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21, min_size=480, max_size=640).cuda().train()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4, momentum=0.9)
for step in range(args.steps):
    images = [torch.rand(3, 480, 640, device="cuda") for _ in range(args.batch)]
    targets = []
    for _ in images:
        corner = torch.rand(6, 2, device="cuda") * 200
        targets.append({"boxes": torch.cat([corner, corner + 150], 1), "labels": torch.randint(1, 21, (6,), device="cuda")})
    loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad(): print([len(o["boxes"]) for o in model(images)])
mark("eval")
