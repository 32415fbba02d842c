"""Unsloth's fast path: a small Llama from a folder, its LoRA and its checkpointing, TRL's SFT trainer."""
import os, tempfile
os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"
from unsloth import FastLanguageModel
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from measure import arguments
from standin import checkpoint, texts, tokenizer

args = arguments(batch=4)
tok = tokenizer()
folder = checkpoint(LlamaForCausalLM(LlamaConfig(vocab_size=8000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, pad_token_id=0)).bfloat16(), tok)
model, tok = FastLanguageModel.from_pretrained(folder, max_seq_length=512, dtype=torch.bfloat16, load_in_4bit=False)
model = FastLanguageModel.get_peft_model(model, r=16, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], use_gradient_checkpointing="unsloth")
data = Dataset.from_dict({"text": texts(args.batch * args.steps, 100, 400)})
config = SFTConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, max_length=512, bf16=True, optim="adamw_8bit", save_strategy="no", report_to="none", disable_tqdm=True)
SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tok).train()
