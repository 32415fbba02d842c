#!/usr/bin/env python3
"""What training and then `generate()` reserve on this machine's GPU, beside what `batchfit soak` says of the same.

For six classes of transformers, one of them in bf16, too (random weights, eager mode), and both caches: three steps of AdamW, then twice a call of `generate()` that
completes prompts of equal length. Prints the peaks of what is allocated and reserved, real and simulated, and the difference in percent, and exits 1 where what is
reserved differs by more than 1 %. Each training is a process of its own, forked before any of them opens the GPU.

Usage: tests/gpu/generate.py BATCHFIT [--only NAME,..] [--on CARD]    (PyTorch 2.11, transformers 5.17; some 30 GiB)
"""
import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile

# `import transformers` asks whether there is a GPU; asked this way, processes can be forked afterwards.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
import transformers

GIB = 1 << 30
WIDE = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "vocab_size": 32000}
GROUPED = {**WIDE, "intermediate_size": 2816, "num_key_value_heads": 4}
WINDOWS = {"head_dim": 64, "sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"] * 4}
CLASSES = {
    "gpt2": ("GPT2LMHeadModel", {}),
    "llama": ("LlamaForCausalLM", GROUPED),
    "llama-bf16": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 256}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 64, "eos_token_id": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**WIDE, "intermediate_size": 4096}),
    "gemma3": ("Gemma3ForCausalLM", {**GROUPED, **WINDOWS}),
}
# What generates has to be larger than what trains, or nothing would be seen of it.
SEQ_LEN, BATCH, STEPS, PROMPTS, PROMPT, TOKENS, TIMES = 128, 1, 3, 128, 384, 32, 2


def config_of(name):
    architecture, config = CLASSES[name]
    model_class = getattr(transformers, architecture)
    return model_class, model_class.config_class(**config)


def simulated(batchfit, card, name, cache):
    """Peaks of what is allocated and reserved as batchfit says them, in bytes."""
    model_class, config = config_of(name)
    described = {**config.to_dict(), "architectures": [model_class.__name__]}
    flags = {
        "--on": card,
        "--precision": "bf16" if name.endswith("bf16") else "fp32",
        "--optimizer": "adamw",
        "--batch": BATCH,
        "--seq-len": SEQ_LEN,
        "--steps": STEPS,
        "--generation-batch": PROMPTS,
        "--generation-prompt": PROMPT,
        "--generation-tokens": TOKENS,
        "--generation-times": TIMES,
        "--generation-cache": cache,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        path.write_text(json.dumps(described))
        words = [str(word) for flag in flags.items() for word in flag]
        run = subprocess.run([batchfit, "soak", str(path), *words, "--json"], stdout=subprocess.PIPE, check=False)
    if run.returncode not in (0, 3):
        raise RuntimeError(f"batchfit exits with {run.returncode}")
    report = json.loads(run.stdout)["report"]
    return report["peak_allocated_bytes"], report["peak_reserved_bytes"]


def real(name, cache):
    """The same as PyTorch says them."""
    model_class, config = config_of(name)
    config.use_cache = False
    net = model_class(config).to(torch.bfloat16 if name.endswith("bf16") else torch.float32).cuda().train()
    # Random weights do not end all texts with this token.
    net.generation_config.eos_token_id = config.vocab_size - 1 if config.eos_token_id is not None else None
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    for _ in range(STEPS):
        ids = torch.randint(1000, (BATCH, SEQ_LEN), device="cuda")
        loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        del loss, ids
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    net.eval()
    for _ in range(TIMES):
        ids = torch.randint(1000, (PROMPTS, PROMPT), device="cuda")
        mask = torch.ones_like(ids)
        how = {"cache_implementation": "static"} if cache == "static" else {}
        texts = net.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=TOKENS,
            do_sample=False,
            use_cache=True,
            disable_compile=True,
            **how,
        )
        assert texts.shape[1] == PROMPT + TOKENS, "all texts ended early"
        del ids, mask, texts
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


class Training:
    """A process that trains and generates when its turn comes."""

    def __init__(self, case):
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=self._wait, args=(theirs, case), daemon=True)
        self.process.start()
        theirs.close()

    @staticmethod
    def _wait(pipe, case):
        pipe.recv()
        try:
            pipe.send(real(*case))
        except Exception as error:
            pipe.send(error)

    def peaks(self):
        self.pipe.send("go")
        answer = self.pipe.recv()
        self.process.join()
        if isinstance(answer, Exception):
            raise answer
        return answer


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("batchfit")
    arguments.add_argument("--only")
    arguments.add_argument("--on", default="h100")
    given = arguments.parse_args()
    names = given.only.split(",") if given.only else CLASSES
    cases = [(name, cache) for name in names for cache in ("dynamic", "static")]
    worst = 0
    print(f"{'class':<10} {'cache':<8} {'allocated, simulated and real':<32} {'reserved, simulated and real':<32}")
    trainings = [Training(case) for case in cases]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        said = [threads.submit(simulated, given.batchfit, given.on, *case) for case in cases]
        for (name, cache), training, ours in zip(cases, trainings, said):
            try:
                was, ours = training.peaks(), ours.result()
            except Exception as error:  # one class that fails leaves the others
                print(f"{name:<10} {cache:<8} FAILED: {error}", flush=True)
                worst = 100
                continue
            off = [100 * (simulated - measured) / measured for simulated, measured in zip(ours, was)]
            worst = max(worst, abs(off[1]))
            parts = [f"{a / GIB:.3f}, {b / GIB:.3f} GiB ({percent:+.2f} %)" for a, b, percent in zip(ours, was, off)]
            print(f"{name:<10} {cache:<8} {parts[0]:<32} {parts[1]:<32}", flush=True)
    return 1 if worst > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
