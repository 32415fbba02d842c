"""A training loop that grows its sequences and halves the batch when memory runs out: except torch.cuda.OutOfMemoryError, gradients dropped, cache emptied, memory_summary printed, another try; the card is shared, so the process has a fraction of it. Then a search for the largest evaluation batch by doubling."""
import gc, torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark
args = arguments(batch=48, steps=2)
torch.cuda.set_per_process_memory_fraction(1.5 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
D, V = 320, 8000
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.l, self.o = nn.Embedding(V, D), nn.ModuleList(nn.TransformerEncoderLayer(D, 5, 4 * D, 0.1, batch_first=True) for _ in range(5)), nn.Linear(D, V)
    def forward(self, x):
        h = self.e(x)
        for l in self.l: h = l(h)
        return self.o(h)
net = Net().cuda(); opt = torch.optim.Adam(net.parameters(), 1e-4); batch = args.batch
def train_step(batch, length):
    x = torch.randint(0, V, (batch, length), device="cuda"); loss = F.cross_entropy(net(x).flatten(0, 1), x.flatten()); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step(); opt.zero_grad(set_to_none=True)
    return loss.item()
for length in (64, 96, 160, 256, 384):
    done = 0
    while done < args.steps:
        try: train_step(batch, length); done += 1
        except torch.cuda.OutOfMemoryError as e:
            print("out of memory at", batch, "x", length, str(e)[:60]); print(torch.cuda.memory_summary(abbreviated=True)[:400]); opt.zero_grad(set_to_none=True); batch //= 2
            if batch == 0: raise
            del e
        else: continue
        gc.collect(); torch.cuda.empty_cache(); torch.cuda.reset_accumulated_memory_stats()
    mark(f"length{length}", found=batch)
net.eval(); n = 8
with torch.no_grad():
    while True:
        try: net(torch.randint(0, V, (n, 256), device="cuda")); n *= 2
        except RuntimeError as e:
            if "out of memory" not in str(e): raise
            break
torch.cuda.empty_cache(); print("evaluation batch", n // 2); mark("searched", found=n // 2)
with torch.no_grad(): net(torch.randint(0, V, (n // 2, 256), device="cuda"))
mark("evaluated")
