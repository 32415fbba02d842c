"""DeepSpeed ZeRO-2 by its own API, bf16, for torchrun (any number of GPUs)."""
import deepspeed, torch
from transformers import LlamaConfig, LlamaForCausalLM
from measure import arguments

args = arguments(batch=4)
deepspeed.init_distributed()
model = LlamaForCausalLM(LlamaConfig(vocab_size=16000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4))
config = {"train_micro_batch_size_per_gpu": args.batch, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True}, "zero_allow_untested_optimizer": True}
engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4), config=config)
for step in range(args.steps):
    ids = torch.randint(0, 16000, (args.batch, 512), device=engine.device)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
