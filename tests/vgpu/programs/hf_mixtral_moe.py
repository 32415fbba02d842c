"""A small Mixtral with its router loss, AdamW by hand, bf16."""
import torch
from transformers import MixtralConfig, MixtralForCausalLM
from measure import arguments

args = arguments(batch=4)
config = MixtralConfig(vocab_size=32000, hidden_size=768, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12, num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, output_router_logits=True)
with torch.device("cuda"): model = MixtralForCausalLM(config).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    ids = torch.randint(0, 32000, (args.batch, 512), device="cuda")
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(out.aux_loss is not None)
