"""Activation checkpointing: checkpoint on blocks (not reentrant), checkpoint_sequential, and selective policies."""
import functools
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts
from measure import arguments

args = arguments(batch=16)
blocks = nn.Sequential(*(nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.1) for _ in range(6))).cuda().train()
optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)
policy = lambda ctx, op, *a, **k: CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE
contexts = functools.partial(create_selective_checkpoint_contexts, policy)
for step in range(args.steps):
    for kind in ("plain", "sequential", "selective"):
        x = torch.randn(args.batch, 512, 768, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            if kind == "sequential": y = checkpoint_sequential(blocks, 3, x, use_reentrant=False)
            else:
                y = x
                for b in blocks: y = checkpoint(b, y, use_reentrant=False, **({"context_fn": contexts} if kind == "selective" else {}))
        y.float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
