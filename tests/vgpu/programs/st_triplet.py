"""sentence-transformers: triplets, a BERT-sized encoder made from a configuration, bf16, encoding afterwards."""
import tempfile
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
from transformers import BertConfig, BertModel
from measure import arguments, mark
from standin import checkpoint, texts, tokenizer

args = arguments(batch=32)
folder = checkpoint(BertModel(BertConfig(vocab_size=8000, hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8)), tokenizer())
word = models.Transformer(folder, max_seq_length=128)
model = SentenceTransformer(modules=[word, models.Pooling(512)], device="cuda")
n = args.batch * args.steps
data = Dataset.from_dict({"anchor": texts(n, 8, 60), "positive": texts(n, 8, 120, seed=2), "negative": texts(n, 8, 120, seed=3)})
training = SentenceTransformerTrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, bf16=True, save_strategy="no", report_to="none", disable_tqdm=True)
SentenceTransformerTrainer(model=model, args=training, train_dataset=data, loss=losses.TripletLoss(model)).train()
print(model.encode(texts(64, 8, 60), batch_size=32).shape)
mark("encode")
