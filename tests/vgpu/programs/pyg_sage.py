"""torch_geometric: batches of graphs through SAGEConv, GATv2Conv and global pooling."""
import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, SAGEConv, global_mean_pool
from measure import arguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.out = SAGEConv(64, 256), GATv2Conv(256, 64, heads=4), SAGEConv(256, 256), torch.nn.Linear(256, 10)

    def forward(self, d):
        x = F.relu(self.a(d.x, d.edge_index))
        x = F.relu(self.b(x, d.edge_index))
        return self.out(global_mean_pool(F.relu(self.c(x, d.edge_index)), d.batch))


args = arguments(batch=128)
graphs = [Data(x=torch.randn(n, 64), edge_index=torch.randint(0, n, (2, 8 * n)), y=torch.tensor([i % 10])) for i, n in enumerate(torch.randint(50, 200, (args.batch * args.steps,)).tolist())]
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for data in DataLoader(graphs, batch_size=args.batch, shuffle=True):
    data = data.to("cuda")
    loss = F.cross_entropy(model(data), data.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
