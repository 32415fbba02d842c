"""Makes tracing take the decisions that eager training takes.

Libraries ask whether they are being traced and then take another path: Hugging Face's mask helpers build masks that
eager training never has. Here the answer is no, and what can be known of the values they ask for is answered.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Optional

import torch
import torch.export._trace
import torch.fx.experimental.proxy_tensor as tracing

from .lifetimes import Lifetimes
from .uniform import UniformValues


@dataclass
class EagerOnly:
    """What eager training does and a traced graph does not show."""

    # Hugging Face's decoders look for packed sequences: the number of the value made last before each check, and that
    # of the position ids, of shape [batch, tokens], that are looked at.
    packed_checks: list[tuple[int, int]] = field(default_factory=list)
    # Regions that switch autocast off, which leaves no mark in a graph that is traced without: the number of the value made
    # last before each, and of the last one made in it.
    without_autocast: list[tuple[int, int]] = field(default_factory=list)


@contextlib.contextmanager
def eager_decisions(lifetimes: Lifetimes) -> Iterator[EagerOnly]:
    """Inside, code that is traced decides as it does in eager training."""
    found = EagerOnly()
    with contextlib.ExitStack() as stack:
        # `torch.compiler.is_compiling()` and `is_exporting()` follow this context.
        stack.enter_context(replaced(torch.export._trace, "_compiling_state_context", contextlib.nullcontext))
        stack.enter_context(_known_values())
        stack.enter_context(_grouped_products())
        _patch_transformers(stack, lifetimes, found)
        yield found


@contextlib.contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Gives an attribute another value inside."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _known_values() -> Iterator[None]:
    values, call = UniformValues(), tracing.proxy_call

    def call_and_follow(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> object:
        known = values.read(func, args)
        if known is not None:
            return known
        result = call(mode, func, pre_dispatch, args, kwargs)
        values.follow(func, args, kwargs, result)
        return result

    with replaced(tracing, "proxy_call", call_and_follow):
        yield


@contextlib.contextmanager
def _grouped_products() -> Iterator[None]:
    """Lets products of groups of matrices (mixtures of experts) have any dtype, as they may on a GPU: PyTorch's rule for
    tensors without data knows bfloat16 only."""
    rules = torch._meta_registrations
    known = getattr(rules, "_meta_grouped_mm_common", None)
    if known is None:
        yield
        return

    def any_dtype(mat_a: torch.Tensor, mat_b: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if mat_a.dtype != mat_b.dtype or not mat_a.is_floating_point():
            return known(mat_a, mat_b, *args, **kwargs)
        half = torch.bfloat16
        return known(mat_a.to(half), mat_b.to(half), *args, **kwargs).to(mat_a.dtype)

    with replaced(rules, "_meta_grouped_mm_common", any_dtype):
        yield


def _patch_transformers(stack: contextlib.ExitStack, lifetimes: Lifetimes, found: EagerOnly) -> None:
    helpers = _imported("transformers.utils.import_utils")
    if helpers is not None and hasattr(helpers, "is_fake_tensor"):
        stack.enter_context(replaced(helpers, "is_fake_tensor", lambda _: False))

    masks = _imported("transformers.masking_utils")
    if masks is not None and hasattr(masks, "find_packed_sequence_indices"):

        def no_packed_sequences(position_ids: torch.Tensor) -> None:
            """Position ids that a model makes itself count up from 0: one sequence in each row."""
            number = lifetimes.number(position_ids)
            if number is not None:
                found.packed_checks.append((lifetimes.made, number))

        stack.enter_context(replaced(masks, "find_packed_sequence_indices", no_packed_sequences))


    generic = _imported("transformers.utils.generic")
    if generic is not None and hasattr(generic, "maybe_autocast"):
        for module in _modules_with("maybe_autocast", generic.maybe_autocast):
            stack.enter_context(replaced(module, "maybe_autocast", _noting_autocast(lifetimes, found)))

    models = _imported("transformers.modeling_utils")
    if models is not None and hasattr(models.PreTrainedModel, "warn_if_padding_and_no_attention_mask"):
        # It looks for padding among the first and last ids, in a few bytes, and at most writes a warning.
        warning = "warn_if_padding_and_no_attention_mask"
        stack.enter_context(replaced(models.PreTrainedModel, warning, lambda *_, **__: None))


def _noting_autocast(lifetimes: Lifetimes, found: EagerOnly) -> Callable[..., contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def region(device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> Iterator[None]:
        before = lifetimes.made
        yield
        if not enabled and lifetimes.made > before:
            found.without_autocast.append((before, lifetimes.made))

    return region


def _modules_with(name: str, value: object) -> list[ModuleType]:
    """Modules of transformers that have imported this under this name."""
    modules = [module for path, module in sys.modules.items() if path.startswith("transformers.")]
    return [module for module in modules if vars(module).get(name) is value]


def _imported(name: str) -> Optional[ModuleType]:
    return sys.modules.get(name)
