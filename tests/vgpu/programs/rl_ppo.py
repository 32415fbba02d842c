"""PPO on made-up frames: rollouts under no_grad with Categorical, generalised advantages, epochs of minibatches by randperm."""
import torch
from torch import nn
from torch.distributions import Categorical
from measure import arguments

args = arguments(batch=64, steps=2)
body = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()).cuda()
actor, critic = nn.Linear(512, 6).cuda(), nn.Linear(512, 1).cuda()
optimizer = torch.optim.Adam([*body.parameters(), *actor.parameters(), *critic.parameters()], lr=2.5e-4, eps=1e-5)
horizon = 16
for update in range(args.steps):
    obs = torch.zeros(horizon, args.batch, 4, 84, 84, device="cuda")
    actions, logp, rewards, values, done = (torch.zeros(horizon, args.batch, device="cuda") for _ in range(5))
    frame = torch.randint(0, 255, (args.batch, 4, 84, 84), dtype=torch.uint8)
    for t in range(horizon):
        obs[t] = frame.cuda().float() / 255
        with torch.no_grad():
            h = body(obs[t])
            d = Categorical(logits=actor(h))
            a = d.sample()
            values[t], actions[t], logp[t] = critic(h).squeeze(1), a, d.log_prob(a)
        chosen = a.cpu().numpy()
        rewards[t] = torch.tensor((chosen == 1).astype("float32")).cuda()
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(horizon - 1)):
        delta = rewards[t] + 0.99 * values[t + 1] * (1 - done[t + 1]) - values[t]
        advantages[t] = last = delta + 0.99 * 0.95 * (1 - done[t + 1]) * last
    o, a, l, adv, ret = obs.flatten(0, 1), actions.flatten(), logp.flatten(), advantages.flatten(), (advantages + values).flatten()
    for rows in torch.randperm(len(o), device="cuda").split(512):
        h = body(o[rows])
        d = Categorical(logits=actor(h))
        ratio = (d.log_prob(a[rows]) - l[rows]).exp()
        x = (adv[rows] - adv[rows].mean()) / (adv[rows].std() + 1e-8)
        loss = torch.max(-x * ratio, -x * ratio.clamp(0.9, 1.1)).mean() + 0.5 * (critic(h).squeeze(1) - ret[rows]).square().mean() - 0.01 * d.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(body.parameters(), 0.5)
        optimizer.step()
        if ((ratio - 1) - ratio.log()).mean() > 1e9: break
