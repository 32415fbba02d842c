"""FullyShardedDataParallel with an auto-wrap policy, mixed precision and activation checkpointing, for torchrun (any number of GPUs)."""
import functools, os
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from measure import arguments

args = arguments(batch=8)
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = GPT2LMHeadModel(GPT2Config(n_embd=768, n_layer=8, n_head=12, use_cache=False))
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={GPT2Block})
half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
model = FSDP(model, auto_wrap_policy=policy, mixed_precision=half, sharding_strategy=ShardingStrategy.FULL_SHARD, device_id=torch.cuda.current_device(), use_orig_params=True)
apply_activation_checkpointing(model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda m: isinstance(m, GPT2Block))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    ids = torch.randint(0, 50257, (args.batch, 512), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
