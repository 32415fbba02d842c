"""Says in a few lines why a model could not be exported: what is wrong, where in the model's code, and what would help."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Optional

import torch
import torch.fx

from . import losses
from .errors import ExportError

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
# The only symbol of a trace, the batch, under a name that PyTorch makes up.
_BATCH_SYMBOL = re.compile(r"\bs\d+\b")
_LARGEST = re.compile(r"B = Dim\('B',[^)]*\bmax=(\d+)\)")
_ONLY = re.compile(r"^\s*B = (\d+)\s*$", re.MULTILINE)
_GUARD = re.compile(r"satisfy the generated guard (.*?)\.?$", re.MULTILINE)
_SIZE = re.compile(r"L\['\w+'\]\.size\(\)\[\d+\]")
_CHARACTERS = 300

_Found = tuple[list[FrameType], Optional[FrameType], int]


def is_user_code(code: CodeType) -> bool:
    """Whether code is the model's or a library's: neither PyTorch's nor ours."""
    return not code.co_filename.startswith((_TORCH, _OWN, "<"))


def user_frame() -> Optional[FrameType]:
    """The innermost frame of the model's code that is traced right now."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code):
        # What called the export is no part of the model.
        frame = None if frame.f_code.co_filename == losses.__file__ else frame.f_back
    return frame


# Parts of PyTorch that carry out what code asks for. The rest of it (distributions, losses) is code like any other.
_MACHINERY = tuple(
    _TORCH + part
    for part in (
        "_export", "export", "fx", "utils", "_ops.py", "_subclasses", "_library", "_compile.py", "_dynamo", "_functorch",
        "_tensor.py", "overrides.py", "_higher_order_ops", "_prims", "_refs", "_decomp", "_logging",
    )
)  # fmt: skip


def asking_frame() -> Optional[FrameType]:
    """The innermost frame of the code that asks for a value right now, PyTorch's own Python code included."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_MACHINERY, _OWN, "<")):
        frame = frame.f_back
    return frame


def place(frame: FrameType, line: int) -> str:
    """`monai/losses/dice.py:182 in forward: target = one_hot(target)`."""
    code = frame.f_code
    text = linecache.getline(code.co_filename, line).strip()
    return f"{_short(code.co_filename)}:{line} in {code.co_name}: {_cut(text, 160)}"


def module_of(frames: list[FrameType], model: torch.nn.Module) -> Optional[str]:
    """The path and class of the innermost module of the model that the frames are in."""
    paths = {id(module): path for path, module in model.named_modules()}
    for frame in reversed(frames):
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module) and paths.get(id(module)):
            path = paths[id(module)].removeprefix("model").removeprefix(".")
            return f"module `{path}` ({type(module).__name__})" if path else f"the model ({type(module).__name__})"
    return None


def is_about_the_batch(error: Exception) -> bool:
    """Whether a graph came out, but not for every batch."""
    return "Constraints violated" in str(error) and _LARGEST.search(str(error)) is None


_PATH = "the model's code takes another path for batches above "


def path_of_small_batches(error: Exception) -> Optional[int]:
    """The largest batch for which code takes the path that was traced, where it takes another one above."""
    said = str(error)
    return int(said.removeprefix(_PATH).split()[0]) if said.startswith(_PATH) else None


_DEVICES = re.compile(r"FakeTensor Device Propagation|expected device|same device|[Mm]ismatch\S* .*device|devices? .*cpu.*meta|devices? .*meta.*cpu")


def is_about_devices(error: Exception) -> bool:
    """Whether tensors of the model met some that its code made elsewhere."""
    return _DEVICES.search(str(error)) is not None


