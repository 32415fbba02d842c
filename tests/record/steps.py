"""Small models whose training steps PyTorch ran: their graphs and what the allocator was asked for.

    export PYTHONPATH=clients/python/src
    batchfit run --on h200 --steps 0 -- python tests/record/steps.py tests/golden/steps
    batchfit run --on a100-80g --steps 0 -- python tests/record/steps.py tests/golden/steps/indexing --of steps_indexing

`--of` names the file of models. NAMEs after the folder, which may be patterns, record only those models. Each model is exported by batchfit's own exporter (clients/python, on the Python path) and then trained for three steps of the
canonical loop, each in a process of its own, with the allocator's history on. Wants PyTorch 2.11 on a GPU or a virtual one, and records the models of its
compute capability (`compute`); what the folder has of others stays. What is allocated does not depend on values here. cuDNN is off.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch

from steps_models import Model

AUTOCAST = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_of(row: "Row") -> torch.dtype:
    """What parameters and floating-point inputs are stored in."""
    stored = row.stored or ("fp32" if row.precision not in HALF else row.precision)
    return HALF.get(stored, torch.float32)


# The models to record, by their names.
MODELS: dict[str, Model] = {}


@dataclass(frozen=True)
class Row:
    """One recording: a model, how it is trained, and at which batch."""

    model: str
    precision: str
    batch: int
    stored: str
    optimizer: str
    accumulation: int = 1

    @property
    def graph(self) -> str:
        half = {torch.bfloat16: "-bf16", torch.float16: "-fp16"}
        return self.model + half.get(dtype_of(self), "")

    def header(self) -> str:
        major, minor = MODELS[self.model].compute
        return f"# {self.graph} {self.precision} {self.optimizer} {self.accumulation} {self.batch} {major}.{minor}"


def exported(row: Row) -> dict:
    from batchfit.export.batches import parse_batch
    from batchfit.export.exporting import export_built

    model = MODELS[row.model]
    if model.request is not None:
        half = {torch.bfloat16: {"param_dtype": "bf16"}, torch.float16: {"param_dtype": "fp16"}}
        return {**model.request, **half.get(dtype_of(row), {})}
    dtype = dtype_of(row)
    given = None if dtype == torch.float32 else dtype
    document = export_built(model.build, parse_batch(model.batch), model.loss, given).document
    return without_traces(document)


def without_traces(document: dict) -> dict:
    """Stack traces and source lines are long and not read."""
    for node in document["graph_module"]["graph"]["nodes"]:
        node.get("metadata", {}).pop("stack_trace", None)
        node.get("metadata", {}).pop("torch_fn", None)
    return document


def decayed(row: Row, parameters: list) -> torch.optim.Optimizer:
    """`sgd_momentum_decay_for_loop` and the like."""
    name, _, implementation = row.optimizer.partition("_decay")
    how = {"": {}, "_nesterov": {"nesterov": True}, "_fused": {"fused": True}, "_for_loop": {"foreach": False}}[implementation]
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name.removesuffix("_momentum")]
    momentum = {"momentum": 0.9} if name == "sgd_momentum" else {}
    return made(parameters, lr=1e-5, weight_decay=0.1, **momentum, **how)


def optimizer_of(row: Row, parameters: list) -> torch.optim.Optimizer:
    if "_decay" in row.optimizer:
        return decayed(row, parameters)
    if row.optimizer in ("sgd", "sgd_smoothed"):
        return torch.optim.SGD(parameters, lr=1e-4)
    if row.optimizer == "adamw_fused":
        return torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    if row.optimizer in ("adafactor", "adafactor_foreach"):
        return torch.optim.Adafactor(parameters, lr=1e-5, foreach=row.optimizer == "adafactor_foreach")
    if row.optimizer == "adafactor_transformers":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=1e-5, scale_parameter=False, relative_step=False)
    if row.optimizer in ("adamw_8bit", "paged_adamw_8bit"):
        from bitsandbytes import optim

        return (optim.PagedAdamW8bit if row.optimizer == "paged_adamw_8bit" else optim.AdamW8bit)(parameters, lr=1e-5)
    if row.optimizer == "adamw_8bit_torchao":
        from torchao.optim import AdamW8bit

        return AdamW8bit(parameters, lr=1e-5)
    return torch.optim.AdamW(parameters, lr=1e-5)


def compiled_before(row: Row, parameters: list) -> None:
    """Has what the optimizer compiles compiled, on parameters alike: what compiling takes depends on caches on disk."""
    if row.optimizer != "adamw_8bit_torchao":
        return
    alike = [torch.nn.Parameter(torch.zeros_like(parameter, device="cuda")) for parameter in parameters]
    for parameter in alike:
        parameter.grad = torch.zeros_like(parameter)
    optimizer_of(row, alike).step()


def tensor_of(name: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device="cuda")
    return torch.zeros(shape, dtype=dtype, device="cuda")


def without_packed_sequences() -> None:
    """Takes the branch of Hugging Face's check for packed sequences that real position ids take.

    The check runs; a virtual GPU computes few values, so what it finds is thrown away.
    """
    if "transformers" not in sys.modules:
        return
    from transformers import masking_utils

    find = masking_utils.find_packed_sequence_indices

    def found_none(*arguments, **named) -> None:
        find(*arguments, **named)

    masking_utils.find_packed_sequence_indices = found_none


def recorded(row: Row) -> list[str]:
    """The allocations and frees of construction and three steps."""
    from batchfit.export.batches import parse_batch
    from batchfit.export.losses import with_loss

    model = MODELS[row.model]
    torch.backends.cudnn.enabled = False
    spec = parse_batch(model.batch)
    dtype, autocast = dtype_of(row), AUTOCAST.get(row.precision)
    torch.manual_seed(0)
    # Complex parameters stay what they are: a cast to float32 would leave their real parts.
    built = model.build() if dtype == torch.float32 else model.build().to(dtype)
    built.train()
    without_packed_sequences()
    torch.cuda.init()
    compiled_before(row, [parameter for parameter in built.parameters() if parameter.requires_grad])
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
    built = built.to("cuda")
    trained = [parameter for parameter in built.parameters() if parameter.requires_grad]
    optimizer = optimizer_of(row, trained)
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0) if row.precision == "amp_fp16" else None
    smoothed = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    wrapped = with_loss(built, smoothed if row.optimizer == "sgd_smoothed" else model.loss, spec.tensors)

    def micro_step() -> None:
        made: dict[int, torch.Tensor] = {}
        batch = []
        for name, tensor in spec.tensors.items():
            shape = spec.shape(name, row.batch)
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            if id(tensor) not in made:
                made[id(tensor)] = tensor_of(name, shape, kind)
            batch.append(made[id(tensor)])
        made.clear()
        with torch.autocast("cuda", dtype=autocast or torch.float16, enabled=autocast is not None):
            undivided = wrapped(*batch)
            loss = undivided / row.accumulation
        # A loop that divides in place of a name of its own, unless the number keeps more memory than it shows: see
        # Note [One micro-step] of the compiler.
        if undivided.untyped_storage().nbytes() == undivided.nbytes:
            del undivided
        (scaler.scale(loss) if scaler else loss).backward()
        while batch:
            batch.pop()

    for _ in range(3):
        for _ in range(row.accumulation):
            micro_step()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    sign = {"alloc": "+", "free_requested": "-"}
    return [f"{sign[event['action']]}{event['size']}" for event in events if event["action"] in sign]


def in_a_process(job: Callable[[], object]) -> object:
    """What `job` gives, computed in a process that nothing else has used."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                result = job()
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(result, file)
                status = 0
            finally:
                import traceback

                if status:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(status)
        os.waitpid(child, 0)
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def rows() -> list[Row]:
    found = []
    for name, model in MODELS.items():
        for precision, batch, stored, optimizer, accumulation in model.rows():
            found.append(Row(name, precision, batch, stored, optimizer, accumulation))
    return found


