"""Gaussian splatting by hand: a tiled alpha blend of projected Gaussians, densification that clones and splits those with large gradients and prunes the transparent ones, so that parameters and Adam's state grow and shrink by value; opacity reset; SSIM loss."""
import torch, torch.nn.functional as F
from measure import arguments, mark
args = arguments(batch=1500, steps=9)
S, tile = 64, 32
class Splats:
    def __init__(self, n):
        self.p = {"xyz": torch.randn(n, 3), "scale": torch.randn(n, 2) * 0.1 - 2.5, "rot": torch.randn(n, 1), "rgb": torch.randn(n, 3), "opacity": torch.zeros(n, 1)}
        self.p = {k: torch.nn.Parameter(v.cuda()) for k, v in self.p.items()}
        self.opt = torch.optim.Adam([{"params": [v], "lr": lr, "name": k} for (k, v), lr in zip(self.p.items(), (2e-3, 5e-3, 1e-3, 2.5e-3, 5e-2))], lr=0.0, eps=1e-15); self.reset()
    def reset(self): n = len(self.p["xyz"]); self.grad, self.seen = torch.zeros(n, 1, device="cuda"), torch.zeros(n, 1, device="cuda")
    def replace(self, name, tensor):
        for g in self.opt.param_groups:
            if g["name"] == name:
                s = self.opt.state.pop(g["params"][0]); s["exp_avg"], s["exp_avg_sq"] = torch.zeros_like(tensor), torch.zeros_like(tensor)
                g["params"][0] = torch.nn.Parameter(tensor.requires_grad_(True)); self.opt.state[g["params"][0]] = s; self.p[name] = g["params"][0]
    def prune(self, mask):
        keep = ~mask
        for g in self.opt.param_groups:
            s = self.opt.state.pop(g["params"][0]); s["exp_avg"], s["exp_avg_sq"] = s["exp_avg"][keep], s["exp_avg_sq"][keep]
            g["params"][0] = torch.nn.Parameter(g["params"][0][keep].requires_grad_(True)); self.opt.state[g["params"][0]] = s
            self.p[g["name"]] = g["params"][0]
        self.grad, self.seen = self.grad[keep], self.seen[keep]; torch.cuda.empty_cache()
    def extend(self, new):
        for g in self.opt.param_groups:
            e = new[g["name"]]; s = self.opt.state.pop(g["params"][0])
            s["exp_avg"], s["exp_avg_sq"] = torch.cat((s["exp_avg"], torch.zeros_like(e))), torch.cat((s["exp_avg_sq"], torch.zeros_like(e)))
            g["params"][0] = torch.nn.Parameter(torch.cat((g["params"][0], e)).requires_grad_(True)); self.opt.state[g["params"][0]] = s
            self.p[g["name"]] = g["params"][0]
        self.reset()
    @torch.no_grad()
    def densify(self, limit=2e-4):
        grads = self.grad / self.seen; grads[grads.isnan()] = 0.0; big = self.p["scale"].exp().max(1).values > 0.08
        clone = torch.where(grads.norm(dim=-1) >= limit, True, False) & ~big; self.extend({k: v[clone] for k, v in self.p.items()})
        padded = torch.zeros(len(self.p["xyz"]), device="cuda"); padded[:len(grads)] = grads.squeeze()
        split = (padded >= limit) & (self.p["scale"].exp().max(1).values > 0.08); new = {k: v[split].repeat(2, 1) for k, v in self.p.items()}
        new["xyz"] = new["xyz"] + torch.randn_like(new["xyz"]) * 0.05; new["scale"] = new["scale"] - 0.47
        self.extend(new); self.prune(torch.cat((split, torch.zeros(2 * int(split.sum()), device="cuda", dtype=bool))))
        self.prune((self.p["opacity"].sigmoid() < 0.005).squeeze()); self.reset()
    def render(self, camera):
        c = self.p["xyz"] @ camera[:3, :3].T + camera[:3, 3]; z, order = c[:, 2].sort(); xy = (c[:, :2] / (c[:, 2:].abs() + 1.0))[order]
        xy.retain_grad(); a = self.p["rot"][order]; s = self.p["scale"][order].exp()
        R = torch.cat([a.cos(), -a.sin(), a.sin(), a.cos()], 1).view(-1, 2, 2)
        cov = torch.linalg.inv(R @ torch.diag_embed(s ** 2) @ R.transpose(1, 2) + 1e-4 * torch.eye(2, device="cuda"))
        rgb, o = self.p["rgb"][order].sigmoid(), self.p["opacity"][order].sigmoid(); rows = []
        for i in range(0, S, tile):
            cols = []
            for j in range(0, S, tile):
                y, x = torch.meshgrid(torch.arange(i, i + tile, device="cuda"), torch.arange(j, j + tile, device="cuda"), indexing="ij")
                pix = torch.stack([x, y], -1).view(-1, 1, 2) / S * 2 - 1.0; d = pix - xy
                w = (o.T * torch.exp(-0.5 * torch.einsum("pni,nij,pnj->pn", d, cov, d))).clamp(max=0.99)
                T = torch.cumprod(torch.cat([torch.ones_like(w[:, :1]), 1 - w[:, :-1]], 1), 1); cols.append(((T * w) @ rgb).view(tile, tile, 3))
            rows.append(torch.cat(cols, 1))
        return torch.cat(rows).permute(2, 0, 1), xy, order
def ssim(a, b):
    k = torch.ones(3, 1, 11, 11, device="cuda") / 121; f = lambda t: F.conv2d(t[None], k, padding=5, groups=3); m, n = f(a), f(b)
    va, vb, c = f(a * a) - m * m, f(b * b) - n * n, f(a * b) - m * n
    return (((2 * m * n + 1e-4) * (2 * c + 9e-4)) / ((m * m + n * n + 1e-4) * (va + vb + 9e-4))).mean()
g = Splats(args.batch); truth = torch.rand(6, 3, S, S).cuda(); cams = torch.eye(4).repeat(6, 1, 1).cuda(); cams[:, 2, 3] = 4
for step in range(args.steps):
    image, xy, order = g.render(cams[step % 6]); loss = 0.8 * (image - truth[step % 6]).abs().mean() + 0.2 * (1 - ssim(image, truth[step % 6])); loss.backward()
    with torch.no_grad(): visible = xy.abs().max(1).values < 1.2; g.grad[order[visible]] += xy.grad[visible].norm(dim=-1, keepdim=True); g.seen[order[visible]] += 1
    g.opt.step(); g.opt.zero_grad(set_to_none=True)
    if step % 3 == 2: g.densify(); print(step, loss.item(), len(g.p["xyz"])); mark(f"densified{step}")
    if step == 6: g.replace("opacity", torch.min(g.p["opacity"].detach(), torch.full_like(g.p["opacity"], -4.6)))
