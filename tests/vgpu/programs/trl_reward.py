"""TRL reward model on pairs, evaluation afterwards."""
import tempfile
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForSequenceClassification
from trl import RewardConfig, RewardTrainer
from measure import arguments
from standin import texts, tokenizer

args = arguments(batch=4)
tok = tokenizer()
model = LlamaForSequenceClassification(LlamaConfig(vocab_size=8000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4, pad_token_id=0, num_labels=1))
n = args.batch * args.steps
data = Dataset.from_dict({"chosen": texts(n, 40, 400), "rejected": texts(n, 40, 400, seed=2)})
config = RewardConfig(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, max_length=512, bf16=True, eval_strategy="steps", eval_steps=args.steps, save_strategy="no", report_to="none", disable_tqdm=True)
RewardTrainer(model=model, args=config, train_dataset=data, eval_dataset=data.select(range(args.batch)), processing_class=tok).train()
