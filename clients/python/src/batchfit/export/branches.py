"""Reads what a branch of Python code is for, where the value that decides is not known.

Libraries check their input and raise an error: `if labels.max() >= vocabulary: raise ValueError(...)`. Training goes on only
where nothing is raised, so the value is known after all.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
from types import FrameType
from typing import Optional


# Tests of parameters and samples of `torch.distributions`.
_CONSTRAINTS = os.path.join("torch", "distributions", "constraints.py")


def raises_unless(frame: FrameType) -> Optional[bool]:
    """What the value that a frame is about to test must be so that nothing is raised; None where either may be."""
    if frame.f_code.co_filename.endswith(_CONSTRAINTS):
        # Tests that say at the end whether they were met, for others to raise an error.
        return True
    return _of_line(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=1024)
def _of_line(file: str, line: int) -> Optional[bool]:
    for node in _statements(file):
        if isinstance(node, ast.Assert) and _spans(node.test, line):
            return _polarity(node.test)
        if isinstance(node, ast.If) and _spans(node.test, line):
            wanted = _polarity(node.test)
            if wanted is None:
                return None
            if _only_raises(node.body):
                return not wanted
            if node.orelse and _only_raises(node.orelse):
                return wanted
            return None
    return None


@functools.lru_cache(maxsize=64)
def _statements(file: str) -> tuple[ast.stmt, ...]:
    """The tests of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.Assert)))


def _spans(test: ast.expr, line: int) -> bool:
    return test.lineno <= line <= (test.end_lineno or test.lineno)


def _polarity(test: ast.expr) -> Optional[bool]:
    """What every part of a test must be for the test to hold: True, or False below a `not`. None where parts differ."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _polarity(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = {_polarity(part) for part in test.values}
        return parts.pop() if len(parts) == 1 else None
    return True


def _only_raises(body: list[ast.stmt]) -> bool:
    """Whether a branch ends in an error, with nothing before it but what words it."""
    return isinstance(body[-1], ast.Raise) and all(isinstance(s, (ast.Assign, ast.Expr, ast.Raise)) for s in body)
