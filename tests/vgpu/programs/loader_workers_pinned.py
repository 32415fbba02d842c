"""A DataLoader with workers, pin_memory, persistent_workers and a prefetcher on a side stream with record_stream."""
import torch, torchvision
from torch.utils.data import DataLoader, Dataset
from measure import arguments


class Images(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.randn(3, 160, 160), i % 100


def prefetch(loader):
    stream, ready = torch.cuda.Stream(), None
    for x, y in loader:
        with torch.cuda.stream(stream): x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        if ready is not None: yield ready
        torch.cuda.current_stream().wait_stream(stream)
        x.record_stream(torch.cuda.current_stream()); y.record_stream(torch.cuda.current_stream())
        ready = x, y
    yield ready


if __name__ == "__main__":
    args = arguments(batch=64)
    loader = DataLoader(Images(args.batch * args.steps), batch_size=args.batch, num_workers=2, pin_memory=True, persistent_workers=True, drop_last=True)
    model = torchvision.models.mobilenet_v3_large(weights=None, num_classes=100).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in prefetch(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
