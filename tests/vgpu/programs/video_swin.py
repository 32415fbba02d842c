"""torchvision's Swin and MaxViT on images: window partitions, relative positions, stochastic depth."""
import torch, torchvision
from measure import arguments

args = arguments(batch=16)
for build in (torchvision.models.swin_v2_t, torchvision.models.maxvit_t):
    model = build(weights=None, num_classes=100).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        with torch.autocast("cuda", dtype=torch.bfloat16): loss = torch.nn.functional.cross_entropy(model(torch.randn(args.batch, 3, 224, 224, device="cuda")), torch.randint(0, 100, (args.batch,), device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del model, optimizer, loss
