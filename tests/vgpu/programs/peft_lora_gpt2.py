"""LoRA on GPT-2's Conv1D layers in a plain loop, merged afterwards."""
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel
from measure import arguments, mark

args = arguments(batch=8)
model = GPT2LMHeadModel(GPT2Config(n_layer=8)).cuda()
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, task_type="CAUSAL_LM"))
model.print_trainable_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(args.steps):
    ids = torch.randint(0, 50257, (args.batch, 256), device="cuda")
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model = model.merge_and_unload()
mark("merged")
