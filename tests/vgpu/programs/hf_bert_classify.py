"""Trainer on BERT for classification: ragged texts, dynamic padding, evaluation with metrics and a checkpoint each few steps, the best model loaded at the end."""
import tempfile
import numpy as np, torch
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments
from measure import arguments
from standin import texts, tokenizer

args = arguments(batch=32, steps=4)
tok = tokenizer()
data = [dict(tok(t, truncation=True, max_length=128), label=i % 3) for i, t in enumerate(texts(args.batch * args.steps, 16, 120))]
model = BertForSequenceClassification(BertConfig(vocab_size=8000, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, num_labels=3))
training = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, per_device_eval_batch_size=2 * args.batch, max_steps=args.steps, eval_strategy="steps", save_strategy="steps", eval_steps=2, save_steps=2,
                             save_total_limit=1, load_best_model_at_end=True, metric_for_best_model="accuracy", logging_steps=1, report_to="none", disable_tqdm=True)
metrics = lambda p: {"accuracy": float((np.argmax(p.predictions, 1) == p.label_ids).mean())}
trainer = Trainer(model=model, args=training, train_dataset=data, eval_dataset=data[:100], data_collator=DataCollatorWithPadding(tok), compute_metrics=metrics)
trainer.train()
print(trainer.evaluate())
