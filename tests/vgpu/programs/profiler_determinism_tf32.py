"""A training script with its debugging left in: set_default_device, deterministic algorithms, TF32 switches tried in turn, profiler with a schedule that also records memory, anomaly detection for a step, gradients checked for NaN, nvtx ranges, timing by events, seeds and RNG state saved and restored."""
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import random, numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from measure import arguments, mark
args = arguments(batch=16, steps=6)
torch.use_deterministic_algorithms(True, warn_only=True); torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
random.seed(0); np.random.seed(0); torch.cuda.manual_seed_all(0); torch.set_default_device("cuda"); torch.set_default_dtype(torch.float32)
class Block(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.c1, self.b1, self.c2, self.b2, self.d = nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.Conv2d(i, o, 1, s, bias=False)
    def forward(self, x): return F.relu(self.d(x) + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))
model = nn.Sequential(nn.Conv2d(3, 32, 5, 2, 2), nn.ReLU(), Block(32, 64, 1), Block(64, 128, 2), Block(128, 192, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(768, 100))
emb = nn.Embedding(500, 768); opt = torch.optim.AdamW([*model.parameters(), *emb.parameters()], 1e-3)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
def step(i):
    x, y, ids = torch.randn(args.batch, 3, 96, 96), torch.randint(0, 100, (args.batch,)), torch.randint(0, 500, (args.batch, 9))
    with record_function("forward"):
        torch.cuda.nvtx.range_push("forward"); f = model[:-1](x) + emb(ids).mean(1); z = model[-1](f)
        up = F.interpolate(x, scale_factor=1.5, mode="bilinear"); z = z + up.mean((1, 2, 3))[:, None]; torch.cuda.nvtx.range_pop()
    loss = F.cross_entropy(z, y) + torch.zeros(100).index_add(0, y, z.gather(1, y[:, None]).squeeze(1)).pow(2).mean() * 1e-4
    with record_function("backward"): loss.backward()
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
    if bad: print("nan in", bad); opt.zero_grad(); return
    opt.step(); opt.zero_grad(); return loss.item()
for name, cudnn, matmul in (("tf32", True, True), ("strict", False, False)):
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = cudnn, matmul; start.record(); print(name, step(0)); end.record()
    torch.cuda.synchronize(); print(f"{start.elapsed_time(end):.1f} ms"); mark(name)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=1, active=2), profile_memory=True, record_shapes=True,
    on_trace_ready=lambda p: print(p.key_averages().table(sort_by="self_cpu_time_total", row_limit=3)[:300])) as prof:
    for i in range(args.steps): step(i); prof.step()
mark("profiled")
with torch.autograd.detect_anomaly(check_nan=True): step(0)
mark("anomaly"); state = torch.cuda.get_rng_state(), torch.get_rng_state(); a = F.dropout(torch.ones(1000), 0.5); torch.cuda.set_rng_state(state[0])
b = F.dropout(torch.ones(1000), 0.5); print((a == b).all().item()); model.eval()
with torch.no_grad(): s = torch.Tensor([[1.0, 2.0]]); print(model(torch.rand(64, 3, 96, 96)).softmax(-1).topk(5).values.sum().item(), s.device)
mark("evaluated")
