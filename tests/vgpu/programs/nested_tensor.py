"""Jagged nested tensors: texts of different lengths through linear layers and scaled_dot_product_attention without padding."""
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments


class Layer(nn.Module):
    def __init__(self, d=512, heads=8):
        super().__init__()
        self.heads, self.qkv, self.out, self.norm, self.up, self.down = heads, nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, [self.heads, -1]).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(x)))


args = arguments(batch=32)
layers = nn.Sequential(*(Layer() for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4)
for step in range(args.steps):
    rows = [torch.randn(int(n), 512, device="cuda") for n in torch.randint(50, 500, (args.batch,))]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged)
    with torch.autocast("cuda", dtype=torch.bfloat16): y = layers(x)
    loss = y.values().float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