def explained(
    error: Exception,
    model: torch.nn.Module,
    asked: Optional[list[str]],
    whole: list[str],
    fixed_at: Optional[str],
) -> ExportError:
    """What went wrong while a model was traced.

    `asked` are the names of the batch's tensors and of buffers from which a value was asked for that is not known, `whole`
    those of the batch's tensors of whole numbers, and `fixed_at` is the place of the code that tied the batch to a number.
    """
    found = _frames(error.__traceback__)
    said = str(error)
    if isinstance(error, torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode) or said.startswith(".numpy() is not supported"):
        return _message("the model's Python code asks for the value of a tensor, which only data can tell", found, model, *_without_value(asked, whole))
    largest, only = _LARGEST.search(said), _ONLY.search(said)
    if largest is not None:
        advice = f"export it with --max-batch {largest[1]} (max_batch={largest[1]} in Python); the answer is then for no larger one"
        return ExportError("\n".join([f"{_PATH}{largest[1]}", *_at(fixed_at), advice]))
    if only is not None:
        advice = "the code turns the batch size into a fixed number there: an int() of it, a table by it, a list of that length"
        return ExportError("\n".join([f"the export would hold for a batch of {only[1]} only", *_at(fixed_at), advice]))
    if is_about_the_batch(error):
        guard = _GUARD.search(said)
        holds = "" if guard is None else f": {_SIZE.sub('B', guard[1])}"
        return ExportError("\n".join([f"the graph would not hold for every batch{_cut(holds, _CHARACTERS)}", *_at(fixed_at)]))
    if isinstance(error, torch._subclasses.fake_tensor.DynamicOutputShapeException):
        what = f"{getattr(error, 'func', 'an operator')} makes a tensor whose size depends on data, and PyTorch has no rule for it"
        return _message(what, found, model)
    if not said.strip():
        return _message(f"the model's code failed: {type(error).__name__}", found, model)
    first = _cut(_BATCH_SYMBOL.sub("B", said.strip().splitlines()[0]), _CHARACTERS)
    return _message(f"the model's code failed: {type(error).__name__}: {first}", found, model)


def not_built(error: Exception) -> ExportError:
    """What the code raised that makes the model."""
    first = (str(error).strip().splitlines() or [""])[0]
    _, frame, line = _frames(error.__traceback__, os.path.join(os.path.dirname(__file__), "building.py"))
    what = f"the model could not be built: {type(error).__name__}: {_cut(first, _CHARACTERS)}"
    return ExportError("\n".join([what, *_at(None if frame is None else place(frame, line))]))


def origins(node: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> list[str]:
    """The inputs of the graph that a value is computed from, by the names that the user knows."""
    found: dict[str, None] = {}
    seen: set[torch.fx.Node] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in names:
            found[names[node]] = None
        waiting.extend(node.all_input_nodes)
    return list(found)


def _without_value(asked: Optional[list[str]], whole: list[str]) -> Iterator[str]:
    if asked:
        yield f"the value comes from {', '.join(f'`{name}`' for name in asked[:6])}"
    told = [name for name in asked or [] if name in whole]
    if told:
        yield (
            f"if all elements of `{told[0]}` are one number, say which: --batch \"{told[0]}=i64[B]=100\" "
            f"(values={{{told[0]!r}: 100}} in Python)"
        )
    else:
        yield "compute it without reading a tensor in Python, or take the branch by an argument of the constructor"


def _message(what: str, found: _Found, model: torch.nn.Module, *advice: str) -> ExportError:
    frames, frame, line = found
    module = module_of(frames, model)
    lines = [what, *_at(None if frame is None else place(frame, line)), *([] if module is None else [f"  in {module}"])]
    return ExportError("\n".join([*lines, *advice]))


def _at(place: Optional[str]) -> list[str]:
    return [] if place is None else [f"  at {place}"]


def _frames(traceback: Optional[TracebackType], caller: str = losses.__file__) -> _Found:
    """The frames of a traceback below our file `caller`, the innermost of user code, and the line there."""
    frames: list[FrameType] = []
    found: Optional[FrameType] = None
    line, inside = 0, False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        # What called the export is no part of the model.
        inside = inside or code.co_filename == caller
        if inside:
            frames.append(traceback.tb_frame)
            if is_user_code(code):
                found, line = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    return frames, found, line


def _short(file: str) -> str:
    """A file by its place in its package, or by its name."""
    for folder in sorted(sys.path, key=len, reverse=True):
        if folder and file.startswith(os.path.join(folder, "")):
            return os.path.relpath(file, folder)
    return os.path.basename(file)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
