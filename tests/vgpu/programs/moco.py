"""MoCo: a momentum encoder, a queue of keys as a buffer, InfoNCE."""
import copy
import torch, torchvision
from torch.nn import functional as F
from measure import arguments

args = arguments(batch=64, queue=65536)
q = torchvision.models.resnet50(weights=None, num_classes=128).cuda()
k = copy.deepcopy(q).requires_grad_(False)
queue = F.normalize(torch.randn(128, args.queue, device="cuda"), dim=0)
at = torch.zeros(1, dtype=torch.long, device="cuda")
optimizer = torch.optim.SGD(q.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
for step in range(args.steps):
    a, b = (torch.randn(args.batch, 3, 128, 128, device="cuda") for _ in range(2))
    zq = F.normalize(q(a), dim=1)
    with torch.no_grad():
        for pq, pk in zip(q.parameters(), k.parameters()): pk.mul_(0.999).add_(pq, alpha=0.001)
        order = torch.randperm(args.batch, device="cuda")
        zk = F.normalize(k(b[order]), dim=1)[torch.argsort(order)]
    logits = torch.cat([(zq * zk).sum(1, keepdim=True), zq @ queue.clone().detach()], 1) / 0.07
    loss = F.cross_entropy(logits, torch.zeros(args.batch, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    i = int(at)
    queue[:, i:i + args.batch] = zk.T
    at[0] = (i + args.batch) % args.queue
