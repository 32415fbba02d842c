"""Side streams around a network: batches that a prefetcher copies ahead on its own stream (record_stream), and logits and features that go to pinned memory on another while the next batch runs."""
import torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark

args = arguments(batch=32, steps=4)
C = 48


class Prefetcher:
    """As in NVIDIA's examples: the next batch is on its way while this one is used."""

    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.preload()

    def preload(self):
        self.batch = next(self.loader, None)
        if self.batch is None: return
        with torch.cuda.stream(self.stream):
            x, y = (t.cuda(non_blocking=True) for t in self.batch)
            self.batch = x.float().sub_(127.5).div_(60), y

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.batch
        if batch is not None:
            for t in batch: t.record_stream(torch.cuda.current_stream())
            self.preload()
        return batch


conv = lambda a, b, s=1: nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.GroupNorm(8, b), nn.ReLU(True))
net = nn.Sequential(conv(3, C, 2), conv(C, C), conv(C, 2 * C, 2), conv(2 * C, 2 * C), conv(2 * C, 4 * C, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * C, 1000)).cuda()
parameters = list(net.parameters())
data = [(torch.randint(0, 256, (args.batch, 3, 192, 192), dtype=torch.uint8).pin_memory(), torch.randint(0, 1000, (args.batch,)).pin_memory()) for _ in range(4)]
for epoch in range(2):
    loader = Prefetcher([data[i % 4] for i in range(2 * args.steps)])
    while (batch := loader.next()) is not None:
        with torch.autocast("cuda", dtype=torch.bfloat16): loss = F.cross_entropy(net(batch[0]), batch[1])
        torch._foreach_add_([p.data for p in parameters], torch.autograd.grad(loss, parameters), alpha=-0.01)
    del batch, loss
    mark(f"epoch {epoch}")
home, pages = torch.cuda.Stream(), []
with torch.inference_mode():
    loader = Prefetcher([data[i % 4] for i in range(2 * args.steps)])
    while (batch := loader.next()) is not None:
        features = net[:4](batch[0])
        home.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(home):
            page = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            page.copy_(features, non_blocking=True)
        features.record_stream(home)
        pages = pages[-2:] + [page]
        logits = net[4:](features)
    del features, logits, batch
mark("features")
