"""timm: a ViT-S with drop path, mixup and soft targets, timm's optimizer factory and scheduler, bf16 autocast."""
import timm, torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from measure import arguments

args = arguments(batch=64)
model = timm.create_model("vit_small_patch16_224", pretrained=False, drop_path_rate=0.1, num_classes=1000).cuda()
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=1000)
optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
scheduler = CosineLRScheduler(optimizer, t_initial=10, warmup_t=2, warmup_lr_init=1e-6)
criterion = SoftTargetCrossEntropy()
for step in range(args.steps):
    x, y = torch.randn(args.batch, 3, 224, 224).cuda(), torch.randint(0, 1000, (args.batch,)).cuda()
    x, y = mixup(x, y)
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step(step)
