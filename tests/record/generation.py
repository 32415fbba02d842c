"""Records what PyTorch's allocator is asked for by a loop of greedy generation with transformers' `DynamicCache`.

    python tests/record/generation.py        # PyTorch 2.11 with CUDA, transformers 5.17; a stub of the CUDA runtime is enough

Writes `tests/golden/generation/gpt2.txt`: a line for each request of the second of two loops, `+bytes` or `-bytes`, after a header with
what was generated. What is in the first loop alone (cuBLAS workspaces) is left out.
"""

import pathlib

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

BATCH, PROMPT, TOKENS = 4, 16, 5
CONFIG = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 512}


@torch.no_grad()
def generate(model: GPT2LMHeadModel) -> None:
    ids = torch.zeros(BATCH, PROMPT, dtype=torch.long, device="cuda")
    past = DynamicCache(config=model.config)
    out = model(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
    tokens = out.logits[:, -1].argmax(-1, keepdim=True)
    for _ in range(1, TOKENS):
        out = model(tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
        tokens = out.logits[:, -1].argmax(-1, keepdim=True)


def main() -> None:
    model = GPT2LMHeadModel(GPT2Config(**CONFIG, attn_implementation="sdpa")).cuda().eval()
    generate(model)
    torch.cuda.memory._record_memory_history(max_entries=1 << 20)
    generate(model)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    lines = [f"# {BATCH} {PROMPT} {TOKENS}"]
    for event in events:
        if event["action"] == "alloc":
            lines.append(f"+{event['size']}")
        elif event["action"] == "free_completed":
            lines.append(f"-{event['size']}")
    path = pathlib.Path(__file__).parents[1] / "golden/generation/gpt2.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
