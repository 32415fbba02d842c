"""Contraction paths of `einsum` that do not depend on the batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.backends import opt_einsum


def _as_traced(length: Any) -> int:
    """A length as it is for the example batch; one that nobody knows counts as one."""
    if isinstance(length, torch.SymInt):
        hint = length.node.hint
        return 1 if hint is None else int(hint)
    return int(length)


@contextlib.contextmanager
def constant_paths() -> Iterator[None]:
    """Lets `torch.einsum` of three operands and more choose its path by the lengths of the example batch.

    `opt_einsum` compares products of lengths, which tracing would take for the decision that the batch is one of those
    for which they compare so: the export would be of one batch size.
    """
    if not opt_einsum.is_available():
        yield
        return
    module: Any = opt_einsum.get_opt_einsum()
    original = module.contract_path

    def contract_path(equation: str, *operands: torch.Tensor, **options: Any) -> Any:
        shapes = [tuple(_as_traced(length) for length in operand.shape) for operand in operands]
        return original(equation, *shapes, shapes=True, **options)

    module.contract_path = contract_path
    try:
        yield
    finally:
        module.contract_path = original
