"""What surrounds PyTorch's tracing: it is quiet, and what ties the batch to a number is noted."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import sympy  # type: ignore[import-untyped]
import torch
import torch.export._trace
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .failures import place, user_frame
from .replacing import replaced


@dataclass(frozen=True)
class Tie:
    """Code compared the batch with a number, so that the graph holds on one side only."""

    guard: str
    place: str
    # The variables of the module whose code it is.
    names: dict[str, Any]


@dataclass
class Ties:
    found: list[Tie] = field(default_factory=list)

    def place(self) -> Optional[str]:
        """The first place that made the batch one number; else the first of all."""
        equal = [tie.place for tie in self.found if tie.guard.startswith("Eq(")]
        return next(iter(equal or [tie.place for tie in self.found]), None)

    def modules(self) -> list[dict[str, Any]]:
        """The variables of the modules, each once."""
        return list({id(tie.names): tie.names for tie in self.found}.values())


@contextlib.contextmanager
def ties_of_the_batch() -> Iterator[Ties]:
    """Notes the places of the model's code that tie the batch to a number."""
    ties, log = Ties(), ShapeEnv._log_guard

    def log_and_note(self: Any, prefix: str, guard: Any, forcing_spec: bool) -> None:
        frame = user_frame()
        if frame is not None:
            ties.found.append(Tie(str(guard), place(frame, frame.f_lineno), frame.f_globals))
        log(self, prefix, guard, forcing_spec)

    with replaced(ShapeEnv, "_log_guard", log_and_note):
        yield ties


class _WholeNumbers(type):
    """`int` in every way, but for quotients of the batch, which stay multiples of it."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, int)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.SymInt):
            return args[0]
        if len(args) == 1 and isinstance(args[0], torch.SymFloat):
            multiple = _multiple_of_the_batch(args[0])
            if multiple is not None:
                return multiple
        return int(*args, **kwargs)


class _Int(int, metaclass=_WholeNumbers):
    pass


def _len(value: Any) -> Any:
    """`len`, but for tensors, whose first length may be the batch."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() > 0 else len(value)


# By name, what Python's own functions make of the batch and what is put in their place.
_IN_PLACE_OF = {"int": (int, _Int), "len": (len, _len)}


def _multiple_of_the_batch(number: torch.SymFloat) -> Optional[torch.SymInt]:
    """The same number as a whole multiple of the batch, if it is one."""
    env, expression = number.node.shape_env, number.node.expr
    symbols = list(expression.free_symbols)
    if len(symbols) != 1:
        return None
    factor = round(float(expression.subs(symbols[0], 1)))
    if any(float(expression.subs(symbols[0], n)) != n * factor for n in (1, 2, 3, 5, 7, 64)):
        return None
    multiple: torch.SymInt = env.create_symintnode(factor * symbols[0], hint=factor * int(env.var_to_val[symbols[0]]))
    return multiple


@contextlib.contextmanager
def whole_numbers(modules: list[dict[str, Any]]) -> Iterator[None]:
    """Lets code of these modules take `int(...)` of quotients of the batch, and `len(...)` of tensors."""
    put = [
        (names, name, other)
        for names in modules
        for name, (own, other) in _IN_PLACE_OF.items()
        if names.get(name, own) is own
    ]
    had = [name in names for names, name, _ in put]
    for names, name, other in put:
        names[name] = other
    try:
        yield
    finally:
        for (names, name, _), before in zip(put, had):
            if before:
                names[name] = _IN_PLACE_OF[name][0]
            else:
                del names[name]


# Batches at which a comparison is tried out.
_SAMPLES = (1, 2, 3, 4, 5, 8, 63, 64, 1000, 4097, 1 << 20)


@contextlib.contextmanager
def trying_out_comparisons(smallest: int = 1) -> Iterator[None]:
    """What comes out alike for all batches from `smallest` on, small and large ones, ties the batch to nothing, whether or not
    PyTorch can prove it: `B * min(8, 8 * B) == 8 * B`, or in how many parts two batches are cut to get one."""
    evaluate = ShapeEnv._evaluate_expr
    samples = [sample for sample in _SAMPLES if sample >= smallest]

    def try_out(self: Any, expression: Any, *args: Any, **kwargs: Any) -> Any:
        symbols = list(expression.free_symbols)
        if len(symbols) == 1 and symbols[0] in self.var_to_val:
            found = {expression.subs(symbols[0], sample) for sample in samples}
            if len(found) == 1:
                return found.pop()
        return evaluate(self, expression, *args, **kwargs)

    with replaced(ShapeEnv, "_evaluate_expr", try_out):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """PyTorch prints a whole graph and writes to the log when tracing fails; what matters is in the error."""
    trace: Any = torch.export._trace
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    # Found before the built-in function of that name.
    trace.print = lambda *_, **__: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        del trace.print
        logging.disable(level)


class _SizesOfData(dict[Any, Any]):
    """What sizes that only data decide (how many elements a mask picks) are taken to be where code compares them: more than
    one, and all alike, so that nothing is left out and what meets in one operator fits together."""

    # Small: a mask picks no more than there is, and the batch that stands for all others is small.
    SIZE = sympy.Integer(3)

    def __init__(self, env: ShapeEnv) -> None:
        super().__init__()
        self._env = env

    def __bool__(self) -> bool:
        return True

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._env.size_like

    def __getitem__(self, symbol: object) -> Any:
        return self.SIZE


@contextlib.contextmanager
def sizes_of_data() -> Iterator[None]:
    """Lets code compare sizes that only data decide."""
    init = ShapeEnv.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.real_tensor_prop_unbacked_vals = _SizesOfData(self)

    with replaced(ShapeEnv, "__init__", make):
        yield
