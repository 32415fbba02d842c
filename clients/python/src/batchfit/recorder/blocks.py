"""Module calls of a graph, and which of them run under a checkpoint: the rules of `crates/torch/src/compile/checkpoint.rs`."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Optional, Union

from .errors import RecorderError
from .graphs import Graph

_NO_STACK = "_empty_nn_module_stack_from_metadata_hook"

Checkpointing = Union[None, str, Sequence[str]]


@functools.lru_cache(maxsize=4096)
def _entries(stack: str) -> tuple[tuple[str, str, str], ...]:
    """Key, path and class of each module call in an `nn_module_stack`, from the outermost."""
    found = []
    for entry in stack.split(";"):
        parts = entry.split(",", 2)
        if len(parts) == 3 and parts[1] != _NO_STACK:
            found.append((parts[0], parts[1], parts[2]))
    return tuple(found[:64])


@functools.lru_cache(maxsize=4096)
def calls(stack: str) -> tuple[tuple[str, ...], ...]:
    """The calls that an operator is inside of, from the outermost: each the keys down to it."""
    keys = [entry[0] for entry in _entries(stack)]
    return tuple(tuple(keys[: depth + 1]) for depth in range(len(keys)))


def regions(graph: Graph, checkpointing: Checkpointing) -> dict[int, int]:
    """Operators that run under one checkpoint each: the last of them by the first."""
    if checkpointing in (None, "none"):
        return {}
    stacks = {operator.stack for operator in graph.operators}
    paths = {path for stack in stacks for _, path, _ in _entries(stack)[1:]}
    held = {each.path for each in graph.held}
    wrapped = bool(paths) and all(path == "model" or path.startswith("model.") for path in paths | held)
    # The wrapper around model and loss is no module of the model.
    skipped = 2 if wrapped else 1

    def own(path: str) -> str:
        return path[len("model.") :] if wrapped and path.startswith("model.") else "" if wrapped else path

    if checkpointing == "per_block":
        chosen = repeated([[(own(path), cls) for _, path, cls in _entries(stack)[skipped:]] for stack in stacks])
    else:
        chosen = {own(path) for path in paths if matches(checkpointing, own(path))}

    if not chosen:
        raise RecorderError("no module of this graph is what `checkpointing` asks for")

    @functools.lru_cache(maxsize=None)
    def block(stack: str) -> Optional[tuple[str, ...]]:
        entries = _entries(stack)
        for depth in range(skipped, len(entries)):
            if own(entries[depth][1]) in chosen:
                return calls(stack)[depth]
        return None

    found: dict[int, int] = {}
    first: Optional[int] = None
    running: Optional[tuple[str, ...]] = None
    for index, operator in enumerate(graph.operators):
        inside = block(operator.stack)
        if inside is None and not _entries(operator.stack):
            # Sizes are asked for outside of all modules.
            continue
        if inside is not None and inside == running and first is not None:
            found[first] = index
        elif inside is not None:
            first = index
            found[first] = index
        running = inside
    return found


def repeated(stacks: list[list[tuple[str, str]]]) -> set[str]:
    """Elements of lists or Sequentials that share their class with a sibling and have modules inside."""
    parents = {path for stack in stacks for path, _ in stack[:-1]}
    alike: dict[tuple[str, str], set[str]] = {}
    for stack in stacks:
        for path, cls in stack:
            of, _, index = path.rpartition(".")
            if index.isdecimal() and index.isascii():
                alike.setdefault((of, cls), set()).add(path)
    return {path for paths in alike.values() if len(paths) > 1 for path in paths if path in parents}


def matches(globs: Checkpointing, path: str) -> bool:
    """Whether a path is one that patterns ask for."""
    if globs is None or isinstance(globs, str):
        raise RecorderError(f"the checkpointing {globs!r} is not known; give none, per_block or patterns of modules")
    return any(_pattern(glob).fullmatch(path) for glob in globs)


@functools.lru_cache(maxsize=64)
def _pattern(glob: object) -> re.Pattern[str]:
    """`*` stands for any characters but dots, `**` for any at all, `?` for one that is no dot."""
    if not isinstance(glob, str) or len(glob) > 127 or glob.count("*") > 8:
        raise RecorderError("a pattern of modules is a text of at most 127 characters with at most 8 stars")
    parts = re.split(r"(\*+|\?)", glob)
    words = {"*": r"[^.]*", "?": r"[^.]"}
    return re.compile("".join(words.get(part, r".*" if part.startswith("**") else re.escape(part)) for part in parts))
