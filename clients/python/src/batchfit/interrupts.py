"""Ctrl-C, while something must not be left half-done."""

from __future__ import annotations

import contextlib
import signal
import threading
import types
from collections.abc import Callable
from typing import Any, Optional, Union

_Handler = Union[Callable[[int, Optional[types.FrameType]], Any], int, None]


class Interrupts:
    """Lets the first Ctrl-C through, and from then on, or from `hold`, none, until it is left; what came meanwhile comes then.

    In other threads than the main one Python raises no KeyboardInterrupt, and nothing is done.
    """

    def __init__(self) -> None:
        self._held = False
        self._waiting = False
        self._before: _Handler = None
        self._is_ours = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            # Handlers that were not made in Python, and ignored signals, stay.
            if callable(before):
                self._before = before
                self._is_ours = True
                signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: Optional[types.FrameType]) -> None:
        if self._held:
            self._waiting = True
            return
        self._held = True
        if callable(self._before):
            self._before(number, frame)
        # A handler that returns interrupts nothing.
        self._held = False

    def hold(self) -> None:
        """From here on nothing interrupts."""
        self._held = True

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self._is_ours:
            return
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, self._before)
        if self._waiting and kind is None:
            signal.raise_signal(signal.SIGINT)
