"""The recorder's process: answers orders, and does what needs the card in a process of its own for each batch.

Each batch begins in a process that has not used the card, as training does: nothing is left in the allocator or in the pools of
CUDA's libraries, and what an illegal access ends is that process alone.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from .errors import RecorderError
from .protocol import LONGEST_ORDER, VERSION, Open, Record, checkpointing, read

# What a process for one batch may write to one file.
_LARGEST_FILE = 1 << 30
# The longest answer of such a process.
_LONGEST_ANSWER = 1 << 20


class _Ended(Exception):
    """Nobody gives orders any more."""


class Child:
    """`named` is a module of the user's own, in place of graphs; `device` may be the host, in tests."""

    def __init__(self, named: Optional[Any], device: str) -> None:
        self._named, self._device = named, device
        self._buffer = b""
        self._open: Optional[Open] = None
        self._graph: Optional[Any] = None
        # Whatever code prints goes to stderr: stdout is for answers.
        self._answers = os.dup(1)
        os.dup2(2, 1)

    def run(self) -> int:
        """Answers orders until there are no more."""
        # Once, before anybody waits for an answer: it takes seconds, and PyTorch imports some of it at an optimizer's first step.
        import torch._dynamo  # noqa: F401

        from . import interpreter, training  # noqa: F401

        self._answer({"message": "hello", "version": VERSION})
        try:
            while True:
                self._answer(self._answered(self._next_order()))
        except _Ended:
            return 0

    def _answered(self, line: bytes) -> dict[str, Any]:
        try:
            order = read(line)
            if isinstance(order, Open):
                return self._opened(order)
            if self._open is None:
                raise RecorderError("an order to record before one to open")
            return self._recorded(self._open, order)
        except RecorderError as error:
            return {"message": "refused", "refusal": "invalid", "detail": str(error)[:4000]}

    def _opened(self, order: Open) -> dict[str, Any]:
        self._open = None
        self._training(order, 1)
        if (order.graph is None) == (self._named is None):
            raise RecorderError("a graph, or a module on the command line: one of both is recorded")
        if not Path(order.folder).is_dir():
            raise RecorderError(f"{order.folder} is no folder")
        answer: dict[str, Any] = {"message": "ready", "least_batch": 1, "most_batch": 1 << 40, "notes": []}
        if order.graph is not None:
            graph = self._read(order.graph)
            answer["least_batch"], answer["most_batch"] = graph.batches
            answer["notes"] = graph.notes
        told = self._apart(lambda: _card(self._device, order.device))
        if told["message"] == "card":
            del told["message"]
            self._open = order
            return {**answer, **told}
        return told

    def _read(self, path: str) -> Any:
        from . import graphs

        try:
            with open(path, "rb") as file:
                contents = file.read(graphs.MOST_BYTES + 1)
        except OSError as error:
            raise RecorderError(f"{path} cannot be read: {error}") from None
        if len(contents) > graphs.MOST_BYTES:
            raise RecorderError(f"the graph is larger than {graphs.MOST_BYTES} bytes")
        self._graph = graphs.read(contents)
        return self._graph

    def _training(self, order: Open, accumulation: int) -> Any:
        from .training import Training

        known = ("precision", "optimizer", "optimizer_impl", "checkpointing", "clip_grad_norm")
        unknown = [name for name in order.training if name not in known]
        if unknown:
            raise RecorderError(f"{unknown[0][:80]!r} is no member of training that is recorded; known are {', '.join(known)}")
        clip = order.training.get("clip_grad_norm")
        if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
            raise RecorderError("clip_grad_norm is a number above zero")
        named = {name: order.training[name] for name in known[:3] if name in order.training}
        if not all(isinstance(value, str) for value in named.values()):
            raise RecorderError("precision, optimizer and optimizer_impl are names")
        return Training(**named, checkpointing=checkpointing(order.training.get("checkpointing")), accumulation=accumulation, clip_grad_norm=clip)

    def _recorded(self, opened: Open, order: Record) -> dict[str, Any]:
        training = self._training(opened, order.accumulation)
        path = str(Path(opened.folder) / f"b{order.batch}-a{order.accumulation}.gz")
        begin = time.monotonic()
        answer = self._apart(lambda: _record(self._graph, self._named, training, order, (self._device, opened.device), path))
        return {**answer, "seconds": round(time.monotonic() - begin, 3)}

    def _apart(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `work` gives, done in a process that nothing else has used. It ends when nobody gives orders any more."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _do_apart(work, writer)
        os.close(writer)
        text = b""
        try:
            while True:
                ready, _, _ = select.select([reader] + ([0] if not self._buffer else []), [], [])
                if 0 in ready:
                    self._take()
                if reader in ready:
                    piece = os.read(reader, 1 << 16)
                    text += piece
                    if not piece or len(text) > _LONGEST_ANSWER:
                        break
        finally:
            os.close(reader)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
            return {"message": "refused", "refusal": "device_failed", "detail": f"the process that used the card ended with {how}"}
        return answer

    def _next_order(self) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > LONGEST_ORDER:
                raise _Ended
            self._take()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _take(self) -> None:
        piece = os.read(0, 1 << 16)
        if not piece:
            raise _Ended
        self._buffer += piece

    def _answer(self, answer: dict[str, Any]) -> None:
        line = json.dumps(answer).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._answers, line) :]
        except BrokenPipeError:
            raise _Ended from None


