"""Points, fields and differential equations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model


class PointNet(torch.nn.Module):
    """PointNet with a learned transformation of its input."""

    def __init__(self) -> None:
        super().__init__()
        mlp = lambda *w: torch.nn.Sequential(*(m for a, b in zip(w, w[1:]) for m in (torch.nn.Conv1d(a, b, 1), torch.nn.BatchNorm1d(b), torch.nn.ReLU())))  # noqa: E731
        self.transform, self.to_matrix = mlp(3, 32, 64), torch.nn.Linear(64, 9)
        self.body, self.head = mlp(3, 64, 128), torch.nn.Linear(128, 10)

    def forward(self, x):
        matrix = self.to_matrix(self.transform(x).max(2).values).view(-1, 3, 3) + torch.eye(3, device=x.device)
        x = torch.bmm(x.transpose(1, 2), matrix).transpose(1, 2)
        return self.head(torch.max(self.body(x), 2)[0])


class SetAbstraction(torch.nn.Module):
    """PointNet++: farthest points, their neighbours, a small PointNet on each ball."""

    def __init__(self, points: int, neighbours: int, width_in: int, width: int) -> None:
        super().__init__()
        self.points, self.neighbours = points, neighbours
        self.mlp = torch.nn.Sequential(torch.nn.Conv2d(width_in + 3, width, 1), torch.nn.BatchNorm2d(width), torch.nn.ReLU())

    def farthest(self, xyz):
        size, count, _ = xyz.shape
        chosen = torch.zeros(size, self.points, dtype=torch.long, device=xyz.device)
        distance = torch.full((size, count), 1e10, device=xyz.device)
        far = torch.zeros(size, dtype=torch.long, device=xyz.device)
        rows = torch.arange(size, dtype=torch.long, device=xyz.device)
        for i in range(self.points):
            chosen[:, i] = far
            centre = xyz[rows, far, :].view(size, 1, 3)
            distance = torch.minimum(distance, ((xyz - centre) ** 2).sum(-1))
            far = distance.max(-1)[1]
        return chosen

    def forward(self, xyz, features):
        rows = torch.arange(xyz.shape[0], device=xyz.device).view(-1, 1)
        centres = xyz[rows, self.farthest(xyz)]
        near = torch.cdist(centres, xyz).topk(self.neighbours, largest=False).indices
        rows = rows.unsqueeze(-1)
        grouped = xyz[rows, near] - centres.unsqueeze(2)
        grouped = torch.cat([grouped, features[rows, near]], -1) if features is not None else grouped
        return centres, self.mlp(grouped.permute(0, 3, 2, 1)).max(2)[0].transpose(1, 2)


class PointNet2(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = SetAbstraction(16, 8, 0, 32), SetAbstraction(8, 4, 32, 64), torch.nn.Linear(64, 10)

    def forward(self, xyz):
        xyz, features = self.first(xyz, None)
        _, features = self.second(xyz, features)
        return self.head(features.max(1).values)


class Dgcnn(torch.nn.Module):
    """Edge convolutions over nearest neighbours in feature space."""

    def __init__(self, k: int = 8) -> None:
        super().__init__()
        self.k = k
        self.convs = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Conv2d(2 * a, b, 1, bias=False), torch.nn.BatchNorm2d(b), torch.nn.LeakyReLU(0.2)) for a, b in ((3, 32), (32, 64)))
        self.head = torch.nn.Linear(96, 10)

    def edges(self, x):
        size, width, count = x.shape
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        square = torch.sum(x**2, dim=1, keepdim=True)
        near = (-square - inner - square.transpose(2, 1)).topk(k=self.k, dim=-1)[1]
        base = torch.arange(0, size, device=x.device).view(-1, 1, 1) * count
        flat = x.transpose(2, 1).contiguous().view(size * count, -1)
        neighbours = flat[(near + base).view(-1), :].view(size, count, self.k, width)
        centre = x.transpose(2, 1).reshape(size, count, 1, width).repeat(1, 1, self.k, 1)
        return torch.cat((neighbours - centre, centre), dim=3).permute(0, 3, 1, 2).contiguous()

    def forward(self, x):
        found = []
        for conv in self.convs:
            x = conv(self.edges(x)).max(dim=-1, keepdim=False)[0]
            found.append(x)
        return self.head(F.adaptive_max_pool1d(torch.cat(found, 1), 1).squeeze(-1))


class Nerf(torch.nn.Module):
    """A radiance field: positional encoding, an MLP with a skip, and volume rendering along rays."""

    def __init__(self, samples: int = 32) -> None:
        super().__init__()
        self.samples = samples
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, 128) for a in (63, 128, 191, 128))
        self.density, self.colour = torch.nn.Linear(128, 1), torch.nn.Sequential(torch.nn.Linear(128 + 27, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))

    @staticmethod
    def encode(x, bands):
        frequencies = 2.0 ** torch.linspace(0.0, bands - 1, bands, device=x.device)
        angles = (x[..., None, :] * frequencies[:, None]).flatten(-2)
        return torch.cat([x, torch.sin(angles), torch.cos(angles)], -1)

    def forward(self, origins, directions):
        t = torch.linspace(2.0, 6.0, self.samples, device=origins.device).expand(origins.shape[0], self.samples)
        middle = 0.5 * (t[..., 1:] + t[..., :-1])
        upper, lower = torch.cat([middle, t[..., -1:]], -1), torch.cat([t[..., :1], middle], -1)
        t = lower + (upper - lower) * torch.rand_like(t)
        points = origins[:, None] + directions[:, None] * t[..., None]
        encoded = self.encode(points, 10)
        views = self.encode(F.normalize(directions, dim=-1), 4)[:, None].expand(-1, self.samples, -1)
        h = encoded
        for i, layer in enumerate(self.layers):
            h = F.relu(layer(torch.cat([encoded, h], -1) if i == 2 else h))
        sigma, colour = F.relu(self.density(h)).squeeze(-1), torch.sigmoid(self.colour(torch.cat([h, views], -1)))
        step = torch.cat([t[..., 1:] - t[..., :-1], torch.full_like(t[..., :1], 1e10)], -1)
        alpha = 1.0 - torch.exp(-sigma * step)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1.0 - alpha + 1e-10], -1), -1)[..., :-1]
        return ((alpha * clear)[..., None] * colour).sum(-2)


@model("pointnet", "torch", "x=f32[B,3,256]", "y=i64[B]", on_gpu=True)
def pointnet():
    return PointNet()


@model("pointnet2", "torch", "x=f32[B,128,3]", "y=i64[B]", on_gpu=True)
def pointnet2():
    return PointNet2()


@model("dgcnn", "torch", "x=f32[B,3,128]", "y=i64[B]", loss=lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.2), on_gpu=True)
def dgcnn():
    return Dgcnn()


@model("nerf", "torch", "origins=f32[B,3]", "directions=f32[B,3]", "y=f32[B,3]", loss="mse", batches=(64, 512))
def nerf():
    return Nerf()


@model("siren-pytorch", "siren-pytorch", "x=f32[B,2]", "y=f32[B,3]", loss="mse", batches=(256, 4096))
def siren():
    from siren_pytorch import SirenNet

    return SirenNet(dim_in=2, dim_hidden=128, dim_out=3, num_layers=4, final_activation=torch.nn.Identity(), w0_initial=30.0)


@model("neural-ode", "torchdiffeq", "x=f32[B,16]", "y=f32[B,16]", loss="mse", batches=(32, 256))
def neural_ode():
    from torchdiffeq import odeint

    class Ode(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.field = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16))

        def forward(self, x):
            times = torch.linspace(0.0, 1.0, 5, device="cpu")
            return odeint(lambda _, y: self.field(y), x, times, method="rk4")[-1]

    return Ode()


@model("fourier-neural-operator", "neuraloperator", "x=f32[B,3,32,32]", "y=f32[B,1,32,32]", loss="mse", on_gpu=True)
def fno():
    from neuralop.models import FNO

    return FNO(n_modes=(8, 8), in_channels=3, out_channels=1, hidden_channels=16, n_layers=2)


@model("normalizing-flow", "normflows", "x=f32[B,2]", loss=lambda m, x: m.forward_kld(x), batches=(64, 512))
def flow():
    import normflows as nf

    flows = []
    for _ in range(4):
        flows += [nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 32, 32, 2], init_zeros=True)), nf.flows.Permute(2, mode="swap")]
    return nf.NormalizingFlow(nf.distributions.base.DiagGaussian(2), flows)


@model("physics-informed", "torch", "x=f32[B,2]", "y=f32[B,1]", loss=lambda m, x, y: F.mse_loss(m(x), y) + (m(x) - m(x + 0.01)).div(0.01).square().mean(), batches=(64, 512))
def physics():
    layers = [torch.nn.Linear(2, 64), torch.nn.Tanh()]
    for _ in range(3):
        layers += [torch.nn.Linear(64, 64), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
