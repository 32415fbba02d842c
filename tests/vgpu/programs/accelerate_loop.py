"""Accelerate: prepare, accumulate, clip_grad_norm_, gather_for_metrics, bf16."""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, get_linear_schedule_with_warmup
from measure import arguments

args = arguments(batch=16, steps=4)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = DistilBertForSequenceClassification(DistilBertConfig(num_labels=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
data = TensorDataset(torch.randint(0, 30000, (args.batch * args.steps, 256)), torch.randint(0, 4, (args.batch * args.steps,)))
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=args.batch, shuffle=True), get_linear_schedule_with_warmup(optimizer, 1, 10))
right = 0
for ids, labels in loader:
    with accelerator.accumulate(model):
        out = model(input_ids=ids, labels=labels)
        accelerator.backward(out.loss)
        if accelerator.sync_gradients: accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    predicted, wanted = accelerator.gather_for_metrics((out.logits.argmax(-1), labels))
    right += (predicted == wanted).sum().item()
accelerator.print("right", right)
