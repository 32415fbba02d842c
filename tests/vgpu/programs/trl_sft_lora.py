"""TRL SFT on chats with LoRA, packing off, assistant and user both in the loss."""
import tempfile
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from measure import arguments
from standin import texts, tokenizer

args = arguments(batch=4)
tok = tokenizer()
model = LlamaForCausalLM(LlamaConfig(vocab_size=8000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, pad_token_id=0))
n = args.batch * args.steps
data = Dataset.from_dict({"messages": [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in zip(texts(n, 20, 100), texts(n, 50, 300, seed=2))]})
config = SFTConfig(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, max_length=512, bf16=True, save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=1)
SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tok, peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")).train()
