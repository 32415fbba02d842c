"""Records when Python lets go of the values of a forward pass, while the pass is traced.

Tracing runs the model's own Python code on tensors without data, so its variables hold and drop tensors just as they do
on a GPU. Every tensor that an operator gives is watched through a weak reference; when it goes, the last value made
before is noted. Two things would blur that:

- Autograd keeps the Python objects of tensors it saves. Nothing is saved while no parameter requires a gradient: the
  caller switches them off, and writes back into the document which ones do.
- `x.to(dtype)` and the like give `x` itself where there is nothing to do, and there may be something to do in another
  precision. They are made to give an object of their own, so that both names have lifetimes of their own.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.fx
import torch.fx.experimental.proxy_tensor as tracing

# Where a traced node keeps the number of its value. Node metadata survives all that `torch.export` does to a graph.
NUMBER = "batchfit_value"
# Where a node with several results keeps the numbers of those: passes of `torch.export` make the nodes that take them
# out again.
RESULTS = "batchfit_results"


@dataclass(frozen=True)
class Release:
    """Python let go of `values`, numbers of one tensor object's names, right after value `after` was made."""

    after: int
    values: tuple[int, ...]


@dataclass
class _Watched:
    reference: weakref.ref[torch.Tensor]
    numbers: list[int]


@dataclass
class Lifetimes:
    """Values in the order in which they were made, numbered from 1, and what became of them."""

    # Told how many values there are, after each.
    progress: Callable[[int], None] = lambda _: None
    releases: list[Release] = field(default_factory=list)
    made: int = 0
    _watched: dict[int, _Watched] = field(default_factory=dict)

    def watch(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Numbers a value that was just made. A tensor changed in place gets one more name."""
        self.made += 1
        node.meta[NUMBER] = self.made
        if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
            node.args[0].meta.setdefault(RESULTS, {})[node.args[1]] = self.made
        self._name(tensor, self.made)
        self.progress(self.made)

    def number(self, tensor: torch.Tensor) -> Optional[int]:
        """The number of the value that a tensor is; None for a parameter or a tensor of the batch."""
        watched = self._watched.get(id(tensor))
        return watched.numbers[-1] if watched is not None and watched.numbers else None

    def replace(self, tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
        """The name that was last given to `tensor` belongs to `stand_in`."""
        watched = self._watched.get(id(tensor))
        if watched is not None and self.made in watched.numbers:
            watched.numbers.remove(self.made)
        self._name(stand_in, self.made)

    def _name(self, tensor: torch.Tensor, number: int) -> None:
        key = id(tensor)
        watched = self._watched.get(key)
        if watched is not None and watched.reference() is tensor:
            watched.numbers.append(number)
            return
        numbers = [number]

        def released(reference: weakref.ref[torch.Tensor]) -> None:
            if key in self._watched and self._watched[key].reference is reference:
                del self._watched[key]
            if numbers:
                self.releases.append(Release(self.made, tuple(numbers)))

        self._watched[key] = _Watched(weakref.ref(tensor, released), numbers)


@contextlib.contextmanager
def recording(lifetimes: Lifetimes) -> Iterator[None]:
    """Watches every value that is traced inside."""
    track, call = tracing.track_tensor, tracing.proxy_call

    def track_and_watch(tensor: torch.Tensor, proxy: Any, *, constant: Any, tracer: Any) -> None:
        track(tensor, proxy, constant=constant, tracer=tracer)
        node = getattr(proxy, "node", None)
        if isinstance(node, torch.fx.Node) and node.op == "call_function":
            lifetimes.watch(tensor, node)

    def call_and_separate(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> object:
        if func._schema.is_mutable:
            return call(mode, func, pre_dispatch, args, kwargs)
        known = mode.tracer.tensor_tracker
        operands = [operand for operand in (*args, *kwargs.values()) if isinstance(operand, torch.Tensor)]
        before = [(operand, known.get(operand)) for operand in operands]
        result = call(mode, func, pre_dispatch, args, kwargs)
        for operand, proxy in before:
            if operand is result and proxy is not None:
                # A copy, not a view: a view would keep the tensor it was taken of.
                stand_in = torch.ops.aten.clone.default(result)
                known[stand_in] = known[result]
                known[result] = proxy
                lifetimes.replace(result, stand_in)
                return stand_in
        return result

    collecting = gc.isenabled()
    module: Any = tracing
    module.track_tensor, module.proxy_call = track_and_watch, call_and_separate
    # When the collector runs is chance; what waits for it is taken to live on.
    gc.disable()
    try:
        yield
    finally:
        module.track_tensor, module.proxy_call = track, call
        if collecting:
            gc.enable()
