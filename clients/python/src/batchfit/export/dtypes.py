"""Notes whose dtype a conversion asks for, while the model's code is traced.

`x.to(y.dtype)` is traced in float32 and reads "to float32", but under autocast `y` may be of half precision: an activation
often is, a parameter never. What tells them apart is in the code alone. Each `y.dtype` that the model's code reads is noted
with its line, and a conversion is led back to one: written in the call itself, bound to a variable before, or given to the
function as an argument. Where that does not succeed nothing is noted.

Code that converts only where dtypes differ (`if x.dtype != y.dtype: x = x.to(y.dtype)`) is traced as if they did: a conversion
to the dtype that something has does nothing.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Optional, Union

import torch

from .failures import is_user_code
from .lifetimes import Lifetimes
from .replacing import replaced

_Statement = Union[ast.Assign, ast.AnnAssign]
# How many functions an argument is followed through.
_CALLERS = 4


@dataclass(frozen=True)
class _Read:
    """`y.dtype`: the line that reads it, and the number of the value `y`; 0 for a parameter or a tensor of the batch."""

    line: int
    value: int


@dataclass
class Conversions:
    """Conversions, by the number of the value each makes, and the value whose dtype it asks for (0 as above)."""

    found: list[tuple[int, int]] = field(default_factory=list)
    # What running functions have read. Their frames are not kept: that would keep their variables.
    _reads: dict[tuple[int, CodeType], list[_Read]] = field(default_factory=dict)

    def note_read(self, frame: FrameType, value: int) -> int:
        """The code of a frame reads the dtype of a value. Tells how often its line has done so."""
        reads = self._reads.setdefault((id(frame), frame.f_code), [])
        reads.append(_Read(frame.f_lineno, value))
        return sum(read.line == frame.f_lineno for read in reads)

    def asked_for(self, frame: FrameType) -> Optional[int]:
        """The value whose dtype the conversion asks for that a frame's code is about to call."""
        calls = [call for call in _calls(frame) if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "type")]
        calls = _running(frame, calls)
        wanted = [self._value(frame, _dtype_argument(call), _CALLERS) for call in calls]
        # Several calls in one line: they agree, or it is not known.
        return wanted[0] if wanted and all(value == wanted[0] for value in wanted) else None

    def _value(self, frame: FrameType, expression: Optional[ast.expr], callers: int) -> Optional[int]:
        reads = self._reads.get((id(frame), frame.f_code), [])
        if isinstance(expression, ast.Attribute) and expression.attr == "dtype":
            lines = range(expression.lineno, (expression.end_lineno or expression.lineno) + 1)
            return next((read.value for read in reversed(reads) if read.line in lines), None)
        if not isinstance(expression, ast.Name):
            return None
        for read in reversed(reads):
            binding = _binding(frame.f_code.co_filename, read.line, expression.id)
            if binding is not None:
                statement, place, of = binding
                last = [read.value for read in reads if _spans(statement, read.line)][-of:]
                return last[place] if place < len(last) else None
        given = _argument(frame, expression.id) if callers else None
        return None if given is None else self._value(*given, callers - 1)


@contextlib.contextmanager
def noting_dtypes(lifetimes: Lifetimes) -> Iterator[Conversions]:
    """Inside, conversions are noted."""
    conversions = Conversions()
    known: dict[CodeType, bool] = {}
    base: Any = torch._C.TensorBase
    dtype_of, convert, convert_type = base.dtype, torch.Tensor.to, torch.Tensor.type

    def is_of_user(frame: FrameType) -> bool:
        code = frame.f_code
        if code not in known:
            known[code] = is_user_code(code)
        return known[code]

    def read(self: torch.Tensor) -> torch.dtype:
        dtype: torch.dtype = dtype_of.__get__(self)
        frame = sys._getframe(1)
        if not dtype.is_floating_point or not is_of_user(frame):
            return dtype
        times = conversions.note_read(frame, lifetimes.number(self) or 0)
        reads = _reads_to_compare(frame.f_code.co_filename, frame.f_lineno)
        # Of two that are compared, the first one.
        return _OTHER if reads and times % reads == 1 % reads else dtype

    def noting(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            given = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, (torch.dtype, torch.Tensor))]
            if not given or not is_of_user(frame):
                return method(self, *args, **kwargs)
            if isinstance(given[0], torch.Tensor):
                asked: Optional[int] = lifetimes.number(given[0]) or 0
            else:
                asked = conversions.asked_for(frame)
            before = lifetimes.made
            result = method(self, *args, **kwargs)
            number = lifetimes.number(result)
            if asked is not None and number is not None and number > before:
                conversions.found.append((number, asked))
            return result

        return call

    tensor: Any = torch.Tensor
    with replaced(tensor, "to", noting(convert)), replaced(tensor, "type", noting(convert_type)):
        tensor.dtype = property(read)
        try:
            yield conversions
        finally:
            # Back to that of the class below.
            del tensor.dtype


# A dtype that nothing has which is converted.
_OTHER = torch.float8_e4m3fn


def _calls(frame: FrameType) -> list[ast.Call]:
    """The calls in the line that a frame is at."""
    return [call for call in _parsed(frame.f_code.co_filename)[0] if _spans(call, frame.f_lineno)]


