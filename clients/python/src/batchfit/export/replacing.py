"""Replaces attributes for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Gives an attribute another value inside."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
