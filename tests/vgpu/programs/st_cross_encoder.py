"""sentence-transformers: a cross-encoder for reranking, binary cross-entropy, then ranking."""
import tempfile
import torch
from datasets import Dataset
from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from transformers import BertConfig, BertForSequenceClassification
from measure import arguments, mark
from standin import checkpoint, texts, tokenizer

args = arguments(batch=32)
folder = checkpoint(BertForSequenceClassification(BertConfig(vocab_size=8000, hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8, num_labels=1)), tokenizer())
model = CrossEncoder(folder, num_labels=1, max_length=256, device="cuda")
n = args.batch * args.steps
data = Dataset.from_dict({"query": texts(n, 5, 20), "passage": texts(n, 50, 220, seed=2), "label": [float(i % 2) for i in range(n)]})
training = CrossEncoderTrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, fp16=True, save_strategy="no", report_to="none", disable_tqdm=True)
CrossEncoderTrainer(model=model, args=training, train_dataset=data, loss=BinaryCrossEntropyLoss(model)).train()
print(len(model.predict(list(zip(texts(16, 5, 20), texts(16, 50, 220))))))
mark("predict")
