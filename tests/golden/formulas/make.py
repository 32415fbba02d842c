"""Makes the models of this folder and what PyTorch computes for them: losses and gradients of one step, on a CPU.

    PYTHONPATH=clients/python/src python tests/golden/formulas/make.py [NAME...] [--out FOLDER]

Each is an exported graph (`NAME.json.gz`) and a file of tensors (`NAME.safetensors`): the values of parameters, buffers and
inputs, and what is expected: `expected:loss`, `expected:grad:PATH`. Wants PyTorch 2.11 and safetensors. Models are in the
files `*_models.py` beside this one, each a function that `case` lists.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cases import CASES, Case  # noqa: E402


def make(case: Case, folder: Path) -> None:
    from batchfit.export.exporting import export
    from batchfit.export.losses import with_loss

    torch.manual_seed(0)
    model, inputs = case.build()
    model = model.to(case.dtype).train()
    inputs = {name: t.to(case.dtype) if t.is_floating_point() else t for name, t in inputs.items()}
    # Before the forward pass moves buffers.
    held = {**dict(model.named_parameters()), **dict(model.named_buffers()), **inputs}
    values = {name: tensor.detach().clone().contiguous() for name, tensor in held.items()}
    export(model, inputs, case.loss).save(str(folder / f"{case.name}.json.gz"))
    loss = with_loss(model, case.loss, list(inputs))(*inputs.values())
    loss.backward()
    values["expected:loss"] = loss.detach().reshape(1)
    values["expected:batch"] = torch.zeros(next(iter(inputs.values())).shape[0])
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            values[f"expected:grad:{name}"] = parameter.grad.contiguous()
    save_file(values, str(folder / f"{case.name}.safetensors"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    for file in sorted(HERE.glob("*_models.py")):
        importlib.import_module(file.stem)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for case in CASES.values():
        if not options.names or case.name in options.names:
            try:
                make(case, options.out)
            except Exception as error:  # One model's trouble must not hide the others'.
                print(f"{case.name}: {type(error).__name__}: {error}")
                failed += 1
    sys.exit(failed > 0)


main()
