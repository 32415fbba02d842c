"""ResNet-50 as the reference scripts train it: channels_last, cudnn.benchmark, fp16 autocast with GradScaler, SGD."""
import torch, torchvision
from measure import arguments

args = arguments(batch=32)
torch.backends.cudnn.benchmark = True
model = torchvision.models.resnet50(weights=None).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
criterion = torch.nn.CrossEntropyLoss().cuda()
for step in range(args.steps):
    images = torch.randn(args.batch, 3, 224, 224).to("cuda", memory_format=torch.channels_last, non_blocking=True)
    target = torch.randint(0, 1000, (args.batch,)).cuda(non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(images), target)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale())
