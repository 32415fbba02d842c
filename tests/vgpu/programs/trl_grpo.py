"""TRL GRPO: four completions a prompt by transformers' generate, a reward written in Python."""
import tempfile
import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from measure import arguments
from standin import checkpoint, texts, tokenizer

args = arguments(batch=8, steps=2)
tok = tokenizer()
tok.padding_side = "left"
folder = checkpoint(Qwen2ForCausalLM(Qwen2Config(vocab_size=8000, hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2, pad_token_id=0, eos_token_id=2, bos_token_id=1)), tok)
data = Dataset.from_dict({"prompt": texts(args.batch * args.steps, 16, 64)})
config = GRPOConfig(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, num_generations=4, max_completion_length=24, max_steps=args.steps, beta=0.04, bf16=True, save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=1)
GRPOTrainer(model=folder, reward_funcs=lambda completions, **kw: [float(len(set(c.split()))) for c in completions], args=config, train_dataset=data, processing_class=tok).train()
