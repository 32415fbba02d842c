"""Operators that consist of other operators.

Tracing keeps an operator that PyTorch composes of others (`CompositeImplicitAutograd`) as one node. Those that batchfit has
a rule for stay so; every other is traced as what it consists of, which is what runs on a GPU, with the lifetimes that its
own C++ code gives to what it makes in between.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import torch
import torch.fx.experimental.proxy_tensor as tracing

from .replacing import replaced
from .decompositions import written_out

_COMPOSITE = "CompositeImplicitAutograd"


@functools.cache
def known() -> frozenset[str]:
    """The operators that batchfit reads, such as `aten.relu.default`: what `batchfit operators` prints."""
    text = resources.files(__package__).joinpath("operators.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


def _given(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """An argument of a call by its name in the operator's schema."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name, argument.default_value)
    return None


def _short_time(given: Callable[[str], Any]) -> bool:
    return bool(given("normalized")) or given("win_length") not in (None, given("n_fft"))


# Operators of which batchfit reads only some calls, each with a test for the others.
_ONLY_SOME: dict[str, Callable[[Callable[[str], Any]], bool]] = {
    "aten.pad.default": lambda given: given("mode") == "circular",
    "aten.instance_norm.default": lambda given: given("running_mean") is not None or not given("use_input_stats"),
    "aten.linalg_matrix_norm.default": lambda given: True,
    "aten.linalg_matrix_norm.str_ord": lambda given: given("ord") != "fro",
    "aten.linalg_norm.default": lambda given: (given("self").dim() != 1 and given("dim") is None) or len(given("dim") or []) > 1,
    "aten.linalg_norm.ord_str": lambda given: given("ord") != "fro",
    "aten.cdist.default": lambda given: given("compute_mode") not in (None, 0),
    "aten.diag.default": lambda given: given("self").dim() == 2,
    "aten.stft.default": lambda given: _short_time(given),
    "aten.stft.center": lambda given: bool(given("center")) or _short_time(given),
}


def _is_split_up(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if func.namespace != "aten" or _writes_into_argument(func):
        return False
    name = str(func)
    if name in known():
        other = _ONLY_SOME.get(name)
        if other is None or not other(lambda argument: _given(func, args, kwargs, argument)):
            return False
    registered = func.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(registered, _COMPOSITE)


def _writes_into_argument(func: torch._ops.OpOverload) -> bool:
    return any(argument.is_out for argument in func._schema.arguments)


@contextlib.contextmanager
def splitting_up() -> Iterator[None]:
    """Traces what composite operators consist of, where batchfit has no rule for the whole."""
    call = tracing.proxy_call

    def call_parts(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> object:
        instead = written_out(func)
        if instead is not None:
            with mode:
                return instead(*args, **kwargs)
        if _is_split_up(func, args, kwargs):
            with mode:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return call(mode, func, pre_dispatch, args, kwargs)

    with replaced(tracing, "proxy_call", call_parts):
        yield