def _do_apart(work: Callable[[], dict[str, Any]], writer: int) -> None:
    """Runs in the new process, and does not return."""
    status = 1
    try:
        _die_with_parent()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
        try:
            answer = work()
        except RecorderError as error:
            answer = {"message": "refused", "refusal": "invalid", "detail": str(error)[:4000]}
        except MemoryError:
            answer = {"message": "refused", "refusal": "device_failed", "detail": "the host's memory ran out"}
        except Exception as error:  # Whatever a graph or a module makes PyTorch raise.
            lines = str(error).strip().splitlines() or [""]
            detail = f"{type(error).__name__}: {lines[0][:2000]}"
            answer = {"message": "refused", "refusal": "device_failed" if "CUDA error" in detail else "invalid", "detail": detail}
        line = json.dumps(answer).encode()
        while line:
            line = line[os.write(writer, line) :]
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def _die_with_parent() -> None:
    """Nobody waits for an answer when the recorder is gone."""
    import ctypes

    kill_when_parent_ends = 1
    libc = ctypes.CDLL(None, use_errno=True)
    prctl = getattr(libc, "prctl", None)
    if prctl is not None:
        prctl(kill_when_parent_ends, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


def _card(device: str, number: int) -> dict[str, Any]:
    import torch

    answer: dict[str, Any] = {"message": "card", "torch": torch.__version__, "gpu": device, "total_bytes": None, "free_bytes": None, "cudnn": None}
    if device != "cuda":
        return answer
    if not torch.cuda.is_available():
        detail = f"PyTorch {torch.__version__} finds no GPU that it can use"
        return {"message": "refused", "refusal": "device_unavailable", "detail": detail}
    if number >= torch.cuda.device_count():
        detail = f"PyTorch {torch.__version__} finds {torch.cuda.device_count()} GPUs, and no number {number}"
        return {"message": "refused", "refusal": "device_unavailable", "detail": detail}
    torch.cuda.set_device(number)
    free, total = torch.cuda.mem_get_info()
    version: Any = torch.backends.cudnn.version
    answer.update(gpu=torch.cuda.get_device_name(), total_bytes=total, free_bytes=free)
    try:
        answer["cudnn"] = str(version())
    except RuntimeError:
        pass
    return answer


_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def _record(graph: Any, named: Any, training: Any, order: Record, card: tuple[str, int], path: str) -> dict[str, Any]:
    import torch

    from . import interpreter
    from .modules import ModuleProgram
    from .training import GraphProgram, train

    interpreter.quiet()
    device, batch, limit = torch.device(card[0]), order.batch, order.limit_bytes
    answer: dict[str, Any] = {"message": "recorded", "batch": batch, "path": None, "retries": 0}
    answer.update(peak_allocated_bytes=None, peak_reserved_bytes=None)
    try:
        if device.type == "cuda":
            torch.cuda.set_device(card[1])
        if device.type == "cuda" and limit is not None:
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
        program: Any
        if graph is not None:
            program = GraphProgram(graph, training, device)
            program.check(batch, limit)
        else:
            program = ModuleProgram(named, training, device)
        with recording(batch, training.accumulation, device.type) as recorded:
            alive = train(program, training, batch, device, recorded.step, lambda: None)
        recorded.write(path)
        del alive
    except (RuntimeError, torch.OutOfMemoryError) as error:
        if not isinstance(error, torch.OutOfMemoryError) and not any(sign in str(error) for sign in _OUT_OF_MEMORY):
            raise
        return {**answer, "outcome": "out_of_memory"}
    answer.update(
        outcome="fits" if recorded.is_steady else "fits_with_retries",
        path=path,
        retries=recorded.retries,
        peak_allocated_bytes=recorded.peak_allocated_bytes,
        peak_reserved_bytes=recorded.peak_reserved_bytes,
    )
    return answer


def recording(batch: int, accumulation: int, device: str) -> Any:
    """What records: the card's allocator, or nothing on the host, whose memory no allocator of this kind hands out."""
    if device != "cuda":
        return _Unrecorded(batch, accumulation)
    from ..recording import Recording

    return Recording(batch, accumulation)


class _Unrecorded:
    """Steps on the host, in tests: a file of the right form with as many steps."""

    def __init__(self, batch: int, accumulation: int) -> None:
        self.header = {"batch": batch, "accumulation": accumulation}
        self.steps = self.retries = self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.is_steady = True

    def __enter__(self) -> _Unrecorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self) -> None:
        self.steps += 1

    def write(self, path: str) -> None:
        lines = ["batchfit recording 1", json.dumps(self.header), "a 512", *["s"] * self.steps]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
