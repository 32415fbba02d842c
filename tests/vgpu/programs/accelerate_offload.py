"""Inference of a model larger than what it may use: device_map with max_memory, the rest on the CPU, hooks bring layers in."""
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from measure import arguments, mark
from standin import checkpoint

args = arguments(batch=4, steps=4)
folder = checkpoint(LlamaForCausalLM(LlamaConfig(vocab_size=16000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4, eos_token_id=None)).half())
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="auto", max_memory={0: "400MiB", "cpu": "20GiB"})
print({str(v) for v in model.hf_device_map.values()})
mark("model")
ids = torch.randint(3, 16000, (args.batch, 64)).cuda()
with torch.no_grad(): model.generate(ids, max_new_tokens=args.steps, do_sample=False, pad_token_id=0)
mark("generate")
