"""`batchfit.fit`: the largest batch of a model on a card, without a GPU."""

from __future__ import annotations

import html
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from .binary import find

_GIB = 1 << 30
# Exit codes of the command that come with an answer.
_FITS, _NOTHING_FITS = 0, 3


class FitError(Exception):
    """The question could not be answered; the text says why."""


class Answer:
    """What the command answers: prints like it, and shows itself as a table in a notebook.

    `micro_batch` is the samples at once on each GPU, 0 where nothing fits; `accumulation_steps` the micro-batches of an optimizer
    step; `document` the whole answer, as `batchfit fit --json` writes it.
    """

    def __init__(self, document: dict[str, Any], text: str) -> None:
        self.document = document
        self._text = text
        best = document["result"]["recommendation"]
        self.micro_batch: int = best["micro_batch"]
        self.accumulation_steps: int = best["accumulation_steps"]
        self.global_batch: int = best["global_batch"]
        self.max_batch: int = best["max_batch"]
        self.peak_reserved_bytes: int = best["peak_reserved_bytes"]
        self.limit_bytes: int = best["limit_bytes"]
        self.samples_per_second: Optional[float] = best.get("samples_per_second")

    @property
    def fits(self) -> bool:
        return self.micro_batch > 0

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<batchfit.Answer: micro-batch {self.micro_batch} x {self.accumulation_steps}>"

    def _repr_html_(self) -> str:
        """The text, and under it what memory is for at the peak, as bars against the limit."""
        why = self.document["result"]["recommendation"].get("why") or {}
        parts = [(part["category"].replace("_", " "), part["bytes"]) for part in why.get("at_peak", []) if part["bytes"] > 0]
        total = max(self.limit_bytes, sum(size for _, size in parts), 1)
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(name)}</td><td>{size / _GIB:.2f} GiB</td><td style='width:20em;text-align:left'>"
            f"<div style='background:#4c78a8;height:.8em;width:{100 * size / total:.1f}%'></div></td></tr>"
            for name, size in [*parts, ("limit", self.limit_bytes)]
        )
        return f"<pre>{html.escape(self._text)}</pre><table>{rows}</table>"


def fit(
    model: Any,
    batch: Any = None,
    loss: Any = None,
    *,
    on: Optional[str] = None,
    amp: Optional[str] = None,
    precision: Optional[str] = None,
    target: Optional[int] = None,
    dtype: Any = None,
    **flags: Any,
) -> Answer:
    """The largest batch of `model` that fits the card `on`, such as `"rtx4090"` or `"8xh100"`; without one, a GPU of this machine.

    `model` is a name (`"resnet50"`, `"Qwen/Qwen2.5-7B"`), a file that the command reads, a module with an example `batch` and its `loss`
    as `batchfit.export` takes them, or what that gives. `amp` is `"bf16"` or `"fp16"`, `target` the samples of an optimizer step. Other
    flags of `batchfit fit` go by their names: `seq_len=2048, checkpoint="per_block", lora=16`.
    """
    given = {"on": on, "amp": amp, "precision": precision, "target": target, **flags}
    of_module = {"batch": batch, "loss": loss, "dtype": dtype}
    if isinstance(model, (str, Path)):
        return _asked(str(model), {**given, **of_module})
    if isinstance(model, Mapping):
        raise FitError("a configuration is a file that the command reads: write it to config.json and give its path")
    # PyTorch takes seconds to import.
    from .export.exporting import Exported, export

    told = [name for name, value in of_module.items() if value is not None]
    if told and isinstance(model, Exported):
        raise FitError(f"what is exported has its own {', '.join(told)}: leave that out")
    exported = model if isinstance(model, Exported) else export(model, batch, loss, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.json.gz"
        exported.save(file)
        name = "model" if isinstance(model, Exported) else type(model).__name__
        return _asked(str(file), given, name)


def _asked(what: str, given: Mapping[str, Any], name: Optional[str] = None) -> Answer:
    arguments = [str(find()), "fit"]
    for flag, value in given.items():
        if value is None or value is False:
            continue
        arguments.append(f"--{flag.replace('_', '-')}")
        if value is not True:
            arguments.append(_written(value))
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "document.json"
        text = _run([*arguments, "--document", str(document), "--", what])
        if not document.exists():
            if given.get("stored"):
                raise FitError("stored answers are asked of a service, or by `batchfit fit --stored`")
            # Several cards, or the common ones where there is no GPU.
            raise FitError('one card is asked about at a time: on="rtx4090"')
        found = document.read_text(encoding="utf-8")
    if name is not None:
        # A graph has no name of its own.
        text = text.replace(text.partition(" on ")[0], name, 1)
    return Answer(json.loads(found), text)


def _written(value: Any) -> str:
    """As a flag takes it: several values with commas between them, what has members as JSON."""
    if isinstance(value, (list, tuple)) and not any(isinstance(one, (dict, list, tuple)) for one in value):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, (dict, list, tuple)) else str(value)


def _run(arguments: list[str]) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode not in (_FITS, _NOTHING_FITS):
        raise FitError(done.stderr.strip().removeprefix("error: "))
    return done.stdout
