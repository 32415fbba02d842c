"""A user who looks where memory goes: _record_memory_history, _dump_snapshot, memory_summary, memory_stats, the profiler with memory."""
import os, pickle, tempfile
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from measure import arguments, mark

args = arguments(batch=64)
torch.cuda.memory._record_memory_history(max_entries=100000)
model = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(args.steps):
    model(torch.randn(args.batch, 4096, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
path = os.path.join(tempfile.mkdtemp(), "snapshot.pickle")
torch.cuda.memory._dump_snapshot(path)
with open(path, "rb") as f: s = pickle.load(f)
torch.cuda.memory._record_memory_history(enabled=None)
print(len(s["segments"]), len(s["device_traces"][0]), torch.cuda.memory_summary()[:60], torch.cuda.memory_stats()["active_bytes.all.peak"])
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True, record_shapes=True) as p:
    model(torch.randn(args.batch, 4096, device="cuda")).mean().backward()
print(p.key_averages().table(sort_by="self_cuda_memory_usage", row_limit=3)[:80])
mark("profiled")
