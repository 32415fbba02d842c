"""Trainer on GPT-2: bf16, gradient checkpointing, two micro-batches a step, fused AdamW, weights of an interrupted run resumed."""
import tempfile
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from measure import arguments

args = arguments(batch=8, steps=4)
rows = torch.randint(0, 50257, (args.batch * args.steps * 2, 512))
data = [{"input_ids": r, "labels": r} for r in rows]
folder = tempfile.mkdtemp()
for steps, resume in ((args.steps // 2, False), (args.steps, True)):
    model = GPT2LMHeadModel(GPT2Config(n_embd=512, n_layer=6, n_head=8, use_cache=False))
    training = TrainingArguments(folder, per_device_train_batch_size=args.batch, gradient_accumulation_steps=2, max_steps=steps, bf16=True, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}, optim="adamw_torch_fused",
                                 save_strategy="steps", save_steps=args.steps // 2, logging_steps=1, report_to="none", disable_tqdm=True)
    Trainer(model=model, args=training, train_dataset=data).train(resume_from_checkpoint=resume)
    del model
    torch.cuda.empty_cache()
