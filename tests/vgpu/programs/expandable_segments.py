"""PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True with sequences of changing length."""
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
from torch import nn
from measure import arguments

args = arguments(batch=16, steps=5)
embed, body, head = nn.Embedding(16000, 768).cuda(), nn.TransformerEncoder(nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True), 6).cuda(), nn.Linear(768, 16000).cuda()
optimizer = torch.optim.AdamW([*embed.parameters(), *body.parameters(), *head.parameters()])
for length in [128, 384, 200, 512, 333][:args.steps]:
    ids = torch.randint(0, 16000, (args.batch, length), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16): loss = nn.functional.cross_entropy(head(body(embed(ids))).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
