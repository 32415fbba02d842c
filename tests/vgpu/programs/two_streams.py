"""Two networks on two streams with events between them; memory crosses streams with record_stream."""
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=2048)
a, b = (nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda() for _ in range(2))
optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=1e-3)
first, second, event = torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.Event(enable_timing=True)
start = torch.cuda.Event(enable_timing=True); start.record()
for step in range(args.steps):
    x = torch.randn(args.batch, 2048, device="cuda")
    first.wait_stream(torch.cuda.current_stream()); second.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        x.record_stream(first)
        u = a(x); event.record()
    with torch.cuda.stream(second):
        x.record_stream(second)
        v = b(x); second.wait_event(event)
        u.record_stream(second)
        loss = (u * v).mean()
    torch.cuda.current_stream().wait_stream(second)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
event.synchronize()
print(start.elapsed_time(event) >= 0)
