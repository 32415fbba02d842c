"""What is done with one model of the list: it is exported, or trained while the allocator's peaks are read.

A recording wants PyTorch 2.11 on a GPU, or on a virtual one of batchfit's.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import time
import traceback
import warnings
from typing import TextIO

from zoo import Model

# Nothing is downloaded: a model that wants weights from somewhere fails.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")

ON_VIRTUAL_GPU = "BATCHFIT_VGPU" in os.environ

AUTOCAST = {"amp_bf16": "bfloat16", "amp_fp16": "float16"}


def version(library: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def failure(error: BaseException) -> dict[str, str]:
    """What went wrong and where, short enough for a table."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return {"error": f"{type(error).__name__}: {error}"[:4000], "where": where}


def export(model: Model, path: str) -> dict:
    """Exports a model to `path`; tells how long it took and how large it is."""
    told = {"model": model.name, "area": model.area, "library": model.library, "version": version(model.library)}
    if told["version"] is None:
        return {**told, "missing": True, "error": f"{model.library} is not installed"}
    from batchfit import ExportError
    from batchfit.export.batches import parse_batch
    from batchfit.export.exporting import export_built

    more = {} if model.max_batch is None else {"max_batch": model.max_batch}
    begin = time.monotonic()
    try:
        exported = export_built(model.build, parse_batch(model.batch), model.loss, **more)
    except ExportError as error:
        return {**told, "missing": isinstance(error.__cause__, ModuleNotFoundError), "error": str(error)}
    except Exception as error:  # Whatever a library raises is the result.
        return {**told, **failure(error)}
    exported.save(path)
    nodes = exported.document["graph_module"]["graph"]["nodes"]
    return {**told, "seconds": round(time.monotonic() - begin, 1), "nodes": len(nodes), "bytes": os.path.getsize(path)}


def peaks(model: Model, precision: str, batch: int, limit: int | None = None) -> dict:
    """The peaks of three training steps, as a plain training loop takes them; `limit` bytes are all that it may reserve."""
    import torch

    from batchfit.export.batches import parse_batch
    from batchfit.export.losses import with_loss

    if limit is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        # PyTorch takes a fraction and rounds the product down.
        torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total)
    spec = parse_batch(model.batch)
    torch.manual_seed(0)
    built = model.build().train().to("cuda")
    optimizer = torch.optim.AdamW([p for p in built.parameters() if p.requires_grad], lr=1e-5)
    wrapped = with_loss(built, model.loss, spec.tensors)
    autocast = getattr(torch, AUTOCAST.get(precision, "float32"))

    def micro_step() -> None:
        made = {}
        for name, tensor in spec.tensors.items():
            if id(tensor) not in made:
                made[id(tensor)] = tensor_of(spec.shape(name, batch), tensor.dtype, spec.values.get(name))
        tensors = [made[id(tensor)] for tensor in spec.tensors.values()]
        made.clear()
        with torch.autocast("cuda", dtype=autocast, enabled=autocast != torch.float32):
            loss = wrapped(*tensors)
        loss.backward()
        del loss
        tensors.clear()

    allocated, reserved = [], []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        micro_step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        allocated.append(torch.cuda.max_memory_allocated())
        reserved.append(torch.cuda.max_memory_reserved())
    card = torch.cuda.get_device_properties(0)
    return {
        "allocated": max(allocated), "reserved": max(reserved), "steps": allocated,
        "retries": torch.cuda.memory_stats()["num_alloc_retries"], "compute": f"{card.major}.{card.minor}", "virtual": ON_VIRTUAL_GPU,
    }  # fmt: skip


def tensor_of(shape, dtype, value):
    import torch

    if value is not None:
        return torch.full(shape, value, dtype=dtype, device="cuda")
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device="cuda")
    return torch.ones(shape, dtype=dtype, device="cuda") if dtype == torch.bool else torch.zeros(shape, dtype=dtype, device="cuda")


def record(model: Model, rows: list[str], file: TextIO) -> None:
    """Writes the peaks of each row, `PRECISION:BATCH`, each in a process that has used no GPU before."""
    told = {"model": model.name, "torch": version("torch"), "version": version(model.library)}
    for row in rows:
        precision, batch = row.split(":")
        child = os.fork()
        if child == 0:
            begin = time.monotonic()
            try:
                result = peaks(model, precision, int(batch))
            except BaseException as error:  # The next row is run all the same.
                result = failure(error)
                result["error"] = result["error"][:400]
            seconds = round(time.monotonic() - begin, 1)
            told.update(precision=precision, batch=int(batch))
            file.write(json.dumps({**told, **result, "seconds": seconds}) + "\n")
            file.flush()
            os._exit(0)
        os.waitpid(child, 0)
