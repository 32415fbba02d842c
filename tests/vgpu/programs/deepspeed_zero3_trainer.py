"""transformers' Trainer with a ZeRO-3 configuration and the optimizer on the CPU, for torchrun (any number of GPUs)."""
import tempfile
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from measure import arguments

args = arguments(batch=4)
zero = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "overlap_comm": True, "stage3_gather_16bit_weights_on_model_save": True}, "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
training = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=args.batch, max_steps=args.steps, bf16=True, deepspeed=zero, save_strategy="no", report_to="none", disable_tqdm=True)
model = LlamaForCausalLM(LlamaConfig(vocab_size=16000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4))
data = [{"input_ids": r, "labels": r} for r in torch.randint(3, 16000, (args.batch * args.steps * 8, 512))]
Trainer(model=model, args=training, train_dataset=data).train()
