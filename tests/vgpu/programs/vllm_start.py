"""vLLM's start-up: a small Llama of random weights, the cache sized from what is free, a few tokens generated."""
import os
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from measure import arguments, mark
from standin import checkpoint, tokenizer


def main():
    args = arguments(batch=4, steps=8)
    folder = checkpoint(LlamaForCausalLM(LlamaConfig(vocab_size=8000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=8, eos_token_id=2, bos_token_id=1)).bfloat16(), tokenizer())
    from vllm import LLM, SamplingParams
    llm = LLM(model=folder, dtype="bfloat16", gpu_memory_utilization=0.1, max_model_len=512, enforce_eager=True)
    mark("started")
    print([len(o.outputs[0].token_ids) for o in llm.generate(["w1 w2 w3"] * args.batch, SamplingParams(max_tokens=args.steps, ignore_eos=True))])
    mark("generated")


if __name__ == "__main__": main()
