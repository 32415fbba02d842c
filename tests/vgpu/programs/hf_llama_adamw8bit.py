"""Trainer on a small Llama with bitsandbytes' 8-bit AdamW and torch_empty_cache_steps."""
import tempfile
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from measure import arguments

args = arguments(batch=4)
config = LlamaConfig(vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4)
model = LlamaForCausalLM(config)
data = [{"input_ids": r, "labels": r} for r in torch.randint(3, 32000, (args.batch * args.steps, 512))]
training = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, bf16=True, optim="adamw_bnb_8bit", torch_empty_cache_steps=2, save_strategy="no", report_to="none", disable_tqdm=True)
Trainer(model=model, args=training, train_dataset=data).train()
