"""More models of `steps.py`: language models whose loss is computed in chunks of the tokens, each under a checkpoint.

The graph of such a model is not exported: in its place stands the model of a request, which batchfit builds itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint

from steps_models import Model


def chunked_loss(head, hidden, labels, chunks):
    """docs/use/suggestions.md has the same."""

    def loss_of(hidden, labels):
        logits = head(hidden).float()
        return cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="sum")

    labels = pad(labels, (0, 1), value=-100)[:, 1:]
    total = 0
    for part in zip(hidden.chunk(chunks, 1), labels.chunk(chunks, 1)):
        total = total + checkpoint(loss_of, *part, use_reentrant=False)
    return total / (labels != -100).sum()


CONFIGS = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 1000},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000},
}


def chunked(name: str, chunks: int) -> Model:
    config = CONFIGS[name]

    def make() -> nn.Module:
        import transformers

        kind = getattr(transformers, config["architectures"][0])
        return kind(kind.config_class.from_dict({**config, "use_cache": False}))

    def loss(model: Callable, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = model.base_model(input_ids=input_ids).last_hidden_state
        return chunked_loss(model.lm_head, hidden, input_ids, chunks)

    request = {"hf": config, "seq_len": 32, "loss_chunks": chunks}
    return Model(make, ["input_ids=i64[B,32]"], loss=loss, precisions=("fp32", "amp_bf16", "bf16"), over_half=(("amp_bf16", "bf16"),),
                 optimizers=("adamw", "adamw_fused"), compute=(8, 0), request=request)


# Of 32 tokens, three chunks are 11, 11 and 10.
MODELS = {f"{name}_in_{chunks}": chunked(name, chunks) for name in CONFIGS for chunks in (1, 3, 8)}
