"""A perceptron on flattened images, Adam, float32."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from measure import arguments

args = arguments(batch=4096, steps=4)
data = TensorDataset(torch.rand(args.batch * args.steps, 784), torch.randint(0, 10, (args.batch * args.steps,)))
loader = DataLoader(data, batch_size=args.batch, shuffle=True)
model = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
right = 0
for x, y in loader:
    x, y = x.cuda(), y.cuda()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right += (out.argmax(1) == y).sum().item()
print(f"loss {loss.item():.4f} accuracy {right / len(data):.3f}")