def recorded_before(out: str) -> dict[str, list[str]]:
    """The sequences of a folder by their headers."""
    found: dict[str, list[str]] = {}
    path = os.path.join(out, "sequences.txt.gz")
    if os.path.exists(path):
        with gzip.open(path, "rt") as file:
            for line in file.read().splitlines():
                sequence = found.setdefault(line, []) if line.startswith("#") else sequence
                sequence += [] if line.startswith("#") else [line]
    return found


def main() -> int:
    # Releases differ in what they allocate: 2.15 gives cuBLAS workspaces back after each product, 2.11 keeps them.
    if not torch.__version__.startswith("2.11."):
        sys.exit(f"the recordings are of PyTorch 2.11, and this is {torch.__version__}")
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out")
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--of", default="steps_models")
    arguments.add_argument("--graphs", help="graphs.json.gz with the graphs, which are then not exported")
    given = arguments.parse_args()
    out, names = given.out, given.names
    MODELS.update(importlib.import_module(given.of).MODELS)
    # In a process of its own: those that are forked from this one start CUDA.
    card = tuple(in_a_process(torch.cuda.get_device_capability) or (0, 0))
    before, sequences, failed = recorded_before(out), [], []
    kept, graphs = given.graphs or os.path.join(out, "graphs.json.gz"), {}
    if os.path.exists(kept):
        with gzip.open(kept, "rt") as file:
            graphs = json.load(file)
    fresh = set(graphs) if given.graphs else set()
    for row in rows():
        if MODELS[row.model].compute != card or names and not any(fnmatch.fnmatchcase(row.model, name) for name in names):
            sequences += [row.header(), *before[row.header()]] if row.header() in before else []
            continue
        if row.graph not in fresh:
            fresh.add(row.graph)
            graphs[row.graph] = in_a_process(lambda row=row: exported(row))
        sequence = in_a_process(lambda row=row: recorded(row)) if graphs[row.graph] else None
        if sequence is None:
            failed.append(row.header())
            continue
        sequences += [row.header(), *sequence]
    os.makedirs(out, exist_ok=True)
    graphs = {name: graph for name, graph in graphs.items() if graph}
    files = {"graphs.json.gz": json.dumps(graphs, separators=(",", ":")), "sequences.txt.gz": "\n".join(sequences) + "\n"}
    for name, text in files.items():
        with open(os.path.join(out, name), "wb") as file:
            file.write(gzip.compress(text.encode(), mtime=0))
    print(f"{len(graphs)} graphs, {sum(line[0] == '#' for line in sequences)} sequences", *failed, sep="\nfailed: ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