def _running(frame: FrameType, calls: list[ast.Call]) -> list[ast.Call]:
    """The one of these calls that a frame is in, where Python says so (3.11 does); else all of them."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None or len(calls) < 2:
        return calls
    # A code unit has two bytes, and `f_lasti` counts bytes.
    place = next(itertools.islice(positions(), frame.f_lasti // 2, None), None)
    exact = [call for call in calls if (call.lineno, call.end_lineno, call.col_offset, call.end_col_offset) == place]
    return exact or calls


def _dtype_argument(call: ast.Call) -> Optional[ast.expr]:
    """What a call of `to` or `type` is given as dtype."""
    for keyword in call.keywords:
        if keyword.arg in ("dtype", "dst_type"):
            return keyword.value
    return call.args[-1] if call.args else None


def _binding(file: str, line: int, name: str) -> Optional[tuple[_Statement, int, int]]:
    """The statement in this line that binds a name to what `.dtype` gives there: which of how many dtypes it reads."""
    for statement in _parsed(file)[1]:
        if not _spans(statement, line):
            continue
        read = [pair for pair in _pairs(statement) if isinstance(pair[1], ast.Attribute) and pair[1].attr == "dtype"]
        values = list(dict.fromkeys(value for _, value in read))
        for target, value in read:
            if isinstance(target, ast.Name) and target.id == name:
                return statement, values.index(value), len(values)
    return None


def _pairs(statement: _Statement) -> Iterator[tuple[ast.expr, Optional[ast.expr]]]:
    """The names of an assignment and what each is bound to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        value = statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from zip(target.elts, value.elts)
        else:
            yield target, value


def _argument(frame: FrameType, name: str) -> Optional[tuple[FrameType, ast.expr]]:
    """What a function that runs was given under the name of an argument: the frame and the words of who called it."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    caller = frame.f_back
    while caller is not None and not is_user_code(caller.f_code):
        caller = caller.f_back
    if name not in names or caller is None:
        return None
    # `self.cast(x, dtype)` is named after the function, `self.norm(x, dtype)` after a module whose `forward` runs.
    calls = [call for call in _calls(caller) if code.co_name in ("forward", _called(call))]
    if len(calls) != 1:
        return None
    for keyword in calls[0].keywords:
        if keyword.arg == name:
            return caller, keyword.value
    place = names.index(name) - (1 if names[0] == "self" else 0)
    in_order = place < len(calls[0].args) and not any(isinstance(a, ast.Starred) for a in calls[0].args)
    return (caller, calls[0].args[place]) if in_order else None


def _called(call: ast.Call) -> Optional[str]:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


@functools.lru_cache(maxsize=4096)
def _reads_to_compare(file: str, line: int) -> int:
    """How many dtypes (one or both) a line reads to compare them, for an `if` that decides about nothing but a conversion; 0 for
    any other line."""
    for node, following in _parsed(file)[2]:
        test = node.test
        comparisons = [part for part in ast.walk(test) if isinstance(part, ast.Compare) and _spans(part, line)]
        if not _spans(test, line) or len(comparisons) != 1 or len(comparisons[0].ops) != 1:
            continue
        reads = [part for part in ast.walk(test) if isinstance(part, ast.Attribute) and part.attr == "dtype"]
        sides = (comparisons[0].left, comparisons[0].comparators[0])
        if not reads or any(read not in sides for read in reads):
            return 0
        if isinstance(comparisons[0].ops[0], ast.NotEq):
            converts = not node.orelse and len(node.body) == 1 and _converts(node.body[0])
            return len(reads) if isinstance(test, ast.Compare) and converts else 0
        # `if x.dtype == dtype: return x`, and then `return x.to(dtype)`.
        returns_it = len(node.body) == 1 and isinstance(node.body[0], ast.Return) and isinstance(node.body[0].value, ast.Name)
        is_or = isinstance(test, ast.Compare) or isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
        is_equal = isinstance(comparisons[0].ops[0], ast.Eq)
        converts = following is not None and _converts(following)
        return len(reads) if is_equal and is_or and returns_it and converts else 0
    return 0


def _converts(statement: ast.stmt) -> bool:
    """Whether a statement is `x = x.to(...)` or `return x.to(...)`."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != "to":
        return False
    return isinstance(value.func.value, ast.Name)


def _spans(node: Union[ast.expr, ast.stmt], line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


_Parsed = tuple[list[ast.Call], list[_Statement], list[tuple[ast.If, Optional[ast.stmt]]]]


@functools.lru_cache(maxsize=64)
def _parsed(file: str) -> _Parsed:
    """The calls and assignments of a file, and its tests with the statement that follows each."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return [], [], []
    calls: list[ast.Call] = []
    statements: list[_Statement] = []
    tests: list[tuple[ast.If, Optional[ast.stmt]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            calls.append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            statements.append(node)
        body = getattr(node, "body", None)
        for block in (body, getattr(node, "orelse", None)):
            if isinstance(block, list):
                after = [*block[1:], None]
                tests += [(part, following) for part, following in zip(block, after) if isinstance(part, ast.If)]
    return calls, statements, tests
