"""peft: parameter-efficient training over several bases."""

from __future__ import annotations

from . import model

LIBRARY = "peft"
TEXT = ("input_ids=i64[B,64]", "labels=input_ids")


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=192, max_position_embeddings=128, use_cache=False))


def _over_llama(name: str, config: str, **options) -> None:
    def build():
        import peft

        return peft.get_peft_model(llama(), getattr(peft, config)(task_type="CAUSAL_LM", **options))

    build.__module__ = __name__
    model(f"peft-{name}", LIBRARY, *TEXT, loss="model")(build)


_over_llama("lora", "LoraConfig", r=8, lora_dropout=0.05, target_modules=["q_proj", "v_proj"])
_over_llama("dora", "LoraConfig", r=8, use_dora=True, target_modules="all-linear")
_over_llama("rslora-embedding", "LoraConfig", r=4, use_rslora=True, target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head"])
_over_llama("ia3", "IA3Config", target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])
_over_llama("prefix", "PrefixTuningConfig", num_virtual_tokens=8)
_over_llama("prompt", "PromptTuningConfig", num_virtual_tokens=8)
_over_llama("p-tuning", "PromptEncoderConfig", num_virtual_tokens=8, encoder_hidden_size=32)
_over_llama("loha", "LoHaConfig", r=4, target_modules=["q_proj", "v_proj"])
_over_llama("lokr", "LoKrConfig", r=4, target_modules=["q_proj", "v_proj"])
_over_llama("vera", "VeraConfig", r=8, target_modules=["q_proj"])
_over_llama("boft", "BOFTConfig", boft_block_size=4, target_modules=["q_proj"])
_over_llama("oft", "OFTConfig", r=0, oft_block_size=8, target_modules=["q_proj"])
_over_llama("adalora", "AdaLoraConfig", r=4, target_r=2, init_r=4, total_step=10, target_modules=["q_proj"])


@model("peft-lora-vit", LIBRARY, "pixel_values=f32[B,3,64,64]", "labels=i64[B]", loss="model")
def lora_vit():
    import peft
    from transformers import ViTConfig, ViTForImageClassification

    base = ViTForImageClassification(ViTConfig(image_size=64, patch_size=8, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192, num_labels=10))
    return peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj", "query", "value"], modules_to_save=["classifier"]))


@model("peft-lora-t5", LIBRARY, "input_ids=i64[B,64]", "labels=i64[B,32]", loss="model")
def lora_t5():
    import peft
    from transformers import T5Config, T5ForConditionalGeneration

    base = T5ForConditionalGeneration(T5Config(vocab_size=512, d_model=96, d_kv=24, d_ff=192, num_layers=2, num_heads=4, decoder_start_token_id=0, use_cache=False))
    return peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=["q", "v"], task_type="SEQ_2_SEQ_LM"))


@model("peft-lora-conv", LIBRARY, "x=f32[B,3,64,64]", "y=i64[B]", on_gpu=True)
def lora_conv():
    import peft
    from torchvision.models import resnet18

    return peft.get_peft_model(resnet18(num_classes=10), peft.LoraConfig(r=4, target_modules=["conv1", "conv2"], modules_to_save=["fc"]))
