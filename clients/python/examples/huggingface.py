"""Hugging Face's Trainer: one line before `trainer.train()`. Run it on a machine with an NVIDIA GPU."""

import tempfile

import torch
import transformers

import batchfit


class Sentences(torch.utils.data.Dataset):
    """Random tokens in the place of a real data set."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(1000, (128,), generator=generator), "labels": index % 2}


config = transformers.BertConfig(
    vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
)
model = transformers.BertForSequenceClassification(config)
arguments = transformers.TrainingArguments(
    output_dir=tempfile.mkdtemp(), bf16=True, per_device_train_batch_size=8, max_steps=2, report_to=[], save_strategy="no"
)
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences())

plan = batchfit.hf.tune(trainer, target_batch=1024, memory_limit="2GiB")
trainer.train()
