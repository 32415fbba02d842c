"""Language models and their relatives."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

HF, X = "transformers", "x-transformers"
TEXT = ("input_ids=i64[B,64]", "labels=input_ids")
SMALL = {"vocab_size": 512, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
LLAMA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _causal(name: str, config: str, cls: str, **options) -> None:
    def build():
        import transformers

        return getattr(transformers, cls)(getattr(transformers, config)(**options))

    build.__module__ = __name__
    model(f"transformers-{name}", HF, *TEXT, loss="model")(build)


_causal("gemma2", "Gemma2Config", "Gemma2ForCausalLM", **LLAMA, head_dim=24, sliding_window=16)
_causal("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", **LLAMA, head_dim=24, sliding_window=16)
_causal("qwen3", "Qwen3Config", "Qwen3ForCausalLM", **LLAMA, head_dim=24)
_causal("phi3", "Phi3Config", "Phi3ForCausalLM", **LLAMA)
_causal("olmo2", "Olmo2Config", "Olmo2ForCausalLM", **LLAMA)
_causal("falcon", "FalconConfig", "FalconForCausalLM", vocab_size=512, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, alibi=True, use_cache=False)
_causal("bloom", "BloomConfig", "BloomForCausalLM", vocab_size=512, hidden_size=96, n_layer=2, n_head=4, use_cache=False)
_causal("mpt", "MptConfig", "MptForCausalLM", vocab_size=512, d_model=96, n_layers=2, n_heads=4, max_seq_len=128, use_cache=False)
_causal("gpt-neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", **{k: v for k, v in LLAMA.items() if k != "num_key_value_heads"})
_causal("gptj", "GPTJConfig", "GPTJForCausalLM", vocab_size=512, n_embd=96, n_layer=2, n_head=4, rotary_dim=8, n_positions=128, use_cache=False)
_causal("xglm", "XGLMConfig", "XGLMForCausalLM", vocab_size=512, d_model=96, num_layers=2, attention_heads=4, ffn_dim=192, use_cache=False)
_causal("openai-gpt", "OpenAIGPTConfig", "OpenAIGPTLMHeadModel", vocab_size=512, n_embd=96, n_layer=2, n_head=4, n_positions=64)
_causal("cohere", "CohereConfig", "CohereForCausalLM", **LLAMA)
_causal("granite", "GraniteConfig", "GraniteForCausalLM", **LLAMA)


def _masked(name: str, config: str, cls: str, **options) -> None:
    def build():
        import transformers

        return getattr(transformers, cls)(getattr(transformers, config)(**options))

    build.__module__ = __name__
    model(f"transformers-{name}", HF, "input_ids=i64[B,64]", "labels=i64[B,64]", loss="model")(build)


_masked("deberta-v2", "DebertaV2Config", "DebertaV2ForMaskedLM", **SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], max_position_embeddings=128, position_buckets=32)
_masked("modernbert", "ModernBertConfig", "ModernBertForMaskedLM", **SMALL, local_attention=16, pad_token_id=0, cls_token_id=1, sep_token_id=2, eos_token_id=2, bos_token_id=1)
_masked("electra", "ElectraConfig", "ElectraForMaskedLM", **SMALL, embedding_size=48)
_masked("albert", "AlbertConfig", "AlbertForMaskedLM", **SMALL, embedding_size=32)
_masked("longformer", "LongformerConfig", "LongformerForMaskedLM", **SMALL, attention_window=[16, 16], max_position_embeddings=130)
_masked("bigbird", "BigBirdConfig", "BigBirdForMaskedLM", **SMALL, attention_type="original_full")
_masked("fnet", "FNetConfig", "FNetForMaskedLM", vocab_size=512, hidden_size=96, num_hidden_layers=2, intermediate_size=192, tpu_short_seq_length=64)
_masked("mpnet", "MPNetConfig", "MPNetForMaskedLM", **SMALL)
_masked("t5", "T5Config", "T5ForConditionalGeneration", vocab_size=512, d_model=96, d_kv=24, d_ff=192, num_layers=2, num_heads=4, decoder_start_token_id=0, use_cache=False)
_masked("bart", "BartConfig", "BartForConditionalGeneration", vocab_size=512, d_model=96, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=192, decoder_ffn_dim=192, use_cache=False, encoder_layerdrop=0.1)
_masked("reformer-mlm", "ReformerConfig", "ReformerForMaskedLM", vocab_size=512, hidden_size=64, attention_head_size=16, num_attention_heads=4, feed_forward_size=128, attn_layers=["local", "local"], local_attn_chunk_length=16, axial_pos_shape=(8, 8), axial_pos_embds_dim=(32, 32), is_decoder=False, max_position_embeddings=64)


def _x(name: str, **options) -> None:
    def build():
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        layers = Decoder(dim=96, depth=2, heads=4, **options)
        return AutoregressiveWrapper(TransformerWrapper(num_tokens=512, max_seq_len=128, attn_layers=layers))

    build.__module__ = __name__
    model(f"x-transformers-{name}", X, "x=i64[B,65]", loss=lambda m, x: m(x))(build)


_x("rotary-swiglu", rotary_pos_emb=True, ff_swish=True, ff_glu=True)
_x("alibi", alibi_pos_bias=True, alibi_num_heads=2)
_x("t5-bias", rel_pos_bias=True)
_x("rmsnorm-qk", use_rmsnorm=True, attn_qk_norm=True)
_x("talking-heads", attn_pre_talking_heads=True, attn_sparse_topk=8)
_x("gated-residual", gate_residual=True, macaron=True)
_x("flash-gqa", attn_flash=True, attn_kv_heads=2, attn_dropout=0.1)
_x("sandwich-memory", sandwich_norm=True, attn_num_mem_kv=4, layer_dropout=0.1)


@model("x-transformers-encoder-decoder", X, "src=i64[B,32]", "tgt=i64[B,33]", loss=lambda m, src, tgt: m(src, tgt))
def x_seq2seq():
    from x_transformers import XTransformer

    return XTransformer(dim=64, enc_num_tokens=256, enc_depth=2, enc_heads=4, enc_max_seq_len=32, dec_num_tokens=256, dec_depth=2, dec_heads=4, dec_max_seq_len=64)


@model("performer-pytorch", "performer-pytorch", "x=i64[B,64]", "y=i64[B,64]", loss=lambda m, x, y: F.cross_entropy(m(x).transpose(1, 2), y))
def performer():
    from performer_pytorch import PerformerLM

    return PerformerLM(num_tokens=256, max_seq_len=64, dim=64, depth=2, heads=4, dim_head=16, nb_features=32, feature_redraw_interval=None)


@model("linformer", "linformer", "x=i64[B,64]", "y=i64[B,64]", loss=lambda m, x, y: F.cross_entropy(m(x).transpose(1, 2), y))
def linformer():
    from linformer import LinformerLM

    return LinformerLM(num_tokens=256, dim=64, seq_len=64, depth=2, heads=4, k=16)


@model("nystrom-attention", "nystrom-attention", "x=f32[B,64,64]", "y=f32[B,64,64]", loss="mse")
def nystrom():
    from nystrom_attention import Nystromformer

    return Nystromformer(dim=64, depth=2, dim_head=16, heads=4, num_landmarks=16, pinv_iterations=4)


@model("local-attention", "local-attention", "x=i64[B,64]", "y=i64[B,64]", loss=lambda m, x, y: F.cross_entropy(m(x).transpose(1, 2), y))
def local_attention():
    from local_attention import LocalTransformer

    return LocalTransformer(num_tokens=256, dim=64, depth=2, max_seq_len=64, causal=True, local_attn_window_size=16)


@model("sentence-embeddings", "sentence-transformers", "a=i64[B,32]", "b=i64[B,32]", loss=lambda m, a, b: ranking(m, a, b))
def sentence():
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SMALL, hidden_dropout_prob=0.1), add_pooling_layer=False)


def ranking(model, a, b):
    """Multiple negatives ranking over mean-pooled embeddings."""
    from sentence_transformers import util

    def embed(ids):
        mask = (ids != 3).unsqueeze(-1).float()
        hidden = model(input_ids=ids, attention_mask=mask.squeeze(-1)).last_hidden_state
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)

    scores = util.cos_sim(embed(a), embed(b)) * 20.0
    return F.cross_entropy(scores, torch.arange(a.shape[0], device=a.device))


class Block(torch.nn.Module):
    """nanoGPT's block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(self.first(x)).split(c, dim=2)
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.second(x))


