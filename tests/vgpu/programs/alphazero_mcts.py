"""AlphaZero on a small board: self-play by a tree search on the CPU whose leaves a network on the GPU evaluates in batches, a buffer of positions, training with policy and value losses, arena games between the old and the new weights."""
import copy, math, random, numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from measure import arguments, mark
args = arguments(batch=64, steps=4)
N = 6
class Net(nn.Module):
    def __init__(self, c=64):
        super().__init__(); self.stem = nn.Sequential(nn.Conv2d(2, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())
        self.r = nn.ModuleList(nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)) for _ in range(4))
        self.p, self.v = nn.Sequential(nn.Conv2d(c, 32, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * N * N, N * N)), nn.Sequential(nn.Conv2d(c, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * N * N, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh())
    def forward(self, x):
        x = self.stem(x)
        for r in self.r: x = F.relu(x + r(x))
        return F.log_softmax(self.p(x), 1), self.v(x)
def winner(b):
    for p in (1, -1):
        m = b == p
        if any(m[i, j:j + 4].all() or m[j:j + 4, i].all() for i in range(N) for j in range(N - 3)): return p
    return 0 if (b == 0).any() else 2
planes = lambda b, p: np.stack([b == p, b == -p]).astype(np.float32)
class MCTS:
    def __init__(self, net): self.net = net
    @torch.no_grad()
    def evaluate(self, states): logp, v = self.net(torch.tensor(np.stack(states)).cuda()); return logp.exp().cpu().numpy(), v.squeeze(1).cpu().numpy()
    def policies(self, boards, players, sims=12):
        trees = [dict(P={}, N={}, W={}) for _ in boards]
        for _ in range(sims):
            leaves, paths = [], []
            for t, b, p in zip(trees, boards, players):
                b, path = b.copy(), []
                while True:
                    k = b.tobytes()
                    if winner(b) or k not in t["P"]: break
                    n = t["N"][k]; q = t["W"][k] / np.maximum(1, n); u = 1.5 * t["P"][k] * math.sqrt(n.sum() + 1) / (1 + n)
                    a = int(np.where(b.flatten() == 0, q + u, -1e9).argmax()); path.append((k, a, p)); b.flat[a] = p; p = -p
                leaves.append((b, p)); paths.append(path)
            P, V = self.evaluate([planes(b, p) for b, p in leaves])
            for t, (b, p), path, pr, v in zip(trees, leaves, paths, P, V):
                w = winner(b)
                if w: v = 0.0 if w == 2 else (1.0 if w == p else -1.0)
                else:
                    k = b.tobytes(); pr = pr * (b.flatten() == 0); s = pr.sum(); t["P"][k] = pr / s if s > 0 else (b.flatten() == 0) / (b == 0).sum()
                    t["N"][k], t["W"][k] = np.zeros(N * N), np.zeros(N * N)
                for k, a, q in path: t["N"][k][a] += 1; t["W"][k][a] += v if q == p else -v
        return [t["N"][b.tobytes()] / max(1, t["N"][b.tobytes()].sum()) for t, b in zip(trees, boards)]
def play(net, games=8):
    mcts, boards, players, data, live = MCTS(net.eval()), [np.zeros((N, N), np.int8) for _ in range(games)], [1] * games, [], list(range(games))
    for _ in range(10):
        if not live: break
        for g, pi in zip(list(live), mcts.policies([boards[g] for g in live], [players[g] for g in live])):
            if not np.isfinite(pi).all() or pi.sum() == 0: pi = np.where(boards[g].flatten() == 0, 1.0, 0.0)
            data.append((planes(boards[g], players[g]), pi / pi.sum(), random.choice((-1.0, 1.0)))); boards[g].flat[np.random.choice(N * N, p=pi / pi.sum())] = players[g]; players[g] *= -1
            if winner(boards[g]): live.remove(g)
    return data
net = Net().cuda(); opt = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4); buffer = []
for iteration in range(2):
    buffer += play(net); mark(f"selfplay{iteration}"); old = copy.deepcopy(net); net.train()
    for _ in range(args.steps):
        s, p, v = zip(*random.choices(buffer, k=args.batch)); s, p, v = torch.tensor(np.stack(s)).cuda(), torch.tensor(np.stack(p), dtype=torch.float32).cuda(), torch.tensor(v).cuda()
        logp, value = net(s); loss = -(p * logp).sum(1).mean() + F.mse_loss(value.squeeze(1), v); opt.zero_grad(); loss.backward(); opt.step(); print(loss.item())
    play(old, 4); play(net, 4); mark(f"arena{iteration}")
