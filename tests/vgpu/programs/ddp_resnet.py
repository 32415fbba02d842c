"""DistributedDataParallel with SyncBatchNorm and a distributed sampler, fp16, for torchrun (any number of GPUs)."""
import os
import torch, torchvision
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from measure import arguments

args = arguments(batch=32)
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(torchvision.models.resnet18(weights=None)).cuda(), device_ids=[local])
n = args.batch * args.steps * dist.get_world_size()
data = TensorDataset(torch.randn(n, 3, 128, 128), torch.randint(0, 1000, (n,)))
sampler = DistributedSampler(data)
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), torch.amp.GradScaler()
sampler.set_epoch(0)
for x, y in DataLoader(data, batch_size=args.batch, sampler=sampler, pin_memory=True):
    with torch.autocast("cuda", dtype=torch.float16): loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if dist.get_rank() == 0: print("loss", total.item() / dist.get_world_size())
dist.destroy_process_group()
