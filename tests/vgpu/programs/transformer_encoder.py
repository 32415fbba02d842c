"""nn.TransformerEncoder with a padding mask, bf16 autocast, fused AdamW, a cosine schedule with warm-up; evaluation takes the fast path."""
import math
import torch
from torch import nn
from measure import arguments, mark

args = arguments(batch=32, seq=256)
layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, activation="gelu", batch_first=True, norm_first=False)
embed, encoder, head = nn.Embedding(32000, 512, padding_idx=0).cuda(), nn.TransformerEncoder(layer, 8).cuda(), nn.Linear(512, 32000).cuda()
params = [p for m in (embed, encoder, head) for p in m.parameters()]
optimizer = torch.optim.AdamW(params, lr=3e-4, fused=True)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 2, 0.5 * (1 + math.cos(math.pi * s / 10))))
for step in range(args.steps):
    ids = torch.randint(1, 32000, (args.batch, args.seq), device="cuda")
    ids[:, args.seq - 16:] = 0
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = head(encoder(embed(ids), src_key_padding_mask=ids == 0))
        loss = nn.functional.cross_entropy(logits.view(-1, 32000), ids.view(-1), ignore_index=0)
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
encoder.eval()
with torch.inference_mode():
    encoder(embed(ids), src_key_padding_mask=ids == 0)
mark("eval")
