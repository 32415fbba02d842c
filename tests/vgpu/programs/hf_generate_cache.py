"""Inference: sampling, then greedy with a static cache, from a Llama in bf16 under inference_mode."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from measure import arguments, mark

args = arguments(batch=8, steps=24)
config = LlamaConfig(vocab_size=32000, hidden_size=1536, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4, pad_token_id=0, eos_token_id=None, bos_token_id=1)
with torch.device("cuda"): model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
mark("model")
ids = torch.randint(3, 32000, (args.batch, 256), device="cuda")
with torch.inference_mode():
    out = model.generate(ids, max_new_tokens=args.steps, do_sample=True, temperature=0.7, top_p=0.9, top_k=50)
    mark("sample")
    out = model.generate(ids, max_new_tokens=args.steps, do_sample=False, cache_implementation="static", disable_compile=True)
    mark("static")
print(out.shape)
