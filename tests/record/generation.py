"""Records what PyTorch's allocator is asked for by transformers' `generate()`.

    PYTHONHASHSEED=0 python tests/record/generation.py [--where] [NAME ...]   # PyTorch 2.11 with CUDA, transformers 5.17; a stub of the CUDA runtime is enough

Writes each member of `CASES`, or those that are named, into `tests/golden/steps/generation/sequences.txt.gz`: a line for each request of the
second of two calls, `+bytes` or `-bytes`, after a header with its name, the model (of `tests/golden/huggingface`) and how it was called. What
is in the first call alone (cuBLAS workspaces) is left out. With `--where` the lines are printed instead, with the code that asked.

Where Python asks the GPU whether a mask masks nothing, or whether all sequences have ended, it is told so: a stub cannot know. Nothing is compiled (`disable_compile`). Transformers
walks through a set of words when it makes masks, in an order that is another one each time, hence the seed.
"""

import gzip
import json
import pathlib
import sys

import torch
import transformers
from transformers import masking_utils
from transformers.generation import utils as generation_utils

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
SEQUENCES = GOLDEN / "steps/generation/sequences.txt.gz"

DYNAMIC = {"batch": 3, "prompt": 17, "tokens": 4}
STATIC = {**DYNAMIC, "cache": "static"}
SAMPLED = {**DYNAMIC, "sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.9}

CASES = {
    "gpt2": ("gpt2", DYNAMIC),
    "gpt2-static": ("gpt2", STATIC),
    "llama": ("llama", DYNAMIC),
    "llama-static": ("llama", STATIC),
    "llama-sampled": ("llama", SAMPLED),
    "llama-sampled-plain": ("llama", {**DYNAMIC, "sample": True, "top_k": 0}),
    "llama-once": ("llama", {**DYNAMIC, "tokens": 1}),
}
for name in (
    "gemma gemma2 gemma3 gpt_neox gpt_neox-sequential granite mistral olmo olmo2 opt opt-projected phi phi3 qwen2 qwen2-window qwen3 "
    "smollm3 mixtral qwen2_moe qwen3_moe deepseek_v2 deepseek_v3 deepseek_v3-dense"
).split():
    CASES[name] = (name, DYNAMIC)
    CASES[f"{name}-static"] = (name, STATIC)
for name in ("mistral-window", "gemma2-wide", "phi3-window", "qwen3-window", "gemma3-wide"):
    # Within the window, from within it to beyond it, and beyond it from the start.
    for prompt in (6, 17):
        CASES[f"{name}-{prompt}"] = (name, {**DYNAMIC, "prompt": prompt})
        CASES[f"{name}-{prompt}-static"] = (name, {**STATIC, "prompt": prompt})


def fast_all(tensor: torch.Tensor) -> bool:
    bool(tensor.sum() == tensor.numel())
    return True


masking_utils.fast_all = fast_all


def stops(self: generation_utils.StopCheck, unfinished: torch.Tensor, tokens: torch.Tensor, length: int) -> bool:
    bool(unfinished.max() == 0)
    return length >= LONGEST[0]


LONGEST = [0]
generation_utils.StopCheck.__call__ = stops


def generate(model: torch.nn.Module, call: dict) -> None:
    LONGEST[0] = call["prompt"] + call["tokens"]
    ids = torch.zeros(call["batch"], call["prompt"], dtype=torch.long, device="cuda")
    mask = torch.ones(call["batch"], call["prompt"], dtype=torch.long, device="cuda")
    how = {name: call[name] for name in ("temperature", "top_k", "top_p") if name in call}
    if call.get("cache") == "static":
        how["cache_implementation"] = "static"
    model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=call["tokens"],
        do_sample=call.get("sample", False),
        disable_compile=True,
        **how,
    )


def where(event: dict) -> str:
    frames = [
        frame
        for frame in event.get("frames", [])
        if "transformers" in frame["filename"] and "/utils/generic" not in frame["filename"]
    ]
    return " < ".join(f"{pathlib.Path(f['filename']).name}:{f['line']} {f['name']}" for f in frames[:3])


def record(name: str, shows: bool) -> str:
    """The recording of a case; with `shows` it is printed, and nothing is given back."""
    source, call = CASES[name]
    described = json.loads((GOLDEN / "huggingface" / f"{source}.json").read_text())
    model_class = getattr(transformers, described["hf"]["architectures"][0])
    config = model_class.config_class.from_dict(described["hf"])
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(described.get("param_dtype"), torch.float32)
    torch.set_default_dtype(dtype)
    model = model_class(config).cuda().eval()
    torch.set_default_dtype(torch.float32)
    generate(model, call)
    torch.cuda.memory._record_memory_history(max_entries=1 << 20, context="alloc", stacks="python")
    generate(model, call)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": "+", "free_completed": "-"}
    events = [event for event in events if event["action"] in signs]
    if shows:
        places = {}
        for event in events:
            if event["action"] == "alloc":
                places[event["addr"]] = where(event)
            print(f"{signs[event['action']]}{event['size']}  {places.get(event['addr'], '')}")
        return ""
    lines = [f"# {name} {json.dumps({'model': source, **call})}"]
    lines += [f"{signs[event['action']]}{event['size']}" for event in events]
    return "\n".join(lines) + "\n"


def recorded_before() -> dict[str, str]:
    if not SEQUENCES.exists():
        return {}
    parts = gzip.decompress(SEQUENCES.read_bytes()).decode().split("# ")[1:]
    return {part.split(" ", 1)[0]: f"# {part}" for part in parts}


def main() -> None:
    arguments = sys.argv[1:]
    shows = "--where" in arguments
    names = [name for name in arguments if not name.startswith("--")]
    recorded = recorded_before()
    for name in names or CASES:
        try:
            recorded[name] = record(name, shows)
        except Exception as error:  # one class that cannot be recorded leaves the others
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
    if not shows:
        text = "".join(recorded[name] for name in sorted(recorded))
        SEQUENCES.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
