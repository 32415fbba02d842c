"""Hugging Face models by config: needs the package transformers."""

import json
import tempfile
import unittest
from pathlib import Path

import batchfit
from batchfit.export.batches import parse_batch
from batchfit.export.exporting import export_built
from batchfit.export.huggingface import Sizes, from_config

GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
    "n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 50, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
BART = {
    "architectures": ["BartForConditionalGeneration"], "model_type": "bart", "d_model": 32, "vocab_size": 50,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_layerdrop": 0.0, "max_position_embeddings": 32,
}  # fmt: skip
VIT = {
    "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32, "patch_size": 8,
}  # fmt: skip
T5 = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 64,
    "num_layers": 1, "num_heads": 2, "vocab_size": 50,
}  # fmt: skip


MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "vocab_size": 50,
}  # fmt: skip


WAV2VEC = {
    "architectures": ["Wav2Vec2ForCTC"], "model_type": "wav2vec2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 8, "mask_time_prob": 0.0,
}  # fmt: skip


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 50,
}  # fmt: skip


def export(config, **sizes):
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(config))
        builder, batch = from_config(directory, Sizes(**sizes))
    return export_built(builder, batch, "model").document


def attentions(document):
    nodes = document["graph_module"]["graph"]["nodes"]
    for node in nodes:
        if "scaled_dot_product_attention" in node["target"]:
            yield {argument["name"]: argument["arg"] for argument in node["inputs"]}


class TestHuggingFace(unittest.TestCase):
    def test_decoders_say_that_they_are_causal_and_build_no_mask(self):
        found = list(attentions(export(GPT2, seq_len=16)))

        self.assertEqual(len(found), 2)
        for arguments in found:
            self.assertEqual(arguments["is_causal"], {"as_bool": True})
            self.assertNotIn("as_tensor", arguments.get("attn_mask", {}))

    def test_the_check_for_packed_sequences_is_noted(self):
        table = export(GPT2, seq_len=16)["batchfit"]

        self.assertEqual(len(table["packed_checks"]), 1)

    def test_encoder_decoders_learn_that_nothing_is_masked(self):
        document = export(BART, seq_len=16, target_len=8)

        masks = ["as_tensor" in arguments.get("attn_mask", {}) for arguments in attentions(document)]
        self.assertEqual(masks, [False, False, False])

    def test_t5_gets_labels(self):
        document = export(T5, seq_len=16, target_len=8)

        inputs = [s["user_input"]["arg"]["as_tensor"]["name"] for s in document["graph_module"]["signature"]["input_specs"] if "user_input" in s]
        self.assertEqual(inputs, ["input_ids", "labels"])

    def test_speech_gets_letters_and_what_is_not_made_up_a_command(self):
        document = export(WAV2VEC, seq_len=800, target_len=4)

        inputs = [s["user_input"]["arg"]["as_tensor"]["name"] for s in document["graph_module"]["signature"]["input_specs"] if "user_input" in s]
        self.assertEqual(inputs, ["input_values", "labels"])
        with self.assertRaisesRegex(batchfit.ExportError, r'--batch "input_values=f32\[B,800\]" "labels=i64\[B,100\]" --loss model'):
            export({**WAV2VEC, "architectures": ["Wav2Vec2ForPreTraining"]}, seq_len=800)

    def test_experts_run_as_groups_in_float32_too(self):
        document = export(MIXTRAL, seq_len=16)

        targets = [node["target"] for node in document["graph_module"]["graph"]["nodes"]]
        self.assertEqual(targets.count("torch.ops.aten._grouped_mm.default"), 2)

    def test_regions_without_autocast_are_noted(self):
        document = export(LLAMA, seq_len=16)

        ((first, last),) = document["batchfit"]["without_autocast"]
        targets = []
        for node in document["graph_module"]["graph"]["nodes"]:
            nested = [a["arg"]["as_graph"]["graph"]["nodes"] for a in node["inputs"] if "as_graph" in a["arg"]]
            targets += [inner["target"] for inner in nested[0]] if nested else [node["target"]]
        inside = [target.removeprefix("torch.ops.aten.") for target in targets[first : last + 1]]
        self.assertIn("matmul.default", inside)
        self.assertEqual(inside[-1], "mul.Tensor")

    def built(self, **more):
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {key: value for key, value in LLAMA.items() if key not in ("architectures", "model_type")}
        return LlamaForCausalLM(LlamaConfig(**sizes, **more))

    def test_layers_that_the_model_checkpoints_are_marked_and_keep_nothing_longer(self):
        batch = parse_batch(["input_ids=i64[B,16]", "labels=i64[B,16]"])
        plain, checkpointed = self.built(use_cache=False), self.built()
        checkpointed.gradient_checkpointing_enable()
        plain, checkpointed = (export_built(lambda model=model: model, batch, "model").document for model in (plain, checkpointed))

        nodes = checkpointed["graph_module"]["graph"]["nodes"]
        marked = ["torch.utils.checkpoint.checkpoint" in node["metadata"].get("nn_module_stack", "") for node in nodes]
        inside = [".layers.0" in node["metadata"].get("nn_module_stack", "") and bool(node["outputs"]) for node in nodes]
        self.assertEqual(marked, inside)
        self.assertEqual(checkpointed["batchfit"]["releases"], plain["batchfit"]["releases"])

    def test_values_in_a_cache_get_the_dtype_of_the_keys(self):
        batch = parse_batch(["input_ids=i64[B,16]", "labels=i64[B,16]"])
        cached, plain = (export_built(lambda use=use: self.built(use_cache=use), batch, "model").document for use in (True, False))

        self.assertEqual(len(cached["batchfit"]["dtypes_of"]), len(plain["batchfit"]["dtypes_of"]) + 1)

    def test_images_are_as_large_as_the_config_says(self):
        document = export(VIT)

        sizes = document["graph_module"]["graph"]["tensor_values"]["pixel_values"]["sizes"]
        self.assertEqual(sizes[1:], [{"as_int": 3}, {"as_int": 32}, {"as_int": 32}])

    def test_a_padding_mask_in_the_batch_is_taken_to_mask_something(self):
        import transformers

        def build():
            return transformers.GPT2LMHeadModel(transformers.GPT2Config.from_dict(GPT2))

        def masks(*batch):
            found = export_built(build, parse_batch(["input_ids=i64[B,8]", *batch, "labels=input_ids"]), "model").document
            calls = [n for n in found["graph_module"]["graph"]["nodes"] if "scaled_dot_product_attention" in n["target"]]
            return {a["name"] == "attn_mask" and "as_tensor" in a["arg"] for node in calls for a in node["inputs"][3:4]}

        self.assertEqual(masks("attention_mask=i64[B,8]"), {True})
        self.assertEqual(masks("attention_mask=i64[B,8]=1"), {False})

    def test_what_a_config_lacks_is_said(self):
        for config, problem in [
            ({**GPT2, "architectures": None}, "names no class"),
            ({**GPT2, "architectures": ["GPT9"]}, "has no class 'GPT9'"),
            ({**GPT2, "architectures": ["GPT2DoubleHeadsModel"]}, "does not know what GPT2DoubleHeadsModel is trained on"),
            (GPT2, "give --seq-len"),
        ]:
            with self.subTest(problem), self.assertRaisesRegex(batchfit.ExportError, problem):
                export(config, **({} if problem == "give --seq-len" else {"seq_len": 16}))


if __name__ == "__main__":
    unittest.main()
