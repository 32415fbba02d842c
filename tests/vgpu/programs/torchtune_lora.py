"""torchtune: a LoRA Llama from its builders, chunked cross-entropy, activation checkpointing, bf16."""
import torch
from torchtune.models.llama3 import lora_llama3
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params
from torchtune.training import set_activation_checkpointing
from torchtune.modules import TransformerSelfAttentionLayer
from measure import arguments

args = arguments(batch=4)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"): model = lora_llama3(lora_attn_modules=["q_proj", "v_proj"], apply_lora_to_mlp=True, vocab_size=32000, num_layers=8, num_heads=16, num_kv_heads=4, embed_dim=1024, max_seq_len=1024, intermediate_dim=2816, lora_rank=16, lora_alpha=32.0)
set_trainable_params(model, get_adapter_params(model))
set_activation_checkpointing(model, auto_wrap_policy={TransformerSelfAttentionLayer})
loss_fn = CEWithChunkedOutputLoss()
model.set_num_output_chunks(loss_fn.num_output_chunks)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4, fused=True)
for step in range(args.steps):
    ids = torch.randint(0, 32000, (args.batch, 512), device="cuda")
    loss = loss_fn(model(ids), ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
