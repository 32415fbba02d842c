"""Liger's Triton kernels put into a Llama (RMS norm, rotary, SwiGLU, fused linear cross-entropy), bf16."""
import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM
from measure import arguments

args = arguments(batch=4)
apply_liger_kernel_to_llama()
with torch.device("cuda"): model = LlamaForCausalLM(LlamaConfig(vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4)).bfloat16()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(args.steps):
    ids = torch.randint(0, 32000, (args.batch, 512), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
