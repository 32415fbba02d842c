"""Double DQN with a replay buffer on the GPU, a target network and prioritised sampling by multinomial."""
import copy
import torch
from torch import nn
from torch.nn import functional as F
from measure import arguments

args = arguments(batch=256)
q = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 81, 512), nn.ReLU(), nn.Linear(512, 18)).cuda()
target = copy.deepcopy(q)
frames = torch.randint(0, 255, (20000, 4, 84, 84), dtype=torch.uint8, device="cuda")
actions, rewards, priority = torch.randint(0, 18, (20000,), device="cuda"), torch.randn(20000, device="cuda"), torch.ones(20000, device="cuda")
optimizer = torch.optim.RMSprop(q.parameters(), lr=2.5e-4)
for step in range(args.steps):
    rows = torch.multinomial(priority[:-1], args.batch)
    now, later = frames[rows].float() / 255, frames[rows + 1].float() / 255
    with torch.no_grad(): goal = rewards[rows] + 0.99 * target(later).gather(1, q(later).argmax(1, keepdim=True)).squeeze(1)
    value = q(now).gather(1, actions[rows, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    priority[rows] = (value - goal).detach().abs() + 1e-3
    target.load_state_dict(q.state_dict())