@model("nano-gpt", "torch", "idx=i64[B,64]", "y=i64[B,64]", loss=lambda m, idx, y: F.cross_entropy(m(idx).view(-1, 512), y.view(-1), ignore_index=-1))
def nano_gpt():
    class Gpt(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = torch.nn.Embedding(512, 96), torch.nn.Embedding(64, 96)
            self.blocks = torch.nn.ModuleList(Block(96, 4) for _ in range(2))
            self.norm, self.head = torch.nn.LayerNorm(96), torch.nn.Linear(96, 512, bias=False)
            self.tokens.weight = self.head.weight

        def forward(self, idx):
            positions = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
            x = self.tokens(idx) + self.positions(positions)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt()


@model("torch-transformer", "torch", "src=f32[B,24,64]", "tgt=f32[B,16,64]", "y=f32[B,16,64]", loss=lambda m, src, tgt, y: F.smooth_l1_loss(m(src, tgt, tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(16, device=src.device)), y))
def torch_transformer():
    return torch.nn.Transformer(64, 4, 2, 2, 128, batch_first=True)


@model("torch-transformer-padding", "torch", "tokens=i64[B,32]", "y=i64[B]")
def padded_encoder():
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(256, 64, padding_idx=0)
            layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
            self.encoder, self.head = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(64, 5)

        def forward(self, tokens):
            padding = tokens == 0
            hidden = self.encoder(self.embedding(tokens) * 8.0, src_key_padding_mask=padding)
            return self.head(hidden.masked_fill(padding[..., None], 0).mean(1))

    return Encoder()
