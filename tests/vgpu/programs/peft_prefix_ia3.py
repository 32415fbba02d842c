"""Prefix tuning, then IA3, of the same BERT-sized classifier."""
import torch
from peft import IA3Config, PrefixTuningConfig, get_peft_model
from transformers import RobertaConfig, RobertaForSequenceClassification
from measure import arguments

args = arguments(batch=32)
config = RobertaConfig(vocab_size=30000, hidden_size=768, num_hidden_layers=8, num_attention_heads=12, num_labels=2)
for method in (PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=20), IA3Config(task_type="SEQ_CLS", target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"])):
    model = get_peft_model(RobertaForSequenceClassification(config), method).cuda()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for step in range(args.steps):
        ids, y = torch.randint(3, 30000, (args.batch, 128), device="cuda"), torch.randint(0, 2, (args.batch,), device="cuda")
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=y).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
