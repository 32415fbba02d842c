"""Seq2SeqTrainer on T5: label smoothing, evaluation by generation with two beams."""
import tempfile
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration
from measure import arguments
from standin import texts, tokenizer

args = arguments(batch=16)
tok = tokenizer()
model = T5ForConditionalGeneration(T5Config(vocab_size=8000, d_model=512, d_ff=1024, num_layers=6, num_heads=8, d_kv=64, decoder_start_token_id=0))
pairs = zip(texts(args.batch * args.steps, 40, 200), texts(args.batch * args.steps, 10, 60, seed=2))
data = [{"input_ids": tok(a)["input_ids"], "labels": tok(b)["input_ids"]} for a, b in pairs]
training = Seq2SeqTrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, per_device_eval_batch_size=args.batch, max_steps=args.steps, label_smoothing_factor=0.1, predict_with_generate=True, generation_max_length=20, generation_num_beams=2,
                                    eval_strategy="steps", eval_steps=args.steps, save_strategy="no", report_to="none", disable_tqdm=True)
trainer = Seq2SeqTrainer(model=model, args=training, train_dataset=data, eval_dataset=data[:args.batch], data_collator=DataCollatorForSeq2Seq(tok, model=model))
trainer.train()
