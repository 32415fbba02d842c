"""TRL DPO with LoRA: the reference is the model without its adapter."""
import tempfile
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer
from measure import arguments
from standin import checkpoint, texts, tokenizer

args = arguments(batch=4)
tok = tokenizer()
folder = checkpoint(LlamaForCausalLM(LlamaConfig(vocab_size=8000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4, pad_token_id=0)), tok)
n = args.batch * args.steps
data = Dataset.from_dict({"prompt": texts(n, 40, 120), "chosen": texts(n, 40, 200, seed=2), "rejected": texts(n, 40, 200, seed=3)})
config = DPOConfig(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, max_length=512, bf16=True, gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True)
DPOTrainer(model=folder, args=config, train_dataset=data, processing_class=tok, peft_config=LoraConfig(r=8, task_type="CAUSAL_LM")).train()
