"""Video classification: torchvision's R(2+1)D on clips, 3D convolutions, fp16."""
import torch, torchvision
from measure import arguments

args = arguments(batch=4)
model = torchvision.models.video.r2plus1d_18(weights=None, num_classes=50).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), torch.amp.GradScaler("cuda")
for step in range(args.steps):
    with torch.autocast("cuda", dtype=torch.float16): loss = torch.nn.functional.cross_entropy(model(torch.randn(args.batch, 3, 16, 112, 112, device="cuda")), torch.randint(0, 50, (args.batch,), device="cuda"))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
