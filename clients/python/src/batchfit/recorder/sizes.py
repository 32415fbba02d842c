"""Lengths that depend on the batch, as PyTorch writes them into a graph: sympy's `srepr`, or Python's signs."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, Optional

from .errors import RecorderError

# The longest expression that is read, and the largest number that may come out: PyTorch's sizes have 63 bits.
_LONGEST, _LARGEST, _DEEPEST = 4096, 1 << 63, 64

_NAMES_OF_ONE = ("TruncToInt", "FloorToInt", "ToFloat", "Identity", "Integer")


def _product(numbers: list[int]) -> int:
    return math.prod(numbers)


def _power(base: int, exponent: int) -> int:
    if exponent < 0 or exponent > 63:
        raise RecorderError("a power with an exponent that is no number from 0 to 63")
    return int(base**exponent)


def _divided(whole: int, by: int) -> int:
    if by == 0:
        raise RecorderError("a division by zero")
    return whole // by


def _remainder(whole: int, by: int) -> int:
    if by == 0:
        raise RecorderError("a division by zero")
    return whole % by


_OF_ALL: dict[str, Callable[[list[int]], int]] = {"Add": sum, "Mul": _product, "Max": max, "Min": min}
_OF_TWO: dict[str, Callable[[int, int], int]] = {
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _divided,
    "CleanDiv": _divided,
    "IntTrueDiv": _divided,
    "CeilDiv": lambda whole, by: -_divided(-whole, by),
    "Mod": _remainder,
    "PythonMod": _remainder,
}
_SIGNS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: _divided,
    ast.Div: _divided,
    ast.Mod: _remainder,
    ast.Pow: _power,
}


class Size:
    """An expression of the batch."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise RecorderError(f"a size is written in {len(text)} characters; at most {_LONGEST} are read")
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._unreadable() from None

    def _unreadable(self) -> RecorderError:
        return RecorderError(f"cannot read {self.text[:80]!r} as a size")

    def symbols(self) -> set[str]:
        """The names in it; those of sizes that values decide (`u0`) among them."""
        found: set[str] = set()
        for node in ast.walk(self._tree):
            name = self._symbol(node)
            if name is not None:
                found.add(name)
        return found

    def _symbol(self, node: ast.AST) -> Optional[str]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol":
            first = node.args[0] if node.args else None
            if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
                raise self._unreadable()
            return first.value
        if isinstance(node, ast.Name) and node.id[:1] in ("s", "u") and node.id[1:].isdigit():
            return node.id
        return None

    def at(self, batch: int) -> int:
        """What it is at a batch. Every symbol stands for the batch: a graph has one."""
        value = self._value(self._tree, batch, _DEEPEST)
        if not -_LARGEST < value < _LARGEST:
            raise RecorderError(f"the size {self.text[:80]!r} has more than 63 bits at batch {batch}")
        return value

    def _value(self, node: ast.AST, batch: int, depth: int) -> int:
        if depth == 0:
            raise RecorderError("a size nests too deep")
        if self._symbol(node) is not None:
            return batch
        value: Optional[int] = None
        if isinstance(node, ast.Constant) and type(node.value) is int:
            value = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = -self._value(node.operand, batch, depth - 1)
        elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            left, right = (self._value(side, batch, depth - 1) for side in (node.left, node.right))
            value = _SIGNS[type(node.op)](left, right)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            value = self._called(node.func.id, node.args, batch, depth)
        if value is None or abs(value) >= _LARGEST:
            raise self._unreadable()
        return value

    def _called(self, name: str, arguments: list[Any], batch: int, depth: int) -> Optional[int]:
        if name == "CeilToInt" and len(arguments) == 1:
            inner = arguments[0]
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "IntTrueDiv":
                return self._called("CeilDiv", inner.args, batch, depth)
            return None
        if len(arguments) > 64:
            return None
        numbers = [self._value(argument, batch, depth - 1) for argument in arguments]
        if name in _NAMES_OF_ONE and len(numbers) == 1:
            return numbers[0]
        if name in _OF_ALL and numbers:
            return _OF_ALL[name](numbers)
        if name in _OF_TWO and len(numbers) == 2:
            return _OF_TWO[name](numbers[0], numbers[1])
        return None


def is_of_values(symbol: str) -> bool:
    """Whether a symbol stands for a size that values decide, such as how many elements a mask picks."""
    return symbol[:1] == "u" and symbol[1:].isdigit()
