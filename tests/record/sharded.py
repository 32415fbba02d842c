"""Steps under `fully_shard` of models and settings that nobody recorded on several GPUs: graphs, and what the allocator was asked for.

    PYTHONPATH=clients/python/src batchfit run --on a100-80g --steps 0 -- python tests/record/sharded.py tests/golden/steps/sharded [NAME...]

Wants PyTorch 2.11 on an A100 or a virtual one. NAMEs, which may be patterns, record only those models. The process group is
PyTorch's `fake` one, which pretends to send, so one process stands for a rank of any number. What is allocated does not depend on
values. On two real GPUs the same script of PyTorch's gave the same events (tests/record/parallel.py). cuDNN is off.
"""

from __future__ import annotations

import fnmatch
import gzip
import json
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from steps import in_a_process, tensor_of, without_packed_sequences, without_traces

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
MIXED = {"param_dtype": "bf16", "reduce_dtype": "fp32"}


class Layers(nn.Module):
    def __init__(self, frozen: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(3)])
        self.head = nn.Linear(256, 10)
        for layer in self.layers[:frozen]:
            layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


class Unused(Layers):
    """A unit that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(64, 64)


class Odd(nn.Module):
    """Parameters that ranks cannot share evenly, some of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(37, 131), nn.Linear(131, 57), nn.Linear(57, 1)])
        self.head = nn.Linear(1, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Twice(nn.Module):
    """A unit that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(64, 128), nn.Linear(128, 10)
        self.shared, self.other = Block(128), Block(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared(self.embed(x))
        return self.head(self.shared(self.other(x)))


class Nested(nn.Module):
    """Units inside of units."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(64, 128), nn.Linear(128, 10)
        self.stages = nn.ModuleList([nn.Sequential(Block(128), Block(128)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.a(x) + y, self.b(y)


class Pairs(nn.Module):
    """Units with two inputs and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(32, 64), nn.Linear(64, 10)
        self.units = nn.ModuleList([Two(), Two()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        y = torch.relu(x)
        for unit in self.units:
            x, y = unit(x, y)
        return self.head(x * y)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=307, n_positions=32, use_cache=False)
    return GPT2LMHeadModel(config)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=311,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        vocab_size=301,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def rows_of(width: int) -> list[str]:
    return [f"x=f32[B,{width}]", "y=i64[B]"]


WORDS = ["input_ids=i64[B,32]", "labels=i64[B,32]"]
# How to build a model, its batch, its loss and its units.
MODELS = {
    "layers": (Layers, rows_of(256), "cross_entropy", ["layers.*"]),
    "frozen": (lambda: Layers(frozen=2), rows_of(256), "cross_entropy", ["layers.*"]),
    "unused": (Unused, rows_of(256), "cross_entropy", ["layers.*", "never"]),
    "odd": (Odd, rows_of(37), "cross_entropy", ["layers.*"]),
    "twice": (Twice, rows_of(64), "cross_entropy", ["shared", "other"]),
    "nested": (Nested, rows_of(64), "cross_entropy", ["stages.*", "stages.*.*"]),
    "pairs": (Pairs, rows_of(32), "cross_entropy", ["units.*"]),
    "gpt2": (gpt2, WORDS, "model", ["transformer.h.*"]),
    "llama": (llama, WORDS, "model", ["model.layers.*"]),
    "t5": (t5, ["input_ids=i64[B,24]", "labels=i64[B,16]"], "model", ["encoder.block.*", "decoder.block.*"]),
}
# A model, and how it is trained: `precision` is what parameters are stored in.
ROWS = [
    ("layers", {"world": 8}),
    ("layers", {"world": 64, "reshard": False}),
    ("layers", {"world": 2, "mp": MIXED, "accum": 3, "no_sync": True}),
    ("layers", {"world": 2, "mp": MIXED, "accum": 2, "clip": 1.0}),
    ("layers", {"world": 1}),
    ("layers", {"world": 1, "mp": MIXED}),
    ("frozen", {"world": 2, "mp": MIXED}),
    ("unused", {"world": 2}),
    ("unused", {"world": 2, "units": []}),
    ("odd", {"world": 3, "mp": MIXED}),
    ("odd", {"world": 8, "optimizer": "sgd_momentum"}),
    ("twice", {"world": 2}),
    ("nested", {"world": 2, "mp": MIXED}),
    ("pairs", {"world": 2, "mp": MIXED}),
    ("gpt2", {"world": 2, "mp": MIXED}),
    ("llama", {"world": 2, "mp": MIXED}),
    ("llama", {"world": 8, "precision": "bf16"}),
    ("llama", {"world": 4, "mp": MIXED, "accum": 2, "no_sync": True, "optimizer": "adamw:fused"}),
    ("t5", {"world": 2}),
]
BATCH = 4


def half_of(row: dict) -> torch.dtype | None:
    """What operations compute in, where it is not float32."""
    computed = row.get("mp", {}).get("param_dtype") or row.get("precision", "fp32")
    return torch.bfloat16 if computed == "bf16" else None


def exported(name: str, row: dict) -> dict:
    from batchfit.export.batches import parse_batch
    from batchfit.export.exporting import export_built

    build, batch, loss, _ = MODELS[name]
    return without_traces(export_built(build, parse_batch(batch), loss, half_of(row)).document)


def sharded(model: nn.Module, row: dict, units: list[str]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    named = {"mesh": init_device_mesh("cuda", (row["world"],))}
    if "reshard" in row:
        named["reshard_after_forward"] = row["reshard"]
    if "mp" in row:
        named["mp_policy"] = MixedPrecisionPolicy(**{key: TYPES[name] for key, name in row["mp"].items()})
    paths = [path for path, _ in model.named_modules()]
    chosen = [path for path in paths if any(fnmatch.fnmatchcase(path, unit) and path.count(".") == unit.count(".") for unit in units)]
    # Inner units first.
    for path in sorted(chosen, key=lambda path: -path.count(".")):
        fully_shard(model.get_submodule(path), **named)
    fully_shard(model, **named)
    return model


def recorded(name: str, row: dict) -> list[str]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from batchfit.export.batches import parse_batch
    from batchfit.export.losses import with_loss

    build, batch, loss, units = MODELS[name]
    torch.backends.cudnn.enabled = False
    torch.manual_seed(0)
    stored = TYPES[row.get("precision", "fp32")]
    model = build().to(stored)
    model.train()
    without_packed_sequences()
    card = torch.cuda.get_device_properties(0)
    if (card.major, card.minor, card.multi_processor_count) != (8, 0, 108):
        sys.exit(f"{name} is recorded on an A100, and this is {card.name}")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=row["world"])
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
    model = sharded(model, row, row.get("units", units))
    spec = parse_batch(batch)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind, _, implementation = row.get("optimizer", "adamw").partition(":")
    if kind == "adamw":
        optimizer = torch.optim.AdamW(trained, lr=1e-5, **({"fused": True} if implementation else {}))
    else:
        optimizer = torch.optim.SGD(trained, lr=1e-4, momentum=0.9)
    wrapped = with_loss(model, loss, spec.tensors)
    accumulation = row.get("accum", 1)

    def micro_step(is_last: bool) -> None:
        made: dict[int, torch.Tensor] = {}
        given = []
        for label, tensor in spec.tensors.items():
            dtype = stored if tensor.is_floating_point() else tensor.dtype
            if id(tensor) not in made:
                made[id(tensor)] = tensor_of(label, spec.shape(label, BATCH), dtype)
            given.append(made[id(tensor)])
        made.clear()
        if row.get("no_sync"):
            model.set_requires_gradient_sync(is_last)
        undivided = wrapped(*given)
        scaled = undivided / accumulation
        del undivided
        scaled.backward()
        while given:
            given.pop()

    for _ in range(3):
        for index in range(accumulation):
            micro_step(index == accumulation - 1)
        if "clip" in row:
            torch.nn.utils.clip_grad_norm_(trained, row["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    sign = {"alloc": "+", "free_requested": "-"}
    # Shards are gathered, on stream 1, before any gradient is reduced; one rank gathers nothing.
    streams = list(dict.fromkeys(event["stream"] for event in events if event["stream"]))
    first = 1 if row["world"] > 1 else 2
    found = []
    for event in events:
        if event["action"] in sign:
            at = f"@{streams.index(event['stream']) + first}" if event["stream"] else ""
            found.append(f"{sign[event['action']]}{event['size']}{at}")
    return found


def main() -> int:
    out, *names = sys.argv[1:]
    graphs: dict[str, object] = {}
    sequences, failed = [], []
    for name, row in ROWS:
        if names and not any(fnmatch.fnmatchcase(name, pattern) for pattern in names):
            continue
        graph = name + ("-bf16" if half_of(row) else "")
        if graph not in graphs:
            graphs[graph] = in_a_process(lambda name=name, row=row: exported(name, row))
        sequence = in_a_process(lambda name=name, row=row: recorded(name, row)) if graphs[graph] else None
        header = {
            "case": f"{name} {json.dumps(row)}",
            "model": graph,
            "precision": row.get("precision", "fp32"),
            "optimizer": row.get("optimizer", "adamw"),
            "accum": row.get("accum", 1),
            "parallel": {"kind": "fsdp2", "units": MODELS[name][3], **row},
            "world": row["world"],
            "batch": BATCH,
            "card": [8, 0, 108],
        }
        if sequence is None:
            failed.append(header["case"])
            continue
        sequences += ["# " + json.dumps(header), *sequence]
    os.makedirs(out, exist_ok=True)
    files = {"graphs.json.gz": json.dumps(graphs, separators=(",", ":")), "sequences.txt.gz": "\n".join(sequences) + "\n"}
    for file_name, text in files.items():
        with open(os.path.join(out, file_name), "wb") as file:
            file.write(gzip.compress(text.encode(), mtime=0))
    print(f"{len(graphs)} graphs, {sum(line[0] == '#' for line in sequences)} sequences", *failed, sep="\nfailed: ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
