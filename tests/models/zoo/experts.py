"""Mixtures of experts, whose token counts depend on data."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

TEXT = ("input_ids=i64[B,32]", "labels=input_ids")
SMALL = {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def _hf(name: str, config: str, cls: str, batch: tuple[str, ...] = TEXT, **options) -> None:
    def build():
        import transformers

        return getattr(transformers, cls)(getattr(transformers, config)(**options))

    build.__module__ = __name__
    model(f"transformers-{name}", "transformers", *batch, loss="model")(build)


_hf("mixtral", "MixtralConfig", "MixtralForCausalLM", **SMALL, num_local_experts=4, num_experts_per_tok=2)
_hf("mixtral-router-loss", "MixtralConfig", "MixtralForCausalLM", **SMALL, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
_hf("qwen2-moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM", **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)
_hf("qwen3-moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, head_dim=16)
_hf("olmoe", "OlmoeConfig", "OlmoeForCausalLM", **SMALL, num_experts=4, num_experts_per_tok=2)
_hf("deepseek-v2", "DeepseekV2Config", "DeepseekV2ForCausalLM", **{**SMALL, "num_key_value_heads": 4}, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=64, kv_lora_rank=16, q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=16, first_k_dense_replace=1, topk_group=1, n_group=1)
_hf("granite-moe", "GraniteMoeConfig", "GraniteMoeForCausalLM", **SMALL, num_local_experts=4, num_experts_per_tok=2)
_hf("phimoe", "PhimoeConfig", "PhimoeForCausalLM", **SMALL, num_local_experts=4, num_experts_per_tok=2)
_hf("gpt-oss", "GptOssConfig", "GptOssForCausalLM", **SMALL, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=16)
_hf("dbrx", "DbrxConfig", "DbrxForCausalLM", d_model=64, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=512, use_cache=False, attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}, ffn_config={"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2})
_hf("switch", "SwitchTransformersConfig", "SwitchTransformersForConditionalGeneration", ("input_ids=i64[B,32]", "labels=i64[B,16]"), vocab_size=512, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_heads=4, num_experts=4, expert_capacity=16, decoder_start_token_id=0, use_cache=False)
_hf("jetmoe", "JetMoeConfig", "JetMoeForCausalLM", vocab_size=512, hidden_size=64, num_hidden_layers=2, num_key_value_heads=2, kv_channels=16, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, use_cache=False)


class Mixture(torch.nn.Module):
    """Top-k routing as tutorials write it: a loop over experts that picks tokens with `torch.where`."""

    def __init__(self, form: str, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.form, self.gate = form, torch.nn.Linear(width, experts)
        self.experts = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(width, 128), torch.nn.GELU(), torch.nn.Linear(128, width)) for _ in range(experts))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        if self.form == "dense":
            every = torch.stack([expert(flat) for expert in self.experts], 1)
            picked = every.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))
            return (picked * weights[..., None]).sum(1).view_as(x)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            token, place = torch.where(chosen == index)
            if self.form == "where":
                out.index_add_(0, token, (expert(flat[token]) * weights[token, place, None]).to(out.dtype))
            else:
                mask = (chosen == index).any(-1)
                out[mask] = out[mask] + expert(flat[mask])
        return out.view_as(x)


@model("mixture-dense", "torch", "x=f32[B,32,64]", "y=f32[B,32,64]", loss="mse")
def dense():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), Mixture("dense"), torch.nn.LayerNorm(64))


@model("mixture-where", "torch", "x=f32[B,32,64]", "y=f32[B,32,64]", loss="mse")
def where():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), Mixture("where"), torch.nn.LayerNorm(64))


@model("mixture-masks", "torch", "x=f32[B,32,64]", "y=f32[B,32,64]", loss="mse")
def masks():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), Mixture("masks"), torch.nn.LayerNorm(64))


@model("masked-loss", "torch", "x=f32[B,32,64]", "y=i64[B,32]", loss=lambda m, x, y: (lambda out: F.cross_entropy(out[y != 0], y[y != 0]))(m(x)))
def masked_loss():
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 100))
