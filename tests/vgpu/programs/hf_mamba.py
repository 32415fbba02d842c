"""A small Mamba by transformers without its kernels (a loop over time), AdamW."""
import torch
from transformers import MambaConfig, MambaForCausalLM
from measure import arguments

args = arguments(batch=4, steps=2)
model = MambaForCausalLM(MambaConfig(vocab_size=32000, hidden_size=768, num_hidden_layers=4, state_size=16)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    ids = torch.randint(0, 32000, (args.batch, 128), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
