"""torch.optim.swa_utils: an averaged model and an exponential one, SWALR, batch norm statistics updated at the end."""
import torch, torchvision
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from measure import arguments, mark

args = arguments(batch=64)
model = torchvision.models.densenet121(weights=None, num_classes=10).cuda()
swa, ema = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = SWALR(optimizer, swa_lr=0.05)
for step in range(args.steps):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(args.batch, 3, 96, 96, device="cuda")), torch.randint(0, 10, (args.batch,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    swa.update_parameters(model); ema.update_parameters(model)
    schedule.step()
update_bn([(torch.randn(args.batch, 3, 96, 96),) for _ in range(2)], swa, device="cuda")
mark("update_bn")
