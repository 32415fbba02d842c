"""State-space models and linear recurrences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from . import model

TEXT = ("input_ids=i64[B,32]", "labels=input_ids")


def _hf(name: str, config: str, cls: str, **options) -> None:
    def build():
        import transformers

        return getattr(transformers, cls)(getattr(transformers, config)(**options))

    build.__module__ = __name__
    model(f"transformers-{name}", "transformers", *TEXT, loss="model")(build)


_hf("mamba", "MambaConfig", "MambaForCausalLM", vocab_size=512, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False)
_hf("mamba2", "Mamba2Config", "Mamba2ForCausalLM", vocab_size=512, hidden_size=64, state_size=16, num_hidden_layers=2, num_heads=8, head_dim=16, n_groups=2, chunk_size=8, use_cache=False)
_hf("rwkv", "RwkvConfig", "RwkvForCausalLM", vocab_size=512, hidden_size=64, num_hidden_layers=2, attention_hidden_size=64, intermediate_size=128, use_cache=False)
_hf("recurrent-gemma", "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", vocab_size=512, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, lru_width=64, attention_window_size=16, use_cache=False)
_hf("falcon-mamba", "FalconMambaConfig", "FalconMambaForCausalLM", vocab_size=512, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False)
_hf("bamba", "BambaConfig", "BambaForCausalLM", vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_chunk_size=8, use_cache=False)
_hf("zamba2-like-jamba", "JambaConfig", "JambaForCausalLM", vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=2, mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False, use_cache=False)
_hf("xlstm", "xLSTMConfig", "xLSTMForCausalLM", vocab_size=512, hidden_size=64, num_heads=4, num_blocks=2, chunk_size=16, use_cache=False)
_hf("qwen3-next", "Qwen3NextConfig", "Qwen3NextForCausalLM", vocab_size=512, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=128, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32, use_cache=False)


@model("mambapy", "mambapy", "x=f32[B,32,64]", "y=f32[B,32,64]", loss="mse")
def mambapy():
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=64, n_layers=2, d_state=8, pscan=False))


@model("mambapy-pscan", "mambapy", "x=f32[B,32,64]", "y=f32[B,32,64]", loss="mse")
def mambapy_pscan():
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=64, n_layers=2, d_state=8, pscan=True))


class S4d(torch.nn.Module):
    """A diagonal state-space layer, as its authors' minimal code has it: a kernel and a convolution by FFT."""

    def __init__(self, width: int = 64, state: int = 32) -> None:
        super().__init__()
        self.log_dt = torch.nn.Parameter(torch.rand(width) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.c = torch.nn.Parameter(torch.randn(width, state // 2, 2))
        self.log_a = torch.nn.Parameter(torch.log(0.5 * torch.ones(width, state // 2)))
        self.a = torch.nn.Parameter(math.pi * torch.arange(state // 2).float().repeat(width, 1))
        self.d, self.out = torch.nn.Parameter(torch.randn(width)), torch.nn.Conv1d(width, 2 * width, 1)

    def forward(self, u):
        length = u.shape[-1]
        dt, a = torch.exp(self.log_dt), -torch.exp(self.log_a) + 1j * self.a
        dta = a * dt.unsqueeze(-1)
        k = dta.unsqueeze(-1) * torch.arange(length, device=u.device)
        c = torch.view_as_complex(self.c) * (torch.exp(dta) - 1.0) / a
        kernel = 2 * torch.einsum("hn, hnl -> hl", c, torch.exp(k)).real
        k_f, u_f = torch.fft.rfft(kernel, n=2 * length), torch.fft.rfft(u, n=2 * length)
        y = torch.fft.irfft(u_f * k_f, n=2 * length)[..., :length] + u * self.d.unsqueeze(-1)
        return F.glu(self.out(F.gelu(y)), dim=-2)


@model("s4d", "torch", "x=f32[B,64,128]", "y=f32[B,64,128]", loss="mse", on_gpu=True)
def s4d():
    return torch.nn.Sequential(S4d(), S4d())


@model("linear-recurrence", "torch", "x=f32[B,64,32]", "y=f32[B,64,32]", loss=lambda m, x, y: F.l1_loss(m(x), y))
def scan():
    class Scan(torch.nn.Module):
        """minGRU in log space."""

        def __init__(self):
            super().__init__()
            self.project = torch.nn.Linear(32, 64)

        def forward(self, x):
            hidden, gate = self.project(x).chunk(2, -1)
            log_coefficients = -F.softplus(gate)
            log_values = -F.softplus(-gate) + torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
            summed = log_coefficients.cumsum(1)
            return (summed + (log_values - summed).logcumsumexp(1)).exp()

    return Scan()
