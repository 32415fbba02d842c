"""Masked language modelling on ModernBERT: sliding-window layers, the collator masks, Trainer in bf16."""
import tempfile
import torch
from transformers import DataCollatorForLanguageModeling, ModernBertConfig, ModernBertForMaskedLM, Trainer, TrainingArguments
from measure import arguments
from standin import texts, tokenizer

args = arguments(batch=16)
tok = tokenizer()
tok.add_special_tokens({"mask_token": "<mask>"})
model = ModernBertForMaskedLM(ModernBertConfig(vocab_size=8064, hidden_size=512, intermediate_size=768, num_hidden_layers=8, num_attention_heads=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2))
data = [tok(t, return_special_tokens_mask=True) for t in texts(args.batch * args.steps, 100, 400)]
training = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, bf16=True, save_strategy="no", report_to="none", disable_tqdm=True)
Trainer(model=model, args=training, train_dataset=data, data_collator=DataCollatorForLanguageModeling(tok, mlm_probability=0.3)).train()
